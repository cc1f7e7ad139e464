"""LongProc: gold answers score full in every procedure, damaged ones lose what they must, malformed rows are named."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.real_data import real
from tests.tasks.longform_sets.rows import row, sample
from vcbench.errors import TaskError
from vcbench.tasks.base import Value
from vcbench.tasks.longform_sets import countdown
from vcbench.tasks.longform_sets.longproc import PROCEDURES, LongProc
from vcbench.tasks.rows import Row, read_rows


def scored(given: Row, procedure: str, answer: str, reference: str | None = None) -> Mapping[str, Value]:
    return LongProc().score(LongProc(procedure=procedure).item(given).target, answer, reference)


def gold(given: Row) -> str:
    return str(given.values["reference_output"])


@pytest.mark.parametrize("procedure", PROCEDURES)
def test_gold_answers_score_full(procedure: str) -> None:
    rows = sample(f"longproc_{procedure}")
    assert len(rows) >= 3
    for given in rows:
        values = scored(given, procedure, gold(given), gold(given))
        assert values["procedure_score"] == 1.0
        assert values["procedure_extracted"] is True
        assert values["same_as_full"] is True
        assert values["procedure_partial"] == (None if procedure == "html_to_tsv" else 1.0)
        assert values["row_recall"] == (1.0 if procedure == "html_to_tsv" else None)
        assert set(values) == {metric.name for metric in LongProc().metrics}


@pytest.mark.parametrize("procedure", PROCEDURES)
def test_empty_answers_score_nothing(procedure: str) -> None:
    for given in sample(f"longproc_{procedure}"):
        values = scored(given, procedure, "I cannot do that.", gold(given))
        assert values["procedure_score"] == 0.0
        assert values["procedure_extracted"] is False
        assert values["same_as_full"] is False
        for prose in ("nothing", "Sorry.\nI cannot do that."):
            assert scored(given, procedure, gold(given), prose)["same_as_full"] is None, "full KV has no result"


def test_a_countdown_without_its_solution_keeps_its_search() -> None:
    for given in sample("longproc_countdown"):
        right = gold(given)
        cut = right.split("Output the solution")[0]
        values = scored(given, "countdown", cut)
        assert values["procedure_score"] == 0.0
        assert values["procedure_partial"] == 1.0
        assert values["procedure_extracted"] is False
        solution = right.split("<Solution>\n")[1]
        wrong = right.replace(solution, solution.replace(" = ", " = 1"))
        values = scored(given, "countdown", wrong, right)
        assert (values["procedure_score"], values["procedure_extracted"]) == (0.0, True)
        assert values["same_as_full"] is False


def test_a_right_solution_needs_no_search() -> None:
    given = sample("longproc_countdown")[0]
    solution = gold(given)[gold(given).index("<Solution>") :]
    assert scored(given, "countdown", solution)["procedure_partial"] == 1.0
    crossed = solution.replace("</Solution>", "").replace("<Solution>", "</Solution><Solution>")
    assert scored(given, "countdown", crossed)["procedure_extracted"] is False


def test_a_wrong_step_of_a_trace_costs_it_and_what_follows() -> None:
    for given in sample("longproc_tom_tracking"):
        damaged = gold(given).replace("- Step 4: (", "- Step 4: (not ")
        values = scored(given, "tom_tracking", damaged, gold(given))
        assert values["procedure_score"] == 0.0
        assert values["procedure_partial"] == pytest.approx(4 / 11)
        assert values["same_as_full"] is False


def test_a_lost_row_of_a_table_costs_recall() -> None:
    for given in sample("longproc_html_to_tsv"):
        lines = gold(given).strip().split("\n")
        values = scored(given, "html_to_tsv", "\n".join(lines[:-1]))
        assert values["row_precision"] == 1.0
        assert values["row_recall"] == pytest.approx(1 - 1 / (len(lines) - 1))
        assert 0 < float(values["procedure_score"]) < 1  # type: ignore[arg-type]


def test_a_table_of_another_width_is_none() -> None:
    given = sample("longproc_html_to_tsv")[0]
    narrow = "\n".join(line.rpartition("\t")[0] for line in gold(given).strip().split("\n"))
    values = scored(given, "html_to_tsv", narrow)
    assert (values["procedure_score"], values["procedure_extracted"]) == (0.0, False)


def test_traces_of_the_sample_follow_from_their_stories() -> None:
    """The embedded gold answers are right: the beliefs are derived again from the stories."""
    for given in sample("longproc_tom_tracking"):
        facts = json.loads(given.values["metadata"])
        person, thing = facts["question"].removeprefix("Where does ").removesuffix(" is?").split(" believe the ")
        room, place, belief = None, None, "None"
        for number, line in enumerate(facts["story"].split("\n")):
            for sentence in line.partition(": ")[2].rstrip(".").split("; "):
                mover = sentence.split(" ")[0]
                if f"the {thing} is on the " in sentence or f"moves the {thing} to the " in sentence:
                    place = sentence.rpartition(" the ")[2]
                if mover == person:
                    went = sentence.split(", ")[0]
                    if " moves to the " in went or " enters the " in went or " is in the " in went:
                        room = went.rpartition(" the ")[2]
                    if " leaves " in went:
                        room = None
            sees = room is not None and str(place).startswith(f"{room}'s")
            belief = str(place) if sees else belief
            assert f"- Step {number}: (" in gold(given)
            state = f"{{{person} location: {room}; {thing} location: {place}; {person} sees {thing}: {sees}; "
            assert f"{state}{person}'s belief on {thing}: {belief}}}" in gold(given)


def test_tables_of_the_sample_stand_on_their_pages() -> None:
    for given in sample("longproc_html_to_tsv"):
        page = given.values["input_prompt"].split("```html")[1].split("```")[0]
        places = [page.index(f">{line.split(chr(9))[0]}</h3>") for line in gold(given).strip().split("\n")[1:]]
        assert len(places) >= 5
        for line in gold(given).strip().split("\n")[1:]:
            assert all(f">{cell}</" in page for cell in line.split("\t"))


def template(procedure: str) -> str:
    path = real(f"longform/longproc_{procedure}_prompts.yaml")
    return str(yaml.safe_load(path.read_text(encoding="utf-8"))["USER_PROMPT"])


def test_real_countdown_prompts_do_not_show_their_answer() -> None:
    rows = list(read_rows(real("longform/longproc_countdown_0.5k_3.json")))
    for given in rows:
        item = LongProc(template=template("countdown")).item(given)
        assert f"Numbers: {given.values['nums']}\nTarget: {given.values['target']}" in item.content
        assert given.values["solution_text"] not in item.content
        assert "Numbers: [40, 19, 23, 7]\nTarget: 29\n\n# Search Procedure\nInitial number set" in item.content
        right, _ = countdown.worked(given.values["nums"], given.values["target"])
        assert LongProc().score(item.target, right, None)["procedure_score"] == 1.0


def test_real_traces() -> None:
    for given in read_rows(real("longform/longproc_tom_tracking_0.5k_3.json")):
        item = LongProc(template=template("tom_tracking")).item(given)
        assert given.values["story"] in item.content
        assert given.values["solution"] not in item.content
        assert LongProc().score(item.target, given.values["solution"], None)["procedure_score"] == 1.0


def test_real_tables(tmp_path: Path) -> None:
    data = LongProc(template=template("html_to_tsv"), directory=tmp_path)
    for given in read_rows(real("longform/longproc_html_to_tsv_0.5k_3.json")):
        with pytest.raises(TaskError, match=r"field `html_path`: .*\.html cannot be read .* the pages lie beside"):
            data.item(given)
        page = tmp_path / given.values["html_path"]
        page.parent.mkdir(exist_ok=True)
        page.write_text("<p>stand-in {braces}</p>")
        item = data.item(given)
        assert "<p>stand-in {braces}</p>" in item.content
        assert given.values["tsv_header"] in item.content
        assert given.values["gt"].split("\n")[1] not in item.content
        assert LongProc().score(item.target, f"```tsv\n{given.values['gt']}```", None)["procedure_score"] == 1.0


COUNTDOWN = {"input_prompt": "Search.", "reference_output": "x", "metadata": '{"nums": [2, 6], "target": 3}'}


@pytest.mark.parametrize(
    ("procedure", "values", "says"),
    [
        (None, COUNTDOWN, "it does not show which procedure it is; set `subset`"),
        ("countdown", COUNTDOWN | {"input_prompt": ""}, "field `input_prompt` is empty"),
        ("countdown", COUNTDOWN | {"metadata": "{"}, "field `metadata` is not JSON"),
        ("countdown", COUNTDOWN | {"metadata": "[]"}, "field `metadata` must be an object"),
        ("countdown", COUNTDOWN | {"metadata": {"target": 3}}, "field `nums` must be a list of whole numbers"),
        ("countdown", COUNTDOWN | {"metadata": {"nums": [2, -6], "target": 3}}, "field `nums`"),
        ("countdown", COUNTDOWN | {"metadata": {"nums": [2, 6], "target": "3"}}, "field `target`"),
        ("countdown", COUNTDOWN | {"metadata": {"nums": [2, 6], "target": 5}}, "5 cannot be reached from [2, 6]"),
        (
            "countdown",
            {"input_prompt": "x", "nums": [1, 2, 3, 4, 5, 6], "target": 9},
            "field `nums` has 6 numbers; the whole search is written out, for at most 5",
        ),
        ("tom_tracking", COUNTDOWN, "the right trace has no line `- Step 0: ...`"),
        ("html_to_tsv", COUNTDOWN, "the right table has no rows"),
        ("html_to_tsv", {"story": "x"}, "this is a row of tom_tracking, but `subset` asks for html_to_tsv"),
        ("tom_tracking", {"story": "x"}, "set `template` to a prompts.yaml"),
        ("tom_tracking", {"input_prompt": "x"}, "field `reference_output` is missing"),
    ],
)
def test_malformed_rows_name_place_and_field(procedure: str | None, values: dict[str, Any], says: str) -> None:
    with pytest.raises(TaskError) as caught:
        LongProc(procedure=procedure).item(row(values))
    assert str(caught.value).startswith("rows.jsonl, line 3: ")
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["{missing}", "{", "{story.x}", "{story[0}"])
def test_templates_that_do_not_fit(text: str) -> None:
    with pytest.raises(TaskError, match="line 3: the prompt template does not fit"):
        LongProc(template=text).item(row({"story": "x", "solution": "- Step 0: y"}))
