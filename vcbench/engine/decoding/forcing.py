"""Teacher forcing: tokens that are given run through caches, and what the model says after each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from vcbench.engine.kv.cache import KVCache
from vcbench.engine.model.decoder import Block, Decoder

ALL = 1 << 30


@dataclass(frozen=True, slots=True)
class Forced:
    """One cache's rows of one pass: the logits after its tokens `first`, `first` + 1, ...

    logits: [n, V], float32, on the decoder's device.
    """

    key: str
    first: int
    logits: Tensor


def force(
    decoder: Decoder,
    caches: Mapping[str, KVCache],
    tokens: Mapping[str, Sequence[int]],
    *,
    rows: int = ALL,
    past_horizon: bool = False,
) -> Iterator[Forced]:
    """Runs each cache's tokens through it, all caches together, and commits them pass by pass, before they are shown.

    A pass takes at most `rows` tokens of each cache and ends at its `horizon`, so that every row is what decoding one
    token at a time would give; `past_horizon` says that blocks of `rows` are wanted whole, whatever a cache compresses.
    Who stops early finds the caches as the last pass shown left them.
    """
    done = dict.fromkeys(tokens, 0)
    while going := [key for key, ids in tokens.items() if done[key] < len(ids)]:
        pieces = {}
        for key in going:
            count = rows if past_horizon else min(rows, caches[key].horizon())
            pieces[key] = tokens[key][done[key] : done[key] + count]
        logits = decoder.forward([Block(caches[key], ids) for key, ids in pieces.items()])
        parts = logits.split([len(ids) for ids in pieces.values()])
        for key, ids in pieces.items():
            caches[key].commit(len(ids))
        for (key, ids), part in zip(pieces.items(), parts, strict=True):
            yield Forced(key, done[key], part)
            done[key] += len(ids)
