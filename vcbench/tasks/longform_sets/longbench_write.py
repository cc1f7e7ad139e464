"""LongBench-Write: pieces of a required number of words, scored by how near they come to it.

Source: Bai et al., LongWriter, arXiv 2408.07055, section 2. Its second score, of quality, needs a judge model and is
not given here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vcbench.tasks.base import Metric, Ratio, Value
from vcbench.tasks.longform_sets.item import Item
from vcbench.tasks.rows import Row

TOO_LONG_BY = 3
TOO_SHORT_BY = 2


@dataclass(frozen=True, slots=True)
class LongBenchWrite:
    """Rows of {prompt, length, type}."""

    metrics: tuple[Metric, ...] = (
        Metric(
            name="length_score",
            summary="S_l of LongWriter, 0 to 100: 100 at the required length",
            kind="mean",
            headline=True,
        ),
        Metric(name="words", summary="words of the answer", kind="mean", better="neither"),
        Metric(name="words_ratio", summary="words written over words required", kind="ratio", better="neither"),
    )

    def item(self, row: Row) -> Item:
        """The prompt as it stands."""
        length = row.value("length")
        if type(length) is not int or length < 1:
            row.refuse("field `length` must be a whole number of words, at least 1")
        kind = row.text("type") if row.has("type") else None
        return Item(content=row.text("prompt"), target={"length": length}, meta={"type": kind, "length": length})

    def score(self, target: Mapping[str, Any], answer: str, reference: str | None) -> Mapping[str, Value]:
        """The length score and what it comes from."""
        words = count_words(answer)
        return {
            "length_score": length_score(required=target["length"], words=words),
            "words": float(words),
            "words_ratio": Ratio(words, target["length"]),
        }


def length_score(*, required: int, words: int) -> float:
    """0 to 100: falls to 0 at four times the required length and at a third of it; 0 words score 0."""
    if words == 0:
        return 0.0
    if words > required:
        return 100 * max(0.0, 1 - (words / required - 1) / TOO_LONG_BY)
    return 100 * max(0.0, 1 - (required / words - 1) / TOO_SHORT_BY)


def count_words(text: str) -> int:
    """CJK characters and runs of Latin letters, as LongWriter counts them.

    A run that touches another word character, such as a digit or a CJK character, does not count.
    """
    return len(re.findall(r"[\u4e00-\u9fff]", text)) + len(re.findall(r"\b[a-zA-Z]+\b", text))
