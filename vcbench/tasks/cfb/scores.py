"""What is said of one answer: calls that are right, that are full KV's, and the kinds of error."""

from __future__ import annotations

from collections.abc import Mapping

from vcbench.tasks.base import Answer, Metric, Question, Ratio, Value
from vcbench.tasks.cfb.judge import Case, judge
from vcbench.tasks.tool_calls.base import same_calls

ERRORS = {
    "func_error": "another function than the golden one, or none that exists",
    "param_missing": "a parameter is missing",
    "value_error": "a value is wrong, or of another type",
    "hallucination": "more calls than expected, or a parameter that the function does not have",
    "stop_early": "fewer calls than expected",
    "decode_error": "a call that cannot be read, such as one cut off",
    "turn_limit": "the conversation did not end within `max_turns`",
}
LENIENT = "undecided calls taken for right"

METRICS = (
    Metric(name="exact_calls", summary="answers whose calls are all right, and no others", headline=True),
    Metric(name="success", summary="conversations in which every step is right", of="group", headline=True),
    Metric(name="call_accuracy", summary="right calls of golden calls", kind="ratio"),
    Metric(name="same_calls", summary="answers with full KV's calls, where either makes any", headline=True),
    Metric(name="well_formed", summary="answers that make calls, all of which can be read"),
    Metric(name="exact_calls_lenient", summary=f"exact_calls with {LENIENT}"),
    Metric(name="success_lenient", summary=f"success with {LENIENT}", of="group"),
    Metric(name="call_accuracy_lenient", summary=f"call_accuracy with {LENIENT}", kind="ratio"),
    *(Metric(name=name, summary=f"answers with this error: {text}", better="lower") for name, text in ERRORS.items()),
)


def values(question: Question, answer: Answer, reference: Answer | None) -> Mapping[str, Value]:
    """Every metric of one answer; in the interactive mode, of one turn."""
    opening = question.meta.get("opening", "")
    text = opening + answer.text
    case, parsed, turn = judge(question, text)
    interactive = question.meta["mode"] == "interactive"
    # A conversation's golden calls count once, with its first turn.
    expected = case.golden_calls if not interactive or question.meta["turn"] == 1 else 0
    known = interactive or question.meta["whole"]
    sound = not turn.errors
    # Plain text is how an interactive conversation ends.
    text_alone = interactive and not parsed.calls and not parsed.errors
    return {
        "exact_calls": sound and not turn.undecided and turn.success is not False,
        "success": turn.success if known else None,
        "call_accuracy": Ratio(turn.matched, expected),
        "same_calls": None if reference is None else _same_calls(case, text, opening + reference.text),
        "well_formed": None if text_alone else bool(parsed.calls) and not parsed.errors,
        "exact_calls_lenient": sound and turn.lenient is not False,
        "success_lenient": turn.lenient if known else None,
        "call_accuracy_lenient": Ratio(turn.matched + turn.undecided, expected),
        **{name: name in turn.errors for name in ERRORS},
    }


def _same_calls(case: Case, text: str, reference: str) -> bool | None:
    """Whether two answers make the same calls, in any order; None where neither makes any."""
    ours, theirs = case.parse(text), case.parse(reference)
    if not (ours.calls or ours.errors or theirs.calls or theirs.errors):
        return None
    if ours.errors or theirs.errors:
        return text == reference
    return same_calls(ours.calls, theirs.calls)
