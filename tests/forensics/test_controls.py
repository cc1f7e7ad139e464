"""The control ladder on the tiny model: the rung that reproduces a fork names its cause, and the replay works."""

from __future__ import annotations

import io
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor
from typer.testing import CliRunner

from tests.lossless.conftest import TinyRuns
from vcbench.cli.main import app
from vcbench.config.schema import Arm
from vcbench.engine.decoding.levels import CacheLevel
from vcbench.engine.decoding.session import PARTS, Parts
from vcbench.engine.kv.cache import FullCache, KVCache
from vcbench.engine.kv.kept import KeptCache
from vcbench.engine.model.decoder import Block, Decoder
from vcbench.errors import RecordError
from vcbench.forensics.controls import run_controls
from vcbench.forensics.faulty import Engine
from vcbench.forensics.replay import Replay
from vcbench.forensics.tiny import CELLS, tiny_config
from vcbench.lossless.cards import Card, card_lines
from vcbench.lossless.check import check_loaded
from vcbench.records.reader import Run, load_run
from vcbench.runners.run import execute
from vcbench.runners.setup import load

RUNGS = [
    "reference repeated",
    "reference at another batch size",
    "scored at width 7 with no drafter",
    "cold against warm",
    "the cell without drafts and compression",
    "draft and verify with compression off",
    "float32 in both arms",
]


def first_card(run: Run) -> Card:
    found = check_loaded(run)
    return run_controls(replace(found, cards=found.cards[:1]), run).cards[0]


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("position_from_kept_length", "compression leaking into verification"),
        ("compressed_cache_in_verify", "compression leaking into verification"),
        ("no_rollback_of_last_draft", "draft-verify logic"),
        ("eos_only_checked_at_block_end", "draft-verify logic"),
        ("cap_before_stop", "draft-verify logic"),
        ("penalty_ignores_same_round", "draft-verify logic"),
        ("nan_accepts_all", "draft-verify logic"),
        ("wrong_model_records", "other weights or settings"),
    ],
)
def test_the_cause_is_named(tiny_runs: TinyRuns, tiny_place: Path, fault: str, cause: str) -> None:
    card = first_card(tiny_runs(fault))
    assert card.cause == cause
    assert [control.name for control in card.controls] == RUNGS
    reproducing = [control for control in card.controls if control.reproduces]
    assert [control.cause for control in reproducing] == [cause]


def test_a_card_has_the_logits_of_both_arms(tiny_runs: TinyRuns, tiny_place: Path) -> None:
    card = first_card(tiny_runs("no_rollback_of_last_draft"))
    for own, other in ((card.reference, card.method), (card.method, card.reference)):
        assert own.top[0].id == own.token
        assert own.gap is not None
        assert own.gap > 0
        assert own.gap_steps is not None
        assert own.gap_steps > 0
        assert own.token != other.token
        assert own.text
    assert card.dtype == "float32"
    place = card.position
    assert place.verify_width == (place.drafted or 0) + 1
    text = "\n".join(card_lines(card))
    for part in ("offset", "round", "top 5:", "steps of float32", "control reference repeated", "cause:", "replay:"):
        assert part in text


def test_the_replay_command_works(tiny_runs: TinyRuns, tiny_place: Path) -> None:
    tiny_runs("no_rollback_of_last_draft")
    run = CliRunner().invoke(app, ["check", "runs/tiny-no_rollback_of_last_draft"], catch_exceptions=False)
    assert run.exit_code == 1
    command = next(line for line in run.stdout.splitlines() if line.startswith("  replay: "))
    words = shlex.split(command.removeprefix("  replay: "))
    assert words[0] == "vcbench"
    again = CliRunner().invoke(app, words[1:], catch_exceptions=False)
    assert again.exit_code == 1
    assert "cause: draft-verify logic" in again.stdout
    assert "NOT bitwise lossless: 0 of 1 request " in again.stdout


def test_a_run_without_forks_needs_no_model(tiny_runs: TinyRuns) -> None:
    result = check_loaded(tiny_runs(None))
    assert run_controls(result, tiny_runs(None)) is result


def test_other_weights_than_the_records_are_refused(tiny_runs: TinyRuns, tiny_place: Path) -> None:
    run = tiny_runs("drop_last_request")
    forked = check_loaded(tiny_runs("no_rollback_of_last_draft"))
    run.provenance["model"]["weights_sha256"] = "0"
    with pytest.raises(RecordError, match="was made with other weights"):
        run_controls(forked, run)


class Noisy(Decoder):
    """A decoder whose logits depend on something that they must not depend on."""

    def __init__(self, decoder: Decoder, kind: str) -> None:
        self.__dict__.update(decoder.__dict__)
        self.kind, self.calls = kind, 0

    def forward(self, blocks: Sequence[Block]) -> Tensor:
        self.calls += 1
        seed = {
            "width": max(len(block.token_ids) for block in blocks),
            "batch": len(blocks),
            "self": self.calls if len(blocks[0].token_ids) == 1 else 0,
        }[self.kind]
        logits = super().forward(blocks)
        if self.kind == "width" and seed == 1:
            return logits
        return logits + 0.1 * torch.randn(logits.shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("kind", "cause"), [("width", "width kernel"), ("batch", "batch"), ("self", "self-noise")])
