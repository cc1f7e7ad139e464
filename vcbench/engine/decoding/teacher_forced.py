"""How far a lossy cache's next-token distribution is from full KV's, along full KV's own output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vcbench.engine.decoding.distributions import compare_steps
from vcbench.engine.decoding.forcing import force
from vcbench.engine.decoding.session import Compress, Prefilled, seed_of
from vcbench.engine.model.decoder import Decoder
from vcbench.records.schema import TOP_TOKENS

REFERENCE_ROWS = 64
"""Steps whose full-KV logits are held at a time."""


Basis = Literal["teacher-forced", "same logits", "verify logits"]
"""teacher-forced: full KV's output forced through the method's cache. same logits: every logit of the method's own
output equals full KV's bit for bit, so that all differences are 0. verify logits: those of the verification itself."""


@dataclass(slots=True)
class Divergence:
    """Both distributions compared at each step after the first; see `distributions.Steps`.

    The first token is left out: it comes from the prefill, which both share. None where logits are not finite.
    """

    kl: list[float | None] = field(default_factory=list)
    top1_agree: list[bool] = field(default_factory=list)
    top5_overlap: list[int] = field(default_factory=list)
    logprob_full: list[float | None] = field(default_factory=list)
    logprob_method: list[float | None] = field(default_factory=list)
    basis: Basis = "teacher-forced"

    def add(self, full: NDArray[np.float32], method: NDArray[np.float32], tokens: Sequence[int]) -> None:
        """Appends steps. full, method: logits [T, V]; tokens: full KV's next token at each, [T]."""
        steps = compare_steps(full, method, tokens)
        self.kl += _known(steps.kl)
        self.top1_agree += steps.top1_agree.tolist()
        self.top5_overlap += steps.top5_overlap.tolist()
        self.logprob_full += _known(steps.logprob_full)
        self.logprob_method += _known(steps.logprob_method)

    def extend(self, other: Divergence) -> None:
        """Appends the steps of another part of the same output."""
        self.kl += other.kl
        self.top1_agree += other.top1_agree
        self.top5_overlap += other.top5_overlap
        self.logprob_full += other.logprob_full
        self.logprob_method += other.logprob_method


def same_logits(steps: int) -> Divergence:
    """The divergence of an output whose logits are full KV's bit for bit; log-probabilities are not known from that."""
    return Divergence(
        kl=[0.0] * steps, top1_agree=[True] * steps, top5_overlap=[TOP_TOKENS] * steps, basis="same logits"
    )


def unknown_steps(steps: int) -> Divergence:
    """Steps at which nothing can be compared."""
    return Divergence(
        kl=[None] * steps, top1_agree=[False] * steps, top5_overlap=[0] * steps, logprob_full=[None] * steps,
        logprob_method=[None] * steps,
    )  # fmt: skip


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
        reference = {rows.key: rows.logits.cpu().numpy() for rows in force(decoder, fulls, parts)}
        for rows in force(decoder, drafts, parts):
            last = rows.first + len(rows.logits)
            following = outputs[rows.key][start + rows.first + 1 : start + last + 1]
            result[rows.key].add(reference[rows.key][rows.first : last], rows.logits.cpu().numpy(), following)
    for item in batch:
        item.prefill.cache.rewind(len(item.request.prompt_ids))
    return result


def _known(values: NDArray[np.float64]) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]
