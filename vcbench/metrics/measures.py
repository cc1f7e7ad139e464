"""Every figure of a cell that `compare`, `check --fail-on`, `--baseline` and exports share, each defined here once.

A measure has samples, by request or by the requests of a batch, and a function of their sums. Its interval resamples
them (`interval.py`); a speed-up is over batches of the same requests in both arms (`batches.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vcbench.metrics.acceptance import request_problem
from vcbench.metrics.batches import Timed, paired_batches, timed_batches
from vcbench.metrics.bytes import held
from vcbench.metrics.interval import Better, Estimate, Kind, Sums, ValueOf, pooled, quotient
from vcbench.metrics.levels import full_loads
from vcbench.metrics.text import first_divergence, is_looped
from vcbench.records.reader import CellInfo, Run
from vcbench.records.schema import RequestLine

Samples = Mapping[frozenset[str], Sequence[float]]
"""By the requests that a sample is of: one, or those of a batch."""
NEVER = math.inf
"""A break-even length that does not exist."""
EVERY_ARM = ("full", "lossy", "vericache")
OTHERS = ("lossy", "vericache")
DRAFTING = ("vericache",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A figure with its direction. timed: depends on the machine. gated: the arms that `check` holds to thresholds."""

    doc: str
    better: Better
    samples: Callable[[Run, CellInfo, str], Samples]
    kind: Kind = "ratio"
    value: ValueOf = quotient
    timed: bool = False
    gated: tuple[str, ...] = OTHERS

    def estimate(self, run: Run, cell: CellInfo, task: str) -> Estimate | None:
        """The figure with its interval; None where the records do not hold it."""
        return self.of(list(self.samples(run, cell, task).values()))

    def of(self, samples: Sequence[Sequence[float]]) -> Estimate | None:
        """The figure of these samples."""
        return pooled(self.kind, samples, self.value)


def answers(run: Run, cell: CellInfo, task: str) -> dict[str, RequestLine]:
    """The cell's answers that have tokens, ended without error and do not contradict themselves."""
    return {line.request: line for line in run.requests_of(cell, task) if not request_problem(line, cell)}


def _by_request(
    run: Run, cell: CellInfo, task: str, sample: Callable[[RequestLine], Sequence[float] | None]
) -> Samples:
    found = {frozenset([key]): sample(line) for key, line in answers(run, cell, task).items()}
    return {key: values for key, values in found.items() if values is not None}


def _committed(run: Run, cell: CellInfo, task: str, *, unlooped: bool) -> Samples:
    def sample(line: RequestLine) -> Sequence[float] | None:
        if not line.committed or (unlooped and is_looped(line.token_ids)):
            return None
        return float(sum(line.committed)), float(len(line.committed))

    return _by_request(run, cell, task, sample) if cell.arm in DRAFTING else {}


def _full_loads(run: Run, cell: CellInfo, task: str) -> Samples:
    return _by_request(run, cell, task, full_loads) if cell.arm in ("full", *DRAFTING) else {}


def _seconds(run: Run, cell: CellInfo, task: str, *, name: str) -> Samples:
    def sample(line: RequestLine) -> Sequence[float] | None:
        seconds = line.timing.get(name)
        return None if seconds is None else (seconds, 1.0)

    return _by_request(run, cell, task, sample)


def _looped(run: Run, cell: CellInfo, task: str) -> Samples:
    return _by_request(run, cell, task, lambda line: (float(is_looped(line.token_ids)), 1.0))


def _exact(run: Run, cell: CellInfo, task: str) -> Samples:
    baseline = run.baseline(task)
    if baseline is None or cell.arm == "full":
        return {}
    full = answers(run, baseline, task)

    def sample(line: RequestLine) -> Sequence[float] | None:
        other = full.get(line.request)
        return None if other is None else (float(first_divergence(other.token_ids, line.token_ids) is None), 1.0)

    return _by_request(run, cell, task, sample)


def _factor(run: Run, cell: CellInfo, task: str, *, name: str) -> Samples:
    def sample(line: RequestLine) -> Sequence[float] | None:
        found = held(line, "kv_end")
        return None if found is None else (float(found.full), float(getattr(found, name)))

    return _by_request(run, cell, task, sample)


def _kl(run: Run, cell: CellInfo, task: str, *, per_step: bool) -> Samples:
    """Per step: of all known steps. Over an output: of outputs whose steps are all known."""
    found: dict[frozenset[str], Sequence[float]] = {}
    for (line_cell, line_task, request), line in run.divergences.items():
        if (line_cell, line_task) != (cell.id, task) or not line.kl:
            continue
        known = [value for value in line.kl if value is not None]
        if known and (per_step or len(known) == len(line.kl)):
            found[frozenset([request])] = math.fsum(known), float(len(known)) if per_step else 1.0
    return found


def _decode(timed: Timed) -> tuple[float, float] | None:
    return float(timed.tokens), timed.decode_s


def _end_to_end(timed: Timed) -> tuple[float, float] | None:
    """All output tokens, and all the seconds that they took; None where a part of these was not recorded."""
    return None if timed.before_s is None else (float(timed.output_tokens), timed.before_s + timed.decode_s)


Rate = Callable[[Timed], tuple[float, float] | None]


def _rate(run: Run, cell: CellInfo, task: str, *, of: Rate) -> Samples:
    found = {key: of(timed) for key, timed in timed_batches(run, cell, task).items()}
    return {key: values for key, values in found.items() if values is not None}


