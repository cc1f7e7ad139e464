"""LongGenBench: a diary, menu, tower or city in dozens of numbered parts, some of which must hold given things.

Source: Wu et al., arXiv 2409.02076. As in upstream's evaluation, numbers of parts are read by `int`, and a constraint
on a part that cannot occur, such as part 53 of 52, is passed over; the prompt's meta says which. The constraint checks
of the paper are a language model's yes or no; here they are words looked up in the part, so both can err and their
figures are not comparable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from vcbench.tasks.base import Metric, Ratio, Value
from vcbench.tasks.longform_sets.item import SAME_AS_FULL, Item
from vcbench.tasks.rows import Row

SEPARATOR = "#*#"
CHECKS = ("once", "range", "periodic")
NEEDED_SHARE = 2 / 3
ENDINGS = ("ing", "ed", "es", "s", "e")
SHORTEST_STEM = 4
STOPWORD = re.compile(
    "a|an|and|are|as|at|be|by|every|featuring|for|from|has|have|in|is|it|its|my|of|on|or|our|that|the|their|this|to|use|"
    "various|was|were|with|your|yourself"
)


@dataclass(frozen=True, slots=True)
class LongGenBench:
    """Rows of {prompt, prefix, type, number, checks_once, checks_range, checks_periodic}."""

    metrics: tuple[Metric, ...] = (
        Metric(
            name="completion_rate",
            summary="parts 1 to `number` that the answer has, in percent",
            kind="mean",
            headline=True,
        ),
        Metric(name="constraints", summary="constraints met, of all", kind="ratio"),
        Metric(name="constraints_in_found", summary="constraints met, of those whose part is there", kind="ratio"),
        *(
            Metric(name=f"constraints_{kind}", summary=f"the `{kind}` ones met, of all", kind="ratio")
            for kind in CHECKS
        ),
        SAME_AS_FULL,
    )

    def item(self, row: Row) -> Item:
        """The prompt as it stands: it ends with the prefix, which the answer goes on from."""
        number = row.value("number")
        if type(number) is not int or number < 1:
            row.refuse("field `number` must be a whole number of at least 1")
        prompt, prefix = row.text("prompt"), row.text("prefix")
        if not prompt.rstrip().endswith(prefix.rstrip()):
            row.refuse("field `prompt` must end with the `prefix`, which answers go on from")
        given = {kind: _checks(row, f"checks_{kind}") for kind in CHECKS}
        target = {
            "prefix": prefix,
            "type": row.text("type"),
            "number": number,
            **{
                f"checks_{kind}": {str(part): wanted for part, wanted in checks.items() if 1 <= part <= number}
                for kind, checks in given.items()
            },
        }
        beyond = sorted({part for checks in given.values() for part in checks if not 1 <= part <= number})
        passed_over = {"parts_passed_over": beyond} if beyond else {}
        return Item(content=prompt, target=target, meta={"type": target["type"], "number": number, **passed_over})

    def score(self, target: Mapping[str, Any], answer: str, reference: str | None) -> Mapping[str, Value]:
        """Completion and constraints; see `parts` and `holds`."""
        found, met = _verdict(target, answer)
        checks = {kind: target[f"checks_{kind}"] for kind in CHECKS}
        theirs = None if reference is None else _verdict(target, reference)
        total = sum(len(given) for given in checks.values())
        reachable = sum(int(part) in found for given in checks.values() for part in given)
        by_kind = {
            f"constraints_{kind}": Ratio(sum(k == kind for k, _ in met), len(given)) for kind, given in checks.items()
        }
        return {
            "completion_rate": 100 * len(found) / target["number"],
            "constraints": Ratio(len(met), total),
            "constraints_in_found": Ratio(len(met), reachable),
            **by_kind,
            "same_as_full": None if theirs is None or not theirs[0] else theirs == (found, met),
        }


def parts(answer: str, *, prefix: str, kind: str, number: int) -> dict[int, str]:
    """The numbered parts of an answer, the first of each number; others than 1 to `number` are left out.

    The prompt ended with `prefix`, so it is put before the answer, unless the answer repeats it.
    """
    text = answer if answer.lstrip().startswith(prefix) else f"{prefix}{answer}"
    found: dict[int, str] = {}
    for block in text.split(SEPARATOR):
        # Longer digit strings cannot be a part's number, and int() refuses those beyond 4,300 digits.
        match = re.search(rf"{re.escape(kind)} (\d{{1,9}})(?!\d)", block)
        if match and 1 <= int(match[1]) <= number:
            found.setdefault(int(match[1]), block)
    return found


def holds(part: str, wanted: str) -> bool:
    """Whether at least two thirds of the content words of `wanted` occur in the part.

    Words are compared in lower case, without plural and verb endings; stop words do not count.
    """
    stems = _stems(wanted)
    return len(stems & _stems(part)) >= ceil(NEEDED_SHARE * len(stems))


def _verdict(target: Mapping[str, Any], answer: str) -> tuple[frozenset[int], frozenset[tuple[str, str]]]:
    """Which parts the answer has, and which constraints it meets, each as (kind, part)."""
    found = parts(answer, prefix=target["prefix"], kind=target["type"], number=target["number"])
    met = frozenset(
        (kind, part)
        for kind in CHECKS
        for part, wanted in target[f"checks_{kind}"].items()
        if int(part) in found and holds(found[int(part)], wanted)
    )
    return frozenset(found), met


def _stems(text: str) -> frozenset[str]:
    words = re.findall(r"[^\W_]+", text.lower().replace("'", "").replace("’", ""))
    return frozenset(_stem(word) for word in words if not STOPWORD.fullmatch(word))


def _stem(word: str) -> str:
    for ending in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= SHORTEST_STEM:
            return word.removesuffix(ending)
    return word


def _checks(row: Row, field: str) -> dict[int, str]:
    """What is asked of each part, by its number; like upstream, `061` is 61."""
    given = row.value(field)
    if isinstance(given, list) and not given:
        given = {}
    if not isinstance(given, dict):
        row.refuse(f"field `{field}` must be an object from part numbers to texts")
    checks: dict[int, str] = {}
    # Parquet has one column for each number, with nulls.
    for part, wanted in ((part, wanted) for part, wanted in given.items() if wanted is not None):
        if not re.fullmatch(r"\s*[0-9]{1,9}\s*", part):
            row.refuse(f"field `{field}` names part {part!r}, which is no whole number")
        if not isinstance(wanted, str) or not _stems(wanted):
            row.refuse(f"field `{field}`, part {part}: must be a text with at least one word that is no stop word")
        if checks.setdefault(int(part), wanted) != wanted:
            row.refuse(f"field `{field}` names part {int(part)} twice, with different texts")
    return checks
