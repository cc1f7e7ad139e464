"""How much of what was drafted was kept: per round, and by position in the draft."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from vcbench.records.reader import CellInfo
from vcbench.records.schema import RequestLine

ENDS = ("stop", "length")
"""Why an answer may end."""

QUANTILES = (10, 50, 90)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """The rounds of some requests: parallel lists, one entry a round."""

    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    committed: tuple[int, ...]

    @classmethod
    def of(cls, lines: Iterable[RequestLine]) -> Rounds:
        """All rounds of the requests, but for those of which they cannot be."""
        kept = [line for line in lines if not round_problem(line)]
        return cls(
            drafted=tuple(value for line in kept for value in line.drafted),
            accepted=tuple(value for line in kept for value in line.accepted),
            committed=tuple(value for line in kept for value in line.committed),
        )

    def judged(self) -> list[tuple[int, int]]:
        """(drafted, accepted) of each round, less the positions that a stop or the cap cut off.

        A round that commits fewer than accepted + 1 tokens ended the output inside the draft: what lies beyond was
        neither accepted nor rejected.
        """
        rounds = zip(self.drafted, self.accepted, self.committed, strict=True)
        return [(d, a) if c > a else (c, c) for d, a, c in rounds]


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Of the drafts that reached this position (from 1) and were judged there, how many were accepted there."""

    position: int
    drafted: int
    accepted: int

    @property
    def rate(self) -> float | None:
        """accepted / drafted, the share of all rounds that drafted this far."""
        return self.accepted / self.drafted if self.drafted else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Acceptance over all rounds of a cell. `histogram[c]` counts the rounds that committed c tokens."""

    rounds: int
    drafted: int
    accepted: int
    committed: int
    histogram: tuple[int, ...]
    quantiles: tuple[float, ...]
    by_position: tuple[Position, ...]

    @property
    def rate(self) -> float | None:
        """Accepted per drafted token."""
        return self.accepted / self.drafted if self.drafted else None


def acceptance(rounds: Rounds) -> Acceptance:
    """The figures of these rounds; `accepted` counts only tokens that entered an output (never past a stop)."""
    judged = rounds.judged()
    counts = Counter(rounds.committed)
    longest = max((drafted for drafted, _ in judged), default=0)
    return Acceptance(
        rounds=len(judged),
        drafted=sum(rounds.drafted),
        accepted=sum(accepted for _, accepted in judged),
        committed=sum(rounds.committed),
        histogram=tuple(counts[size] for size in range(max(counts, default=-1) + 1)),
        quantiles=tuple(map(float, np.percentile(rounds.committed, QUANTILES))) if judged else (),
        by_position=tuple(_position(judged, number) for number in range(1, longest + 1)),
    )


def request_problem(line: RequestLine, cell: CellInfo) -> str:
    """Why a request's line is no answer, or what in it contradicts itself or its cell; empty for a sound one.

    The one place where a line's identities are held, for the gate and for every table.
    """
    if line.error is not None or line.finish_reason == "error":
        return line.error or "finish reason is error"
    if not line.token_ids:
        return "no tokens"
    if line.finish_reason not in ENDS:
        return f"finish reason {line.finish_reason!r} is none of {', '.join(ENDS)}"
    if line.thinking_tokens is not None and not 0 <= line.thinking_tokens <= len(line.token_ids):
        return f"{line.thinking_tokens} tokens of thoughts, but {len(line.token_ids)} in the output"
    if cell.arm != "vericache":
        return "rounds of a cell that does not draft" if line.drafted or line.accepted or line.committed else ""
    longest = cell.longest_draft
    too_long = [count for count in line.drafted if longest is not None and count > longest]
    return round_problem(line) or (
        f"a round drafts {too_long[0]} tokens, its cell at most {longest}" if too_long else ""
    )


def round_problem(line: RequestLine) -> str:
    """What contradicts itself in the rounds of a `vericache` request; empty if nothing does.

    The first token comes from prefill and every other one from a round, so 1 + committed = output length.
    """
    if line.error is not None:
        return ""
    drafted, accepted, committed = line.drafted, line.accepted, line.committed
    if not len(drafted) == len(accepted) == len(committed):
        return f"{len(drafted)} drafts, {len(accepted)} acceptances and {len(committed)} commits are not one per round"
    for number, (d, a, c) in enumerate(zip(drafted, accepted, committed, strict=True), start=1):
        if not (0 <= a <= d and 1 <= c <= a + 1):
            return f"round {number} cannot be: {d} drafted, {a} accepted, {c} committed"
    output = len(line.token_ids)
    if (output or committed) and 1 + sum(committed) != output:
        return f"1 + {sum(committed)} tokens committed over {len(committed)} rounds, but {output} in the output"
    return ""


def _position(judged: Sequence[tuple[int, int]], number: int) -> Position:
    return Position(
        position=number,
        drafted=sum(drafted >= number for drafted, _ in judged),
        accepted=sum(accepted >= number for _, accepted in judged),
    )
