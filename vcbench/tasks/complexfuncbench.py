"""ComplexFuncBench: multi-step function calling, every call's name and arguments compared.

Source: Zhong et al., arXiv 2501.10132; the data set `zai-org/ComplexFuncBench` (Apache-2.0). The embedded sample is
synthetic: conversations over invented functions, written by this project in the data set's format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vcbench.errors import RowError, TaskError
from vcbench.registry import register
from vcbench.tasks.base import (
    Answer,
    Exclusion,
    Prompt,
    PromptTokenizer,
    Question,
    Task,
    TaskOptions,
    Value,
    as_needed,
    checked,
    excluding,
    follow_up_id,
)
from vcbench.tasks.budget import over
from vcbench.tasks.cfb.conversations import Conversation, ExactArguments, is_table, read_conversation
from vcbench.tasks.cfb.judge import Case, Mode
from vcbench.tasks.cfb.scores import METRICS, values
from vcbench.tasks.rows import identified
from vcbench.tasks.source import SourceOptions, file_rows
from vcbench.tasks.tool_calls.chat import Dialect, Exchange, Wanted, as_messages, dialect_of
from vcbench.tasks.tool_calls.formats import FORMATS

NAME = "complexfuncbench"
FILE = "ComplexFuncBench.jsonl"
SAMPLE = "complexfuncbench.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class CfbOptions(SourceOptions):
    """Which conversations, how they are asked, and how calls are read. The data set is `zai-org/ComplexFuncBench`."""

    mode: Mode = field(
        default="teacher_forced",
        metadata={
            "doc": "`teacher_forced` asks for each golden step given the golden history; `interactive` follows each "
            "cell's own calls, with the recorded observations."
        },
    )
    tool_call_format: Wanted = field(
        default="auto", metadata={"doc": "How the model writes calls; `auto` finds out from its chat template."}
    )
    open_call: bool = field(
        default=False,
        metadata={
            "doc": "Begin every answer with the opening of a call, for models too small to begin one themselves; "
            "`teacher_forced` only, since an interactive conversation ends in text."
        },
    )
    domains: tuple[str, ...] = field(default=(), metadata={"doc": "Only these, such as `Hotels`; none takes all."})
    max_context_tokens: int | None = field(
        default=None,
        metadata={"doc": "Longer prompts (`interactive`: first turns) are excluded, and counted.", "minimum": 1},
    )
    max_turns: int = field(default=20, metadata={"doc": "Turns of an interactive conversation.", "minimum": 1})
    exact_arguments: str = field(
        default="",
        metadata={
            "doc": "A JSON file {function: [arguments]} of arguments that no judge has to look at; none takes the "
            "benchmark's own."
        },
    )

    def __post_init__(self) -> None:
        SourceOptions.__post_init__(self)
        if self.open_call and self.mode == "interactive":
            raise ValueError("open_call would keep interactive conversations from ending; leave it out")


@register("task", NAME)
class ComplexFuncBench(Task):
    """One prompt for each golden step, or conversations that follow each cell's own calls."""

    Options = CfbOptions
    summary = "multi-step function calling, every call exactly right; the embedded sample is synthetic"
    metrics = METRICS

    def __init__(self, options: TaskOptions) -> None:
        super().__init__(options)
        self._conversations: dict[str, Conversation] = {}
        self._dialect: Dialect | None = None

    @property
    def _options(self) -> CfbOptions:
        assert isinstance(self.options, CfbOptions)
        return self.options

    def has_follow_ups(self) -> bool:
        """In the interactive mode alone."""
        return self._options.mode == "interactive"

    def prompts(self, tokenizer: PromptTokenizer, *, limit: int | None, seed: int) -> list[Prompt]:
        """The steps, or the first turns, of the conversations in the file's order, as many as `limit` asks for.

        Rows that are malformed, and those of an obstacle, are excluded.
        """
        options = self._options
        self._dialect = dialect_of(tokenizer, options.tool_call_format)
        self._conversations, self.excluded = {}, []
        exact = _read_table(Path(options.exact_arguments)) if options.exact_arguments else None
        made: list[Prompt] = []
        for name, row in as_needed(identified(file_rows(options, FILE, SAMPLE), "id"), made, limit):
            left = None if limit is None else limit - len(made)
            with excluding(self.excluded, name):
                conversation = read_conversation(name, row, exact)
                if options.domains and conversation.domain not in options.domains:
                    continue
                if reason := conversation.obstacle(whole=self.has_follow_ups()):
                    self.excluded.append(Exclusion(id=name, reason=reason))
                    continue
                made += self._of_conversation(conversation, tokenizer, left)
                self._conversations[name] = conversation
        return checked(made, task=NAME, excluded=self.excluded)

    def score(self, question: Question, answer: Answer, reference: Answer | None) -> Mapping[str, Value]:
        """Every metric of one answer; in the interactive mode of one turn."""
        return values(question, answer, reference)

    def follow_up(self, prompt: Prompt, answer: Answer, tokenizer: PromptTokenizer) -> Prompt | None:
        """The next turn: the cell's own calls so far, each with what came back; None once the conversation ends."""
        if not self.has_follow_ups():
            return None
        assert self._dialect is not None, "prompts come first"
        conversation = self._conversations[prompt.meta["group"]]
        answers = [*prompt.meta["answers"], answer.text]
        exchanges = self._exchanges(conversation, answers)
        if exchanges is None:
            return None
        ids = self._dialect.ids(tokenizer, as_messages(conversation.request, exchanges), conversation.functions)
        turn = len(answers) + 1
        return Prompt(
            id=follow_up_id(prompt, ids, name=f"{conversation.id}/t{turn}"),
            ids=tuple(ids),
            document_sha256=prompt.document_sha256,
            target=prompt.target,
            meta={**prompt.meta, "turn": turn, "answers": answers},
        )

    def _of_conversation(
        self, conversation: Conversation, tokenizer: PromptTokenizer, left: int | None
    ) -> list[Prompt]:
        """Its prompts, `left` at most. Steps over the context's limit are excluded."""
        interactive = self.has_follow_ups()
        steps = range(1 if interactive else len(conversation.steps))
        made = [self._prompt(conversation, step, tokenizer) for step in steps[:left]]
        limit = self._options.max_context_tokens
        exclusions = [over(prompt.id, len(prompt.ids), limit) for prompt in made]
        self.excluded += filter(None, exclusions)
        fitting = [prompt for prompt, excluded in zip(made, exclusions, strict=True) if excluded is None]
        if interactive:
            return fitting
        whole = len(fitting) == len(steps)
        return [replace(prompt, meta={**prompt.meta, "whole": whole}) for prompt in fitting]

    def _prompt(self, conversation: Conversation, step: int, tokenizer: PromptTokenizer) -> Prompt:
        options, dialect = self._options, self._dialect
        assert dialect is not None
        interactive = self.has_follow_ups()
        history = [Exchange(calls=each.calls, results=each.results) for each in conversation.steps[:step]]
        asked = conversation.steps if interactive else conversation.steps[step : step + 1]
        case = Case.of(conversation, asked, format_name=dialect.format, max_turns=options.max_turns)
        place: dict[str, Any] = {"turn": 1, "answers": []} if interactive else {"step": step + 1}
        try:
            ids = dialect.ids(tokenizer, as_messages(conversation.request, history), conversation.functions)
        except TaskError as error:
            raise RowError(f"conversation {conversation.id!r}: {error}") from error
        opening = FORMATS[dialect.format].OPENING if options.open_call else ""
        return Prompt(
            id=f"{conversation.id}/{'t1' if interactive else f's{step + 1}'}",
            ids=(*ids, *(tokenizer.encode(opening) if opening else ())),
            document_sha256=conversation.sha256,
            target=case.as_target(),
            meta={
                "group": conversation.id,
                "domain": conversation.domain,
                "mode": options.mode,
                "steps": len(conversation.steps),
                **place,
                **dialect.as_meta(),
                "opening": opening,
                "source": options.source,
                "synthetic": conversation.synthetic,
            },
        )

    def _exchanges(self, conversation: Conversation, answers: Sequence[str]) -> list[Exchange] | None:
        """What was called and came back in each turn; None if the last answer ended the conversation."""
        assert self._dialect is not None
        case = Case.of(
            conversation,
            conversation.steps,
            format_name=self._dialect.format,
            max_turns=self._options.max_turns,
        )
        loop, made = case.loop([]), []
        for answer in answers:
            parsed = case.parse(answer)
            turn = loop.take(parsed)
            if turn.ended:
                return None
            made.append(Exchange(calls=parsed.calls, results=turn.results, text=parsed.text))
        return made


def _read_table(path: Path) -> ExactArguments:
    try:
        table = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise TaskError(f"{path} cannot be read: {error}; check the task's `exact_arguments`") from error
    if not is_table(table):
        raise TaskError(f"{path} must hold a JSON object with a list of arguments for each function")
    return table
