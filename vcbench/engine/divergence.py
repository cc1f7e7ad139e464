"""How far a lossy cache's next-token distribution is from full KV's, along full KV's own output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vcbench.engine.cache import KVCache
from vcbench.engine.cells import Compress, Prefilled, seed_of
from vcbench.engine.decoder import Block, Decoder
from vcbench.metrics.divergence import kl_per_step, top1_agreement

REFERENCE_ROWS = 64
"""Steps whose full-KV logits are held at a time."""


@dataclass(slots=True)
class Divergence:
    """KL(full || lossy) in nats and whether both agree on the next token, for each step after the first.

    The first token is left out: it comes from the prefill, which both share. None where logits are not finite.
    """

    kl: list[float | None] = field(default_factory=list)
    top1_agree: list[bool] = field(default_factory=list)


def measure_divergence(
    decoder: Decoder,
    compressor: Compress,
    batch: Sequence[Prefilled],
    outputs: Mapping[str, Sequence[int]],
    *,
    seed: int,
) -> dict[str, Divergence]:
    """Teacher-forces each request's full-KV output through both caches. Snapshots are left as found.

    Cost: one forward pass over the output for the full cache and, for the draft cache, one for each `horizon` of tokens
    after which it would compress.
    """
    result = {item.request.id: Divergence() for item in batch}
    drafts = {item.request.id: compressor.compress(item.prefill, seed=seed_of(seed, item.request.id)) for item in batch}
    fulls = {item.request.id: item.prefill.cache for item in batch}
    steps = max((len(outputs[key]) - 1 for key in fulls), default=0)
    for start in range(0, steps, REFERENCE_ROWS):
        parts = {key: list(outputs[key][start:-1][:REFERENCE_ROWS]) for key in fulls}
        parts = {key: ids for key, ids in parts.items() if ids}
        logits = decoder.forward([Block(fulls[key], ids) for key, ids in parts.items()]).cpu().numpy()
        reference, row = {}, 0
        for key, ids in parts.items():
            fulls[key].commit(len(ids))
            reference[key] = logits[row : row + len(ids)]
            row += len(ids)
        for key, first, lossy in _lossy_rows(decoder, drafts, parts):
            expected = reference[key][first : first + len(lossy)]
            result[key].kl += [None if np.isnan(value) else float(value) for value in kl_per_step(expected, lossy)]
            result[key].top1_agree += top1_agreement(expected, lossy).tolist()
    for item in batch:
        item.prefill.cache.rewind(len(item.request.prompt_ids))
    return result


def _lossy_rows(
    decoder: Decoder, drafts: Mapping[str, KVCache], parts: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, int, NDArray[np.float32]]]:
    """(request, index of its first row in the part, logits) until every part has been forced through."""
    done = dict.fromkeys(parts, 0)
    while going := [key for key, ids in parts.items() if done[key] < len(ids)]:
        pieces = {key: parts[key][done[key] : done[key] + drafts[key].horizon()] for key in going}
        logits = decoder.forward([Block(drafts[key], ids) for key, ids in pieces.items()]).cpu().numpy()
        row = 0
        for key, ids in pieces.items():
            drafts[key].commit(len(ids))
            yield key, done[key], logits[row : row + len(ids)]
            row += len(ids)
            done[key] += len(ids)
