"""One answer judged from what its prompt's record holds: golden calls, declarations and, in turn, earlier answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vcbench.tasks.base import Question
from vcbench.tasks.cfb.conversations import Conversation, ExactArguments, Step
from vcbench.tasks.cfb.loop import Loop, Turn
from vcbench.tasks.cfb.rules import ErrorType, align, definite_error, format_problem, is_same
from vcbench.tasks.tool_calls.base import Parsed, Signature, Signatures, ToolCall
from vcbench.tasks.tool_calls.formats import FormatName, parse

Mode = Literal["teacher_forced", "interactive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What judging an answer needs; `steps` are all of a conversation, or the one that is asked for."""

    format: FormatName
    steps: tuple[Step, ...]
    signatures: Signatures
    exact_arguments: ExactArguments
    free_functions: tuple[str, ...]
    max_turns: int

    @classmethod
    def of(cls, conversation: Conversation, steps: Sequence[Step], *, format_name: FormatName, max_turns: int) -> Case:
        """The case of a conversation or of a part of it."""
        called = {call.name for step in steps for call in step.calls}
        exact = {name: tuple(conversation.exact_arguments.get(name, ())) for name in sorted(called)}
        return cls(
            format=format_name,
            steps=tuple(steps),
            signatures=conversation.signatures,
            exact_arguments=exact,
            free_functions=conversation.free_functions,
            max_turns=max_turns,
        )

    @classmethod
    def load(cls, values: Mapping[str, Any]) -> Case:
        """What `as_target` gave; observations are not in it, for no judgement needs them."""
        return cls(
            format=values["format"],
            steps=tuple(Step(tuple(map(ToolCall.of, calls))) for calls in values["steps"]),
            signatures={name: Signature.load(each) for name, each in values["functions"].items()},
            exact_arguments=values["exact_arguments"],
            free_functions=tuple(values["free_functions"]),
            max_turns=values["max_turns"],
        )

    def as_target(self) -> dict[str, Any]:
        """Plain data, for the prompt's record."""
        return {
            "format": self.format,
            "steps": [[call.as_dict() for call in step.calls] for step in self.steps],
            "functions": {name: each.as_dict() for name, each in self.signatures.items()},
            "exact_arguments": {name: list(names) for name, names in self.exact_arguments.items()},
            "free_functions": list(self.free_functions),
            "max_turns": self.max_turns,
        }

    @property
    def golden_calls(self) -> int:
        """How many calls are expected."""
        return sum(len(step.calls) for step in self.steps)

    def parse(self, text: str) -> Parsed:
        """The calls of an answer."""
        return parse(text, self.format, self.signatures)

    def loop(self, answers: Sequence[str]) -> Loop:
        """The conversation after these answers."""
        loop = Loop(
            steps=self.steps,
            signatures=self.signatures,
            exact_arguments=self.exact_arguments,
            free_functions=self.free_functions,
            max_turns=self.max_turns,
        )
        for answer in answers:
            loop.take(self.parse(answer))
        return loop


def judge(question: Question, text: str) -> tuple[Case, Parsed, Turn]:
    """The question's case, the answer's calls, and what they amount to."""
    case = Case.load(question.target)
    parsed = case.parse(text)
    if question.meta["mode"] == "interactive":
        return case, parsed, case.loop(question.meta["answers"]).take(parsed)
    return case, parsed, judge_step(case, parsed)


def judge_step(case: Case, parsed: Parsed) -> Turn:
    """An answer against the calls of one golden step: all of them, in any order, and no others."""
    golden = case.steps[0].calls
    errors: list[ErrorType] = ["decode_error"] * len(parsed.errors)
    pairs = dict(align(parsed.calls, golden))
    matched = undecided = 0
    for i, call in enumerate(parsed.calls):
        partner = golden[pairs[i]] if i in pairs else None
        if partner is not None and is_same(call, partner):
            matched += 1
        elif (problem := format_problem(call, case.signatures)) is not None:
            errors.append(problem.type)
        elif partner is None:
            errors.append("hallucination")
        elif (error := definite_error(call, partner, case.exact_arguments)) is not None:
            errors.append(error)
        else:
            undecided += 1
    if len(parsed.calls) + len(parsed.errors) < len(golden):
        errors.append("stop_early")
    return Turn(
        matched=matched,
        undecided=undecided,
        errors=tuple(errors),
        success=matched == len(golden) and not errors,
        lenient=matched + undecided == len(golden) and not errors,
    )
