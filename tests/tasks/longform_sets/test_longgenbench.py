"""LongGenBench: complete answers score full, and each kind of damage costs exactly its part."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from tests.real_data import real
from tests.tasks.longform_sets.rows import row, sample
from vcbench.errors import TaskError
from vcbench.tasks.base import Ratio, Value
from vcbench.tasks.longform_sets.longgenbench import LongGenBench, holds, parts
from vcbench.tasks.rows import read_rows

TARGET = {
    "prefix": "#*# Floor 1:",
    "type": "Floor",
    "number": 4,
    "checks_once": {"2": "small cinema"},
    "checks_range": {"3": "rooms for children", "4": "rooms for children"},
    "checks_periodic": {"2": "tea room", "4": "tea room"},
}
WHOLE = (
    " the hall. #*# Floor 2: a small cinema and a tea room. #*# Floor 3: a room for every child, for all children. "
    "#*# Floor 4: children have their rooms here, and there are Tea Rooms. *** finished"
)


def complete(target: Mapping[str, Any]) -> str:
    """An answer with every part, in which every constraint is met; it goes on from the prefix."""
    wanted: dict[int, list[str]] = {number: [] for number in range(1, target["number"] + 1)}
    for kind in ("once", "range", "periodic"):
        for number, text in target[f"checks_{kind}"].items():
            wanted[int(number)].append(text)
    written = [f"{' '.join(texts)} and nothing else. " for texts in wanted.values()]
    headings = ["", *(f"#*# {target['type']} {number}: " for number in list(wanted)[1:])]
    return "".join(map("".join, zip(headings, written, strict=True))) + "*** finished"


def score(answer: str, reference: str | None = None) -> Mapping[str, Value]:
    return LongGenBench().score(TARGET, answer, reference)


def test_a_complete_answer() -> None:
    assert score(WHOLE, WHOLE) == {
        "completion_rate": 100.0,
        "constraints": Ratio(5, 5),
        "constraints_in_found": Ratio(5, 5),
        "constraints_once": Ratio(1, 1),
        "constraints_range": Ratio(2, 2),
        "constraints_periodic": Ratio(2, 2),
        "same_as_full": True,
    }


def test_a_missing_part_costs_itself_and_its_constraints() -> None:
    damaged = re.sub(r"#\*# Floor 4:", "and then", WHOLE)
    values = score(damaged, WHOLE)
    assert values["completion_rate"] == 75.0
    assert values["constraints"] == Ratio(3, 5)
    assert values["constraints_in_found"] == Ratio(3, 3)
    assert values["constraints_range"] == Ratio(1, 2)
    assert values["constraints_periodic"] == Ratio(1, 2)
    assert values["same_as_full"] is False


def test_an_unmet_constraint_costs_only_itself() -> None:
    values = score(WHOLE.replace("small cinema", "bakery"))
    assert values["completion_rate"] == 100.0
    assert values["constraints"] == values["constraints_in_found"] == Ratio(4, 5)
    assert values["constraints_once"] == Ratio(0, 1)
    assert values["same_as_full"] is None


def test_an_empty_answer_has_the_part_of_its_prefix() -> None:
    values = score("")
    assert values["completion_rate"] == 25.0
    assert values["constraints_in_found"] == Ratio(0, 0)


def test_which_parts_count() -> None:
    def found(answer: str) -> dict[int, str]:
        return parts(answer, prefix="#*# Week 1:", kind="Week", number=5)

    assert found("one #*# Week 2: two") == {1: " Week 1:one ", 2: " Week 2: two"}
    assert found("#*# Week 1: repeated #*# Week 2: two")[1] == " Week 1: repeated "
    assert found("a #*# Week 3: first #*# Week 3: second")[3] == " Week 3: first ", "the first of a number counts"
    assert set(found("a #*# Week 0: b #*# Week 6: c #*# Week 12345678901234: d #*# week 4: e #*# Weeks")) == {1}
    assert set(found(f"a #*# Week {'9' * 5000}: b")) == {1}
    assert 2 not in parts("a #*# Week 2: b", prefix="#*# Menu Week 1:", kind="Menu Week", number=5)


@pytest.mark.parametrize(
    ("part", "wanted", "met"),
    [
        ("We attended the Paris fashion show", "Attending a fashion week in Paris", True),
        ("We went to Paris", "Attending a fashion week in Paris", False),
        ("A RESTAURANT.", "restaurant", True),
        ("restaurants with terraces", "a restaurant with an outdoor terrace", True),
        ("my husband's birthday", "husband (yourself) birthday", True),
        ("my wife was there", "my wife birthday", False),
        ("grilled salmon at the Midsummer Nights feast", "Midsummer Night's Feast featuring Grilled Salmon", True),
        ("grilled salmon", "Midsummer Night's Feast featuring Grilled Salmon", False),
        ("", "pharmacy", False),
    ],
)
def test_words_that_meet_a_constraint(part: str, wanted: str, met: bool) -> None:
    assert holds(part, wanted) is met


@pytest.mark.parametrize("given", sample("longgenbench"), ids=lambda given: given.values["type"])
def test_the_sample_can_be_answered_completely(given: Any) -> None:
    check_completely(given)


def test_real_rows_can_be_answered_completely() -> None:
    rows = list(read_rows(real("longform/longgenbench_short_8.json")))
    assert len(rows) == 8
    for given in rows:
        check_completely(given)


def check_completely(given: Any) -> None:
    """Full marks for a complete answer; without one part, its share of the rate and its constraints are lost."""
    item = LongGenBench().item(given)
    assert item.content.rstrip().endswith(item.target["prefix"]), "the answer goes on from the prefix"
    whole = complete(item.target)
    values = LongGenBench().score(item.target, whole, whole)
    total = sum(len(item.target[f"checks_{kind}"]) for kind in ("once", "range", "periodic"))
    assert values["completion_rate"] == 100.0
    assert values["constraints"] == Ratio(total, total)
    last = f"#*# {item.target['type']} {item.target['number']}: "
    lost = sum(str(item.target["number"]) in item.target[f"checks_{kind}"] for kind in ("once", "range", "periodic"))
    values = LongGenBench().score(item.target, whole.replace(last, ""), whole)
    assert values["completion_rate"] == pytest.approx(100 * (1 - 1 / item.target["number"]))
    assert values["constraints"] == Ratio(total - lost, total)
    assert values["same_as_full"] is False


GOOD = {"prompt": "Write. #*# Floor 1:", **TARGET}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"prompt": None}, "field `prompt` must be a text, not null"),
        ({"prefix": " "}, "field `prefix` is empty"),
        ({"prefix": "#*# Week 1:"}, "field `prompt` must end with the `prefix`"),
        ({"number": "4"}, "field `number` must be a whole number of at least 1"),
        ({"number": True}, "field `number`"),
        ({"checks_once": ["x"]}, "field `checks_once` must be an object from part numbers to texts"),
        ({"checks_once": {"one": "x"}}, "field `checks_once` names part 'one', which is no whole number"),
        ({"checks_once": {"-1": "x"}}, "names part '-1'"),
        ({"checks_once": {"1": "x", "01": "y"}}, "names part 1 twice, with different texts"),
        ({"checks_range": {"2": 3}}, "field `checks_range`, part 2: must be a text"),
        ({"checks_range": {"2": "with the"}}, "at least one word that is no stop word"),
    ],
)
def test_malformed_rows_name_place_and_field(change: dict[str, Any], says: str) -> None:
    with pytest.raises(TaskError) as caught:
        LongGenBench().item(row(GOOD | change))
    assert str(caught.value).startswith("rows.jsonl, line 3: ")
    assert says in str(caught.value)


def test_numbers_of_parts_are_read_as_upstream_does() -> None:
    """The published files have `061`, and part 53 of 52."""
    checks = {"02": "cinema", " 3 ": "concert", "5": "museum", "0": "zoo"}
    item = LongGenBench().item(row(GOOD | {"checks_once": checks, "checks_range": {"009": "park"}}))

    assert item.target["checks_once"] == {"2": "cinema", "3": "concert"}
    assert item.target["checks_range"] == {}
    assert item.meta["parts_passed_over"] == [0, 5, 9]
    plain = LongGenBench().item(row(GOOD))
    assert "parts_passed_over" not in plain.meta


def test_a_missing_field_is_named() -> None:
    with pytest.raises(TaskError, match="field `checks_periodic` is missing"):
        LongGenBench().item(row({key: value for key, value in GOOD.items() if key != "checks_periodic"}))


def test_nulls_of_parquet_and_empty_lists_are_no_checks() -> None:
    item = LongGenBench().item(row(GOOD | {"checks_once": {"2": "cinema", "3": None}, "checks_range": []}))
    assert item.target["checks_once"] == {"2": "cinema"}
    assert item.target["checks_range"] == {}
