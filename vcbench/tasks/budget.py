"""Keeps prompts within a budget of tokens by leaving out the middle of their document, never the prompt's end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vcbench.tasks.base import Exclusion

SLACK_TOKENS = 16
"""A cut prompt may stay this far below its budget, which saves most of the tokenizer's work."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A prompt within its budget, and how many of the document's lines it has left."""

    ids: tuple[int, ...]
    document: str
    kept_lines: int
    lines: int


def fit(
    document: str,
    render: Callable[[str], Sequence[int]],
    limit: int | None,
    *,
    keep: Callable[[str], bool] = lambda line: False,
) -> Fitted | int:
    """The prompt with as many lines from the document's two ends as fit into `limit` tokens; if none fit, the number of
    tokens without them.

    Args:
        render: token ids of the whole prompt around a document; all but the document must stay the same.
        limit: tokens, all of the prompt counted; None for no limit.
        keep: lines that stay where the rest around them goes, such as the headings of files.

    Cost: about five calls of `render` for a document that is too long, one for any other.
    """
    lines = document.splitlines(keepends=True)
    ids = render(document)
    if limit is None or len(ids) <= limit:
        return Fitted(tuple(ids), document, len(lines), len(lines))
    best = _cut(lines, 0, keep)
    best_ids = render(best[0])
    if len(best_ids) > limit:
        return len(best_ids)
    low, low_tokens, high, high_tokens = 0, len(best_ids), len(lines), len(ids)
    halve = False
    while high - low > 1 and limit - low_tokens > SLACK_TOKENS:
        share = 0.5 if halve else (limit - low_tokens) / (high_tokens - low_tokens)
        guess = min(max(low + int(share * (high - low)), low + 1), high - 1)
        tried = _cut(lines, guess, keep)
        tried_ids = render(tried[0])
        # Interpolation can creep; every second step that moves little becomes a bisection.
        width = high - low
        if len(tried_ids) <= limit:
            low, low_tokens, best, best_ids = guess, len(tried_ids), tried, tried_ids
        else:
            high, high_tokens = guess, len(tried_ids)
        halve = not halve and high - low > width // 2
    return Fitted(tuple(best_ids), best[0], best[1], len(lines))


def over(name: str, tokens: int, limit: float | None) -> Exclusion | None:
    """The exclusion of a prompt over its limit that cannot be shortened; None of one within it."""
    if limit is None or tokens <= limit:
        return None
    return Exclusion(id=name, reason=f"{tokens} tokens exceed the limit of {limit:.0f}")


def too_long(name: str, tokens: int, limit: int) -> Exclusion:
    """The exclusion of a prompt that stays over its limit without a line of its document."""
    return Exclusion(id=name, reason=f"{tokens} tokens even without its document exceed the limit of {limit}")


def _cut(lines: Sequence[str], count: int, keep: Callable[[str], bool]) -> tuple[str, int]:
    """The first and last lines, `count` in all and the first half the larger, with a note of what was left out."""
    head, tail = count - count // 2, count // 2
    middle = lines[head : len(lines) - tail]
    kept: list[str] = []
    left_out = 0
    for line in (*middle, None):
        if line is None or keep(line):
            if left_out:
                kept.append(f"[{left_out} lines left out]\n")
            left_out = 0
            if line is not None:
                kept.append(line)
        else:
            left_out += 1
    stayed = count + sum(keep(line) for line in middle)
    return "".join([*lines[:head], *kept, *lines[len(lines) - tail :]]), stayed
