"""What each level of a cell did: how much it drafted, how much of that was kept, how often the model ran over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vcbench.records.schema import RequestLine


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelFigures:
    """One level over some requests; `rounds` are its drafts, empty ones included, judged by the level above."""

    name: str
    rounds: int
    drafted: int
    accepted: int
    passes: int

    @property
    def rate(self) -> float | None:
        """Accepted per drafted token."""
        return self.accepted / self.drafted if self.drafted else None


def level_figures(lines: Sequence[RequestLine]) -> tuple[LevelFigures, ...]:
    """The levels' figures, the lowest first and the full cache last; empty for records without levels."""
    if not lines or any(len(line.levels) != len(lines[0].levels) for line in lines):
        return ()
    return tuple(
        LevelFigures(
            name=str(each[0]["name"]),
            rounds=sum(len(level["drafted"]) for level in each),
            drafted=sum(sum(level["drafted"]) for level in each),
            accepted=sum(sum(level["accepted"]) for level in each),
            passes=sum(level["passes"] for level in each),
        )
        for each in zip(*(line.levels for line in lines), strict=True)
    )


def full_loads(line: RequestLine) -> tuple[float, float] | None:
    """How often a request read the full cache, for 100 tokens, and its decoded tokens; None where nobody recorded it.

    Decoding one token at a time reads it 100 times for 100 tokens. The first token is the prefill's and not counted.
    """
    if not line.levels or len(line.token_ids) < 2:
        return None
    return 100.0 * line.levels[-1]["passes"], float(len(line.token_ids) - 1)


def level_problem(line: RequestLine) -> str:
    """What contradicts itself in the levels of a `vericache` request; empty if nothing does, or none are recorded."""
    if not line.levels:
        return ""
    for level in line.levels:
        drafted, accepted = level["drafted"], level["accepted"]
        fits = len(drafted) == len(accepted) and all(0 <= a <= d for d, a in zip(drafted, accepted, strict=True))
        if not fits:
            return f"level {level['name']}: {accepted} accepted of {drafted} drafted tokens cannot be"
    *below, full = line.levels
    if below and (below[-1]["drafted"] != line.drafted or below[-1]["accepted"] != line.accepted):
        return f"level {below[-1]['name']} drafted for the full cache, but its drafts are not those of the rounds"
    if full["passes"] != len(line.committed):
        return f"the full cache was read {full['passes']} times in {len(line.committed)} rounds"
    held = {str(level["name"]): level["tokens"] for level in line.levels if level["tokens"] is not None}
    if len(set(held.values())) > 1:
        return f"levels end with different numbers of tokens: {', '.join(f'{n} {name}' for name, n in held.items())}"
    return ""