def test_noise_of_the_reference_itself_is_told_from_faults(
    kind: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path / "cache"))

    def noisy(*arguments: Any) -> tuple[Decoder, dict[str, int]]:
        decoder, tiles = load(*arguments)
        return Noisy(decoder, kind), tiles

    monkeypatch.setattr("vcbench.runners.run.load", noisy)
    monkeypatch.setattr("vcbench.forensics.replay.load", noisy)
    config = replace(tiny_config("noisy", requests=4, cells=CELLS[:2]), output_dir=str(tmp_path))
    run = load_run(execute(config, console=Console(file=io.StringIO())))
    assert check_loaded(run).outcome == "FAIL"
    assert first_card(run).cause == cause


class Scribbling(CacheLevel):
    """Verifies rightly, and spoils an entry of the prompt that all cells share as soon as it has committed."""

    def commit(self, request_id: str, count: int, verified: FullCache | None) -> None:
        super().commit(request_id, count, verified)
        cache = self.caches[request_id]
        assert isinstance(cache, FullCache)
        for layer in range(cache.shape.n_layers):
            k, v = (x.transpose(0, 1) for x in cache.store.read_range(layer, 20, 140))
            cache.store.write(layer, 20, torch.zeros_like(k), torch.full_like(v, 3.0))


def scribbling(decoder: Decoder, caches: Mapping[str, KVCache], drafter: CacheLevel) -> CacheLevel:
    return Scribbling(decoder, caches)


class SpoilsItsPrefix(Engine):
    """Its drafting cells leave the prompt's snapshot changed; full KV is sound."""

    def parts(self, arm: Arm) -> Parts:
        return replace(PARTS, verifier=scribbling) if arm == "vericache" else PARTS


def test_a_prefix_that_was_spoilt_by_its_use_is_cache_reuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the second batch the method goes first, so that full KV starts from what it has left behind."""
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path / "cache"))
    engine = SpoilsItsPrefix()
    config = replace(tiny_config("spoilt", requests=4, batch_size=2, cells=CELLS[:2]), output_dir=str(tmp_path))
    run = load_run(execute(config, console=Console(file=io.StringIO()), engine=engine))
    found = check_loaded(run)
    assert found.outcome == "FAIL"
    made = Replay.of
    monkeypatch.setattr(Replay, "of", lambda run: replace(made(run), engine=engine))
    cards = run_controls(found, run, limit=None).cards
    assert {card.request for card in cards} & {"r002", "r003"}
    assert {card.cause for card in cards} == {"cache reuse"}


class Rounded(Decoder):
    """Logits with some noise, which depends on the number of rows."""

    def __init__(self, decoder: Decoder) -> None:
        self.__dict__.update(decoder.__dict__)

    def forward(self, blocks: Sequence[Block]) -> Tensor:
        logits = super().forward(blocks)
        return logits + 0.3 * torch.randn(logits.shape, generator=torch.Generator().manual_seed(len(logits)))


def rounding(decoder: Decoder, caches: Mapping[str, KVCache], drafter: CacheLevel) -> CacheLevel:
    """Verifies with noise in bfloat16, and only beside a compressed cache."""
    kept = [c for c in drafter.caches.values() if isinstance(c, KeptCache) and c.kept < c.prompt]
    noisy = decoder.shape.dtype == torch.bfloat16 and bool(kept)
    return CacheLevel(Rounded(decoder) if noisy else decoder, caches)


@pytest.mark.parametrize(
    ("engine", "cause"),
    [
        (Engine("compressed_cache_in_verify"), "compression leaking into verification"),
        (Engine(parts=replace(PARTS, verifier=rounding)), None),
    ],
    ids=["leak", "rounding"],
)
def test_float32_tells_a_leak_from_rounding(
    engine: Engine, cause: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16: a leak is there in float32 too; what only the narrow precision does is not."""
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path / "cache"))
    config = tiny_config("narrow", requests=2, batch_size=2, cells=CELLS[:2])
    config = replace(config, output_dir=str(tmp_path), model=replace(config.model, dtype="bfloat16"))
    run = load_run(execute(config, console=Console(file=io.StringIO()), engine=engine))
    made = Replay.of
    monkeypatch.setattr(Replay, "of", lambda run: replace(made(run), engine=engine))
    card = first_card(run)
    assert (card.dtype, card.cause) == ("bfloat16", cause)
    last = card.controls[-1]
    assert (last.name, last.reproduces) == ("float32 in both arms", cause is not None)


def test_forks_that_were_not_looked_into_are_said(tiny_runs: TinyRuns, tiny_place: Path) -> None:
    run = tiny_runs("no_rollback_of_last_draft")
    found = check_loaded(run)
    one = run_controls(found, run, limit=1)
    cells = len({card.cell for card in found.cards})
    assert f"{len(found.cards) - cells} of {len(found.cards)} forks were not looked into; `--forks 0`" in one.remarks[0]
