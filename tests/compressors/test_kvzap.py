"""KVzap: what its surrogate says is what is kept, its window and weights count, and the fit finds what there is."""

from __future__ import annotations

import pytest
import torch

from tests.compressors import examples, tiny
from tests.compressors.tiny import best, positions_of
from vcbench.compressors.fits.kvzap import Hidden, kept_share, mlp, rank_correlation, ridge, surrogate
from vcbench.compressors.kvzap import KVzap, KVzapOptions, SurrogateCache
from vcbench.compressors.kvzip import KVzipOptions, reconstruction_scores

PROMPT = 150
METHODS = [
    ("kvzap", KVzapOptions(budget_tokens=40, window=8)),
    ("kvzap", KVzapOptions(budget_tokens=40, window=8, surrogate="mlp")),
]
PLUS = ("kvzap", KVzapOptions(budget_tokens=40, window=8, targets="kvzip+"))


@pytest.mark.parametrize("method", METHODS, ids=["linear", "mlp"])
def test_the_best_guesses_stay_with_sinks_and_window(method: tuple[str, KVzapOptions]) -> None:
    fitted, ids = examples.calibration(method), tiny.token_ids(PROMPT)
    compressor = KVzap(method[1], fitted)
    prefill = examples.decoder().prefill(ids, chunk=64, statistics=compressor.statistics)
    cache = compressor.compress(prefill, seed=0)
    shown: list[torch.Tensor] = []
    hidden = examples.decoder().prefill(ids, chunk=PROMPT, statistics=[Hidden()]).statistic(Hidden())
    for layer, rows in enumerate(hidden):
        scores = surrogate({name: tensor[layer] for name, tensor in fitted.tensors.items()}, rows.float())
        scores[:, :4] = scores[:, -8:] = torch.inf
        shown.append(scores)
    expected = [best(scores, 40) for scores in shown]
    agree = [
        len(set(ours).intersection(theirs)) / 40
        for layer, rows in zip(positions_of(cache).tolist(), expected, strict=True)
        for ours, theirs in zip(layer, rows, strict=True)
    ]
    # Half-precision inputs of the expectation may swap neighbours of the border, no more.
    assert min(agree) >= 0.9
    assert all(
        set(range(4)) | set(range(142, 150)) <= set(head) for layer in positions_of(cache).tolist() for head in layer
    )


def test_the_surrogates_weights_are_charged() -> None:
    method = METHODS[0]
    compressor = KVzap(method[1], examples.calibration(method))
    cache = compressor.compress(examples.prefill(tiny.token_ids(PROMPT), compressor), seed=0)
    layers, heads, hidden = 2, 2, 48

    assert isinstance(cache, SurrogateCache)
    assert cache.nbytes()["tables"] == 4 * layers * heads * (hidden + 1)


def test_a_prompt_within_the_budget_is_kept_whole() -> None:
    compressor = KVzap(METHODS[0][1], examples.calibration(METHODS[0]))
    cache = compressor.compress(examples.prefill(tiny.token_ids(30), compressor), seed=0)
    assert positions_of(cache).tolist() == [[list(range(30))] * 2] * 2


def test_the_fit_beats_chance_on_the_scores_that_it_learned() -> None:
    """Rank correlation with either target's own scores on a new prompt of the small model, higher than the other's."""
    found = {}
    for method in (METHODS[0], PLUS):
        compressor = KVzap(method[1], examples.calibration(method))
        prefill = examples.prefill(tiny.token_ids(PROMPT, seed=9), compressor)
        guess = prefill.statistic(compressor._wanted)[..., 4:]
        for weighted in (False, True):
            truth = reconstruction_scores(prefill, KVzipOptions(weighted=weighted))[..., 4:]
            found[method[1].targets, weighted] = float(rank_correlation(truth, guess).mean())
    assert found["kvzip", False] > max(0.2, found["kvzip+", False])
    assert found["kvzip+", True] > max(0.2, found["kvzip", True])


def test_only_weighted_targets_ask_for_a_calibration_of_their_own() -> None:
    """The key of calibrations made before there were targets must stay what it was."""
    needs = [KVzap.calibration_need(options) for _, options in (METHODS[0], PLUS)]

    assert [dict(need.settings) for need in needs if need is not None] == [
        {"surrogate": "linear"},
        {"surrogate": "linear", "targets": "kvzip+"},
    ]


def test_rank_correlation() -> None:
    x = torch.tensor([1.0, 5.0, 2.0, 9.0])
    assert float(rank_correlation(x, x.exp())) == pytest.approx(1)
    assert float(rank_correlation(x, -x)) == pytest.approx(-1)
    assert float(rank_correlation(x, torch.tensor([5.0, 1.0, 2.0, 9.0]))) == pytest.approx(0.2)


def test_kept_share() -> None:
    scores = torch.tensor([[1.0, 2.0, 3.0, 4.0]]).log()
    assert float(kept_share(scores, scores, 0.5)) == pytest.approx(0.7)
    assert float(kept_share(scores, -scores, 0.5)) == pytest.approx(0.3)


def test_ridge_and_mlp_find_what_there_is() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((3000, 12), generator=generator) * 3 + 1
    weight = torch.randn((2, 12), generator=generator)
    linear = x @ weight.mT + 5
    bent = (x[:, :1] * x[:, 1:2]).tanh() * 4

    torch.testing.assert_close(surrogate(ridge(x, linear), x), linear.mT, atol=0.1, rtol=0.01)
    for fit, above, below in ((ridge, 0.8, None), (mlp, None, 0.6)):
        left = (surrogate(fit(x, bent), x) - bent.mT).square().mean() / bent.var()
        assert above is None or left > above
        assert below is None or left < below


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"window": -1}, "window is -1"), ({"sinks": -1}, "sinks is -1"), ({"factor": 1.0}, "factor is 1")],
)
def test_options_out_of_range(options: dict[str, float], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        KVzapOptions(**options)  # type: ignore[arg-type]