def _against_full(run: Run, cell: CellInfo, task: str, *, of: Rate) -> Samples:
    found = {}
    for ours, theirs in paired_batches(run, cell, task):
        rates = of(ours), of(theirs)
        if rates[0] is not None and rates[1] is not None:
            found[ours.requests] = (*rates[0], *rates[1])
    return found


def _lengths(run: Run, cell: CellInfo, task: str) -> Samples:
    """For the break-even length: requests, tokens, and of both arms the seconds before decoding and in it."""
    found: dict[frozenset[str], Sequence[float]] = {}
    for ours, theirs in paired_batches(run, cell, task) if cell.arm != "full" else ():
        if ours.before_s is not None and theirs.before_s is not None and ours.tokens > 0 and theirs.tokens > 0:
            arms = ((each.before_s, each.decode_s, float(each.tokens)) for each in (ours, theirs))
            found[ours.requests] = [float(len(ours.requests)), *(float(x or 0.0) for arm in arms for x in arm)]
    return found


def break_even(sums: Sums) -> NDArray[np.float64]:
    """The first output length, in tokens of one request, at which the cell has taken less time than full KV in all.

    With overhead o = what prefill and compression take more for a request, and g = the seconds that a decoded token
    takes less, N - 1 decoded tokens are ahead where g (N - 1) > o. Without g > 0 it is infinity: never.
    """
    requests, before, decode_s, tokens, full_before, full_decode_s, full_tokens = (sums[..., i] for i in range(7))
    with np.errstate(divide="ignore", invalid="ignore"):
        overhead = (before - full_before) / requests
        gain = full_decode_s / full_tokens - decode_s / tokens
        ahead = np.where(overhead < 0, 1.0, np.floor(overhead / gain) + 2.0)
    known = (requests > 0) & (tokens > 0) & (full_tokens > 0)
    return np.where(known, np.where(gain > 0, ahead, NEVER), np.nan)


MEASURES: dict[str, Measure] = {
    "acceptance": Measure(
        doc="tokens committed per round", better="higher", samples=partial(_committed, unlooped=False), gated=DRAFTING
    ),
    "acceptance_unlooped": Measure(
        doc="the same over answers that do not repeat themselves",
        better="higher",
        samples=partial(_committed, unlooped=True),
        gated=DRAFTING,
    ),
    "full_loads": Measure(
        doc="how often the full cache is read for 100 decoded tokens",
        better="lower",
        samples=_full_loads,
        gated=DRAFTING,
    ),
    "speedup": Measure(
        doc="decode tokens/s over full KV's, over batches of the same requests",
        better="higher",
        samples=partial(_against_full, of=_decode),
        timed=True,
        gated=DRAFTING,
    ),
    "tokens_per_s": Measure(
        doc="decode tokens/s", better="higher", samples=partial(_rate, of=_decode), timed=True, gated=DRAFTING
    ),
    "end_to_end_speedup": Measure(
        doc="end-to-end tokens/s over full KV's, over batches of the same requests",
        better="higher",
        samples=partial(_against_full, of=_end_to_end),
        timed=True,
        gated=DRAFTING,
    ),
    "end_to_end_tokens_per_s": Measure(
        doc="output tokens over the seconds of prefill, compression and decoding",
        better="higher",
        samples=partial(_rate, of=_end_to_end),
        timed=True,
        gated=DRAFTING,
    ),
    "break_even": Measure(
        doc="output tokens from which the cell is ahead of full KV, prefill and compression included",
        better="lower",
        samples=_lengths,
        value=break_even,
        timed=True,
        gated=DRAFTING,
    ),
    "prefill_s": Measure(
        doc="seconds of a request's prefill, as the cell would need it by itself",
        better="lower",
        samples=partial(_seconds, name="prefill_s"),
        timed=True,
    ),
    "compress_s": Measure(
        doc="seconds of a request's compression",
        better="lower",
        samples=partial(_seconds, name="compress_s"),
        timed=True,
    ),
    "ttft_s": Measure(
        doc="seconds of a request's prefill and compression up to its first token",
        better="lower",
        samples=partial(_seconds, name="ttft_s"),
        timed=True,
    ),
    "kl": Measure(doc="KL(full || cell) per step in nats", better="lower", samples=partial(_kl, per_step=True)),
    "kl_end": Measure(
        doc="KL(full || cell) summed over an output, in nats", better="lower", samples=partial(_kl, per_step=False)
    ),
    "exact": Measure(doc="share of outputs equal to full KV's", better="higher", samples=_exact, kind="share"),
    "looped": Measure(doc="share of outputs that repeat themselves", better="lower", samples=_looped, kind="share"),
    "fast_factor": Measure(
        doc="full KV's bytes over those that must be in memory to draft, at the end",
        better="higher",
        samples=partial(_factor, name="fast"),
    ),
    "held_factor": Measure(
        doc="full KV's bytes over all that is held, the full copy included, at the end",
        better="higher",
        samples=partial(_factor, name="total"),
    ),
}


def samples_of(name: str, run: Run, cell: CellInfo, task: str) -> Samples:
    """What `check` looks at: the samples of a measure, none in an arm that it does not hold to thresholds."""
    measure = MEASURES[name]
    return measure.samples(run, cell, task) if cell.arm in measure.gated else {}
