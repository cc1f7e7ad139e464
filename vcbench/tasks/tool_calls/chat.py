"""How a model is given functions and the history of its calls: by its chat template, or by an instruction of our own.

What a template can do is found out by trying it: whether the functions, a call and its result appear in the text, and
in which format the call does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from vcbench.errors import TaskError
from vcbench.tasks.base import PromptTokenizer
from vcbench.tasks.tool_calls.base import Signature, ToolCall
from vcbench.tasks.tool_calls.conversation import instructed, renumbered
from vcbench.tasks.tool_calls.formats import FORMATS, FormatName, parse

Wanted = Literal["auto", "hermes", "qwen3-coder", "llama3-json", "mistral"]

QUESTION, PLACE, WEATHER = "What is the weather in Probeburg?", "probeburg-e1c4", "probe-result-9b7d"
PROBE: dict[str, Any] = {
    "name": "probe_weather_52f0",
    "description": "Looks up the weather.",
    "parameters": {
        "type": "object",
        "properties": {"place": {"type": "string", "description": "A place."}},
        "required": ["place"],
    },
}
"""A function that no prompt ever holds; its parts are looked for in what the template makes of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One answer with calls and what came back. `results`: a text a call; `text`: what the answer says beside them."""

    calls: tuple[ToolCall, ...]
    results: tuple[str, ...]
    text: str = ""


@runtime_checkable
class RendersChat(Protocol):
    """A tokenizer that shows the text of a conversation."""

    @property
    def has_template(self) -> bool:
        """Whether there is a chat template."""

    def render(self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The conversation as text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How functions and calls are written for one model.

    template: the chat template writes them; else an instruction does, and results come back as the user's turn.
    parallel: several calls may stand in one turn; else a history has them one after the other, each with its result.
    """

    format: FormatName
    template: bool
    parallel: bool = True

    def ids(
        self,
        tokenizer: PromptTokenizer,
        messages: Sequence[Mapping[str, Any]],
        functions: Sequence[Mapping[str, Any]],
    ) -> list[int]:
        """Token ids of a conversation, ready for the assistant's turn. Raises TaskError if the template refuses it.

        Args:
            messages: as OpenAI's interface has them, calls' arguments as objects.
        """
        if self.template:
            return tokenizer.chat(renumbered(messages, parallel=self.parallel), tools=wrapped(functions))
        return tokenizer.chat(instructed(messages, functions, self.format))

    def as_meta(self) -> dict[str, Any]:
        """What a prompt's record says of it."""
        way = "chat template" if self.template else "instruction"
        return {"format": self.format, "tools_by": way, "parallel_calls": self.parallel}


def dialect_of(tokenizer: PromptTokenizer, wanted: Wanted = "auto") -> Dialect:
    """How this model is asked for calls; `auto` takes the format that its template writes them in, hermes without one.

    Raises TaskError where the template writes calls in a format that none of `FORMATS` reads back.
    """
    if not isinstance(tokenizer, RendersChat) or not _takes_functions(tokenizer):
        return Dialect(format="hermes" if wanted == "auto" else wanted, template=False)
    parallel = _shown(tokenizer, 2) is not None
    if wanted != "auto":
        return Dialect(format=wanted, template=True, parallel=parallel)
    text, signatures = _shown(tokenizer, 1) or "", {PROBE["name"]: Signature.of(PROBE["parameters"])}
    for name in FORMATS:
        if parse(text, name, signatures).calls[:1] == (_calls(1)[0],):
            return Dialect(format=name, template=True, parallel=parallel)
    raise TaskError(
        "the model's chat template writes tool calls in a format that is not known here; set `tool_call_format` to the "
        f"one that the model answers in: {', '.join(sorted(FORMATS))}"
    )


def as_messages(request: str, history: Sequence[Exchange]) -> list[dict[str, Any]]:
    """A request and what was called and came back since, as OpenAI's interface has it."""
    made: list[dict[str, Any]] = [{"role": "user", "content": request}]
    number = 0
    for exchange in history:
        keys = [f"call{number + index:05d}" for index in range(len(exchange.calls))]
        number += len(keys)
        calls = [
            {"id": key, "type": "function", "function": call.as_dict()}
            for key, call in zip(keys, exchange.calls, strict=True)
        ]
        made.append({"role": "assistant", "content": exchange.text, "tool_calls": calls})
        made += [
            {"role": "tool", "tool_call_id": key, "name": call.name, "content": result}
            for key, call, result in zip(keys, exchange.calls, exchange.results, strict=True)
        ]
    return made


def wrapped(functions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Functions as chat templates take them."""
    return [{"type": "function", "function": dict(function)} for function in functions]


def _takes_functions(tokenizer: RendersChat) -> bool:
    """Whether the template shows functions, calls and results; many drop one of them without a word."""
    if not tokenizer.has_template:
        return False
    try:
        listed = tokenizer.render(as_messages(QUESTION, []), tools=wrapped([PROBE]))
    except TaskError:
        return False
    return PROBE["name"] in listed and _shown(tokenizer, 1) is not None


def _shown(tokenizer: RendersChat, count: int) -> str | None:
    """What the template writes after the question for so many calls in one turn; None if it refuses or drops any."""
    calls = _calls(count)
    results = tuple(f"{WEATHER}-{index}" for index in range(count))
    asked = as_messages(QUESTION, [Exchange(calls=calls, results=results)])
    try:
        text = tokenizer.render(asked, tools=wrapped([PROBE])).rpartition(QUESTION)[2]
    except TaskError:
        return None
    expected = [*results, *(str(call.arguments["place"]) for call in calls)]
    return text if all(part in text for part in expected) else None


def _calls(count: int) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(str(PROBE["name"]), {"place": f"{PLACE}-{index}"}) for index in range(count))
