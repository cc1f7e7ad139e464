"""Running cells on the small model: batches prefilled once with all that any method asks for, as a run does it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from tests.compressors.examples import every_method, make
from tests.engine import tiny
from vcbench.compressors.base import Compressor
from vcbench.config.schema import Arm, DraftLength
from vcbench.engine.decoding.session import CellSetup, Compress, Prefilled, run_cell
from vcbench.engine.model.decoder import Decoder
from vcbench.engine.types import Generation, Request

METHODS = every_method()
MAX_TOKENS = 26
BATCHES = {"one": ((60,), MAX_TOKENS), "ragged": ((1, 37, 130), MAX_TOKENS), "short": ((1, 70), 10)}
"""Lengths of prompts, and how many tokens are decoded."""


def compressors() -> list[Compressor[Any]]:
    """A compressor of each method."""
    return [make(method) for method in METHODS.values()]


def request(prompt: Sequence[int], key: str = "r", max_tokens: int = MAX_TOKENS, **stops: Any) -> Request:
    """A request for a prompt."""
    return Request(id=key, prompt_ids=tuple(prompt), max_tokens=max_tokens, **stops)


def prefilled(wanted: Request, decoder: Decoder | None = None) -> Prefilled:
    """The request's snapshot, good for every method; on another decoder, for those that need no calibration."""
    decoder = decoder or tiny.decoder()
    known = decoder is tiny.decoder()
    everyone = [one for one in compressors() if known or one.calibration_need(one.options) is None]
    prefill = decoder.prefill(
        wanted.prompt_ids,
        chunk=64,
        query_window=max(compressor.query_window for compressor in everyone),
        statistics=list(dict.fromkeys(wanted for compressor in everyone for wanted in compressor.statistics)),
    )
    return Prefilled(wanted, prefill)


@cache
def batch(name: str, decoder: Decoder) -> tuple[Prefilled, ...]:
    """One of `BATCHES`, shared by the tests: cells leave snapshots as found."""
    lengths, cap = BATCHES[name]
    return tuple(prefilled(request(tiny.token_ids(n, seed=n), str(n), cap), decoder) for n in lengths)


@cache
def full_outputs(name: str, decoder: Decoder) -> tuple[Generation, ...]:
    """What full KV gives for a batch, one request at a time."""
    return tuple(decode([item], decoder=decoder)[0] for item in batch(name, decoder))


def decode(
    items: Sequence[Prefilled],
    arm: Arm = "full",
    compressor: Compress | None = None,
    draft_length: DraftLength = 0,
    *,
    decoder: Decoder | None = None,
) -> list[Generation]:
    """The generations of a cell, in the batch's order."""
    ended: dict[str, Generation] = {}
    setup = CellSetup(arm=arm, compressor=compressor, draft_length=draft_length, seed=11)
    run_cell(decoder or tiny.decoder(), setup, items, on_end=lambda done: ended.__setitem__(done.request_id, done))
    return [ended[item.request.id] for item in items]


def check_same(ours: Generation, full: Generation) -> None:
    """Bit for bit the same output, and counters that add up."""
    assert ours.token_ids == full.token_ids
    assert ours.logits_sha256 == full.logits_sha256
    assert ours.finish_reason == full.finish_reason
    assert ours.error == full.error
    assert len(ours.token_ids) == 1 + sum(done.committed for done in ours.rounds)
