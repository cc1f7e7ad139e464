"""Noise for sampling: words that depend on seed, request and position alone, and on no state.

Source: Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011): Philox; numpy keeps its stream stable.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]


class Noise:
    """The noise of one request: for each position as many 64-bit words as the vocabulary has tokens.

    The key is the head of SHA-256 over "sampling:SEED:REQUEST"; the counter begins at [0, position, 0, 0].
    """

    def __init__(self, seed: int, request_id: str) -> None:
        digest = hashlib.sha256(f"sampling:{seed}:{request_id}".encode("utf-8", "surrogatepass")).digest()
        self._key = np.frombuffer(digest[:16], "<u8").astype(np.uint64)

    def words(self, position: int, count: int) -> Words:
        """Words of tokens 0 .. count - 1 at a position. A token's word does not depend on `count`."""
        return np.random.Philox(key=self._key, counter=[0, position, 0, 0]).random_raw(count)
