"""The task: golden answers are perfect in every format and mode, everything else is what the rules make of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.real_data import real
from tests.tasks.cfb.examples import answer, calls_of, golden, question, sample, score, talk, task
from tests.tasks.tool_calls.templates import BY_FORMAT, HERMES, PLAIN, UNKNOWN, TemplateTokenizer
from tests.tasks.words import WordTokenizer
from vcbench import registry
from vcbench.errors import TaskError
from vcbench.tasks import complexfuncbench
from vcbench.tasks.base import Prompt, Ratio
from vcbench.tasks.cfb.scores import ERRORS, METRICS
from vcbench.tasks.complexfuncbench import CfbOptions, ComplexFuncBench
from vcbench.tasks.tool_calls.base import ToolCall
from vcbench.tasks.tool_calls.formats import FORMATS, FormatName

NO_ERROR = dict.fromkeys(ERRORS, False)
PERFECT = {
    "exact_calls": True,
    "success": True,
    "well_formed": True,
    "exact_calls_lenient": True,
    "success_lenient": True,
    **NO_ERROR,
}


def prompts(made: ComplexFuncBench, source: str = HERMES, limit: int | None = None) -> list[Prompt]:
    return made.prompts(TemplateTokenizer(source), limit=limit, seed=0)


def test_registered_and_labelled() -> None:
    assert registry.lookup("task", "complexfuncbench") is ComplexFuncBench
    assert "synthetic" in ComplexFuncBench.summary
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    assert {metric.name for metric in METRICS if metric.of == "group"} == {"success", "success_lenient"}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("template", [True, False])
def test_golden_steps_are_perfect_in_every_format(name: FormatName, template: bool) -> None:
    made = task(tool_call_format="auto" if template else name)
    asked = prompts(made, BY_FORMAT[name] if template else PLAIN)
    assert len(asked) == sum(len(each.steps) for each in sample())
    for prompt in asked:
        assert prompt.meta["format"] == name
        assert prompt.meta["tools_by"] == ("chat template" if template else "instruction")
        text = golden(prompt, name)
        found = score(made, prompt, text, reference=text)
        count = len(calls_of(prompt))
        assert found == {
            **PERFECT,
            "same_calls": True,
            "call_accuracy": Ratio(count, count),
            "call_accuracy_lenient": Ratio(count, count),
        }
    assert made.excluded == []


@pytest.mark.parametrize("name", FORMATS)
def test_golden_conversations_succeed_in_every_format(name: FormatName) -> None:
    made, tokenizer = task(mode="interactive"), TemplateTokenizer(BY_FORMAT[name])
    for prompt, conversation in zip(made.prompts(tokenizer, limit=None, seed=0), sample(), strict=True):
        texts = [FORMATS[name].write(step.calls) for step in conversation.steps]
        turns = list(talk(made, prompt, [*texts, "That is all."], tokenizer))
        assert len(turns) == len(texts) + 1
        assert len({asked.id for asked, _ in turns}) == len(turns)
        assert {asked.meta["group"] for asked, _ in turns} == {conversation.id}
        for (asked, found), step in zip(turns, conversation.steps, strict=False):
            assert found["exact_calls"] is True
            assert found["success"] is None
            text = tokenizer.decode(asked.ids)
            assert not any(result in text for result in step.results), "they come after the answer"
        last = turns[-1][1]
        assert (last["success"], last["success_lenient"], last["exact_calls"]) == (True, True, True)
        total = sum(len(step.calls) for step in conversation.steps)
        assert pooled(turns) == (total, total)


def pooled(turns: list[tuple[Prompt, dict[str, Any]]], name: str = "call_accuracy") -> tuple[float, float]:
    ratios = [found[name] for _, found in turns]
    return sum(ratio.numerator for ratio in ratios), sum(ratio.denominator for ratio in ratios)


def test_look_ups_may_be_left_out() -> None:
    made, tokenizer = task(mode="interactive"), TemplateTokenizer(HERMES)
    first = next(each for each in sample() if each.id == "Ferries-0")
    prompt = made.prompts(tokenizer, limit=1, seed=0)[0]
    texts = [FORMATS["hermes"].write(step.calls) for step in first.steps[1:]]
    turns = list(talk(made, prompt, [*texts, "Done."], tokenizer))
    assert turns[-1][1]["success"] is True
    assert pooled(turns) == (3, 5)


def test_a_history_holds_the_cells_own_calls_and_the_recorded_observations() -> None:
    made, tokenizer = task(mode="interactive"), TemplateTokenizer(HERMES)
    prompt = made.prompts(tokenizer, limit=1, seed=0)[0]
    right, *_ = calls_of(prompt)
    wrong = ToolCall("Search_Sailings", {"from_port": "x"})
    following = made.follow_up(prompt, answer("First.\n" + FORMATS["hermes"].write([right, wrong])), tokenizer)
    assert following is not None
    text = tokenizer.decode(following.ids).partition(made._conversations["Ferries-0"].request)[2]
    positions = [
        text.index(part) for part in ("First.", "Kelbray", '"from_port": "x"', "prt_kel_01", "needs the parameters")
    ]
    assert positions == sorted(positions)
    assert following.meta["turn"] == 2
    assert json.loads(json.dumps(following.meta)) == following.meta
    assert json.loads(json.dumps(following.target)) == following.target
    again = made.follow_up(prompt, answer("First.\n" + FORMATS["hermes"].write([right, wrong])), tokenizer)
    assert again == following


def test_turns_are_judged_from_their_record_alone() -> None:
    made, tokenizer = task(mode="interactive"), TemplateTokenizer(HERMES)
    conversation = sample()[0]
    prompt = made.prompts(tokenizer, limit=1, seed=0)[0]
    text = FORMATS["hermes"].write(conversation.steps[0].calls)
    following = made.follow_up(prompt, answer(text), tokenizer)
    assert following is not None
    other = task()
    recorded = json.loads(json.dumps({"target": following.target, "meta": following.meta}))
    asked = Prompt(id=following.id, ids=(1,), document_sha256="", **recorded)
    assert score(other, asked, FORMATS["hermes"].write(conversation.steps[1].calls))["exact_calls"] is True
    assert score(other, asked, "I give up.")["stop_early"] is True


@pytest.mark.parametrize("name", FORMATS)
def test_an_opened_call_is_part_of_the_answer(name: FormatName) -> None:
    tokenizer = TemplateTokenizer(BY_FORMAT[name])
    made = task(open_call=True)
    for prompt in made.prompts(tokenizer, limit=4, seed=0):
        opening = prompt.meta["opening"]
        assert tokenizer.decode(prompt.ids).endswith(f"<s>assistant{opening}")
        text = golden(prompt, name)
        assert text.startswith(opening)
        rest = text.removeprefix(opening)
        assert score(made, prompt, rest, reference=rest)["exact_calls"] is True
        assert score(made, prompt, rest, reference=rest)["same_calls"] is True
        assert score(made, prompt, "?", reference=rest)["decode_error"] is True
    with pytest.raises(ValueError, match="would keep interactive conversations from ending"):
        CfbOptions(open_call=True, mode="interactive")


def test_teacher_forced_has_no_follow_ups() -> None:
    made = task()
    prompt = prompts(made, limit=1)[0]
    assert not made.has_follow_ups()
    assert made.follow_up(prompt, answer("x"), TemplateTokenizer(HERMES)) is None


def changed(prompt: Prompt, index: int, **arguments: Any) -> str:
    calls = calls_of(prompt)
    kept = {key: value for key, value in {**calls[index].arguments, **arguments}.items() if value is not ...}
    calls[index] = ToolCall(calls[index].name, kept)
    return FORMATS["hermes"].write(calls)


@pytest.fixture(scope="module")
def cabins() -> Prompt:
    """The step with Get_Cabin_Prices and Quote_Vehicle_Deck."""
    return next(prompt for prompt in prompts(task()) if prompt.id == "Ferries-0/s3")


@pytest.mark.parametrize(
    ("index", "arguments", "errors", "right", "lenient"),
    [
        (0, {"sailing_id": "sl_8843_c"}, {"value_error"}, 1, 1),
        (0, {"sailing_id": ...}, {"param_missing"}, 1, 1),
        (0, {"currency": ...}, {"param_missing"}, 1, 1),
        (0, {"meal": "yes"}, {"hallucination"}, 1, 1),
        (0, {"sailing_id": 8841}, {"value_error"}, 1, 1),
        (1, {"height_m": 2.7}, set(), 1, 2),
        (1, {"height_m": ...}, set(), 1, 2),
        (1, {"length_m": "5.9"}, {"value_error"}, 1, 1),
    ],
)
def test_one_change(
    cabins: Prompt, index: int, arguments: dict[str, Any], errors: set[str], right: int, lenient: int
) -> None:
    found = score(task(), cabins, changed(cabins, index, **arguments), reference=golden(cabins, "hermes"))
    assert {name for name in ERRORS if found[name]} == errors
    assert (found["exact_calls"], found["same_calls"], found["well_formed"]) == (False, False, True)
    assert found["call_accuracy"] == Ratio(right, 2)
    assert found["call_accuracy_lenient"] == Ratio(lenient, 2)
    assert found["exact_calls_lenient"] is (lenient == 2)


@pytest.mark.parametrize(
    ("cut", "error", "right", "well_formed"),
    [
        (lambda text: "The van costs 173.50.", "stop_early", 0, False),
        (lambda text: text.partition("</tool_call>")[0], "stop_early", 1, True),
        (lambda text: text[:-40], "decode_error", 1, False),
        (lambda text: text + text, "hallucination", 2, True),
        (lambda text: text.replace("Get_Cabin_Prices", "Get_Prices"), "func_error", 1, True),
        (lambda text: text.replace("Get_Cabin_Prices", "Get_Sailing_Reviews"), "param_missing", 1, True),
    ],
)
def test_other_answers(cabins: Prompt, cut: Any, error: str, right: int, well_formed: bool) -> None:
    found = score(task(), cabins, cut(golden(cabins, "hermes")))
    assert {name for name in ERRORS if found[name]} == {error}
    assert found["call_accuracy"] == Ratio(right, 2)
    assert (found["exact_calls"], found["exact_calls_lenient"], found["success"]) == (False, False, False)
    assert (found["well_formed"], found["same_calls"]) == (well_formed, None)


F = '<tool_call>{"name": "f", "arguments": {"x": 1, "y": 2}}'
F_TURNED = '<tool_call>{"arguments": {"y": 2, "x": 1}, "name": "f"}'


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ("plain", "other plain", None),
        ("plain", "<tool_call>{", False),
        ("<tool_call>{", "<tool_call>{", True),
        ("<tool_call>{", "<tool_call>[", False),
        (f"a {F}", F_TURNED, True),
        (F, "plain", False),
        (F + F, F, False),
        (F, F + F, False),
    ],
)
def test_the_same_calls_as_full_kv(cabins: Prompt, ours: str, theirs: str, same: bool | None) -> None:
    assert score(task(), cabins, ours, reference=theirs)["same_calls"] is same


def test_the_limit_cuts_a_conversation_whose_success_is_then_unknown() -> None:
    made = task()
    asked = prompts(made, limit=5)
    assert [prompt.id for prompt in asked] == [f"Ferries-0/s{n}" for n in (1, 2, 3)] + ["Ferries-1/s1", "Ferries-1/s2"]
    values = [score(made, prompt, golden(prompt, "hermes"))["success"] for prompt in asked]
    assert values == [True, True, True, None, None]


def test_contexts_over_the_limit_are_excluded_and_counted() -> None:
    everything = prompts(task())
    limit = sorted(len(prompt.ids) for prompt in everything)[-3]
    made = task(max_context_tokens=limit)
    asked = prompts(made)
    assert len(asked) + len(made.excluded) == len(everything)
    assert [len(made.excluded), max(len(prompt.ids) for prompt in asked)] == [2, limit]
    assert all(f"exceed the limit of {limit}" in each.reason for each in made.excluded)
    cut = {each.id.partition("/")[0] for each in made.excluded}
    for prompt in asked:
        assert (score(made, prompt, golden(prompt, "hermes"))["success"] is None) == (prompt.meta["group"] in cut)
    assert len(prompts(made)) == len(asked), "asked again, exclusions are counted once"
    assert len(made.excluded) == 2
    interactive = task(mode="interactive", max_context_tokens=limit)
    assert len(prompts(interactive)) == len(sample())


def write(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_conversations_without_calls_are_counted(tmp_path: Path) -> None:
    row = json.loads(
        (Path(complexfuncbench.__file__).parent / "samples" / "complexfuncbench.jsonl").read_text().splitlines()[0]
    )
    talked = {**row, "id": "Talk-0", "conversations": [row["conversations"][0], row["conversations"][-1]]}
    made = task(path=write(tmp_path / "rows.jsonl", talked, row))
    assert {prompt.meta["group"] for prompt in prompts(made)} == {"Ferries-0"}
    assert [(each.id, each.reason) for each in made.excluded] == [("Talk-0", "it has no function call")]
    with pytest.raises(TaskError, match="has no prompts"):
        prompts(task(path=write(tmp_path / "rows.jsonl", talked)))
    with pytest.raises(TaskError, match="line 2: id 'Ferries-0' is that of line 1 already"):
        prompts(task(path=write(tmp_path / "rows.jsonl", row, row)))


def test_domains() -> None:
    assert {prompt.meta["domain"] for prompt in prompts(task(domains=("Cross", "Nursery")))} == {"Cross", "Nursery"}
    with pytest.raises(TaskError, match="has no prompts"):
        prompts(task(domains=("Hotels",)))


def test_prompts_are_long_enough_to_compress() -> None:
    lengths = [len(prompt.ids) for prompt in task().prompts(WordTokenizer(), limit=None, seed=0)]
    assert min(lengths) > 900
    assert max(lengths) < 4000


def test_a_template_of_an_unknown_format_is_refused() -> None:
    with pytest.raises(TaskError, match="set `tool_call_format` to"):
        prompts(task(), UNKNOWN)
    assert prompts(task(tool_call_format="hermes"), UNKNOWN)


def test_bad_options(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="path and dataset are two sources"):
        CfbOptions(path="x", dataset="a/b")
    with pytest.raises(TaskError, match="check the task's `exact_arguments`"):
        prompts(task(exact_arguments=str(tmp_path / "missing.json")))
    (tmp_path / "table.json").write_text('{"f": [1]}')
    with pytest.raises(TaskError, match="must hold a JSON object with a list"):
        prompts(task(exact_arguments=str(tmp_path / "table.json")))


def test_the_papers_example_scores(tmp_path: Path) -> None:
    """Radius is no exact argument of Search_Hotels_By_Coordinates; the dates are."""
    row = json.loads(real("cfb/paper_table5_example.json").read_text("utf-8"))
    called = [call for turn in row["conversations"] for call in turn.get("function_call", ())]
    row["functions"] = [
        {
            "name": name,
            "parameters": {"properties": {key: {} for c in called if c["name"] == name for key in c["arguments"]}},
        }
        for name in dict.fromkeys(call["name"] for call in called)
    ]
    made = task(path=write(tmp_path / "paper.jsonl", row))
    first, second = prompts(made)
    assert not first.meta["synthetic"]
    for prompt in (first, second):
        assert score(made, prompt, golden(prompt, "hermes"))["success"] is True
    assert score(made, second, changed(second, 1, radius=5))["exact_calls_lenient"] is True
    wrong = score(made, second, changed(second, 1, departure_date="2024-12-16"))
    assert (wrong["exact_calls_lenient"], wrong["value_error"]) == (False, True)
    with pytest.raises(TaskError, match="has no prompts"):
        prompts(task(path=write(tmp_path / "paper.jsonl", row), mode="interactive"))


def test_targets_hold_no_observation() -> None:
    """They are the longest part of the data, and no judgement needs them."""
    asked = prompts(task(mode="interactive"))
    assert all("prt_kel_07" not in json.dumps(prompt.target) for prompt in asked)
    assert question(asked[0]).meta["answers"] == []
