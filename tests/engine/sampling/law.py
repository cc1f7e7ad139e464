"""The law of a selector's draws, written from its own steps: what its draws are held against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vcbench.engine.sampling.selector import Selector


def law(selector: Selector, logits: NDArray[Any], output: Sequence[int], position: int) -> NDArray[np.float64]:
    """The probability of each token, [V], under `choose` with random noise."""
    scores = selector._processed(logits, output, position)
    result = np.zeros_like(scores)
    if selector.sampling.temperature == 0:
        result[np.argmax(scores)] = 1
        return result
    scores, ids = selector._drawable(scores)
    weights = np.exp(scores)
    result[ids] = weights / weights.sum()
    return result
