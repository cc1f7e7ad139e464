"""Keys, values and the loss's gradients at them are those of transformers, on every kind of layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.model import families
from tests.engine.model.families import CASES
from vcbench.calibration.gradients import Sensitivity, feed_forward, key_value_gradients
from vcbench.engine.model.mlp import FeedForward

NAMES = ("llama-head20-bias-tied", "mistral-mha-yarn", "qwen3-head64-bias-yarn", "qwen3-moe-normalised")
TOKENS = 30


def keep(target: dict[str, Tensor], name: str) -> Callable[[Any, Any, Tensor], None]:
    """A forward hook that remembers an output and wants its gradient."""

    def hook(module: Any, inputs: Any, output: Tensor) -> None:
        output.retain_grad()
        target[name] = output

    return hook


@pytest.mark.parametrize("case", [case for case in CASES if case.name in NAMES], ids=lambda case: str(case.name))
def test_gradients_equal_those_of_transformers(case: families.Case, tmp_path: Path) -> None:
    model = families.save_model(case, tmp_path).requires_grad_(True)
    ids = list(families.token_ids(TOKENS))
    seen: dict[str, Tensor] = {}
    layers = model.model.layers
    for index, layer in enumerate(layers):
        attention = layer.self_attn
        attention.v_proj.register_forward_hook(keep(seen, f"v{index}"))
        getattr(attention, "k_norm", attention.k_proj).register_forward_hook(keep(seen, f"k{index}"))
    logits = model(torch.tensor([ids])).logits[0]
    loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="sum")
    loss.backward()

    decoder = families.load(tmp_path)
    found: list[Sensitivity] = []
    mean = key_value_gradients(decoder, ids, found.append)

    assert mean * (TOKENS - 1) == pytest.approx(loss.item(), rel=1e-5)
    assert [item.layer for item in found] == list(reversed(range(len(layers))))
    for item in found:
        for ours, gradient, name in (
            (item.keys, item.key_gradients, f"k{item.layer}"),
            (item.values, item.value_gradients, f"v{item.layer}"),
        ):
            theirs = seen[name].grad
            assert theirs is not None
            torch.testing.assert_close(ours, seen[name].detach().view(ours.shape), atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(gradient, theirs.view(ours.shape), atol=1e-4, rtol=1e-3)


def test_an_unknown_feed_forward_part_is_refused() -> None:
    class Other(FeedForward):
        def __call__(self, x: Tensor) -> Tensor:
            return x

        def linears(self) -> list[Any]:
            return []

    with pytest.raises(TypeError, match="no gradient is known for Other"):
        feed_forward(Other(), torch.zeros(1, 2))
