"""How a model is given functions and the history of its calls: by its chat template, or by an instruction of our own.

What a template can do is found out by trying it: whether the functions, a call and its result appear in the text, and
in which format the call does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from vcbench.errors import TaskError
from vcbench.tasks.base import PromptTokenizer
from vcbench.tasks.tool_calls.base import Signature, ToolCall, written
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

INSTRUCTION = """\
These functions can be called, one JSON object a line:

{functions}

To call some, answer with the calls alone, each written like this one:

{example}

Put calls that do not need each other's results into one answer. The result of each comes back between <tool_response> \
and </tool_response>. Once no more calls are needed, answer the request in plain text.

{request}"""


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

    template: the chat template writes them; else `INSTRUCTION` does, and results come back as the user's turn.
    parallel: several calls may stand in one turn; else a history has them one after the other, each with its result.
    """

    format: FormatName
    template: bool
    parallel: bool = True

    def ids(
        self,
        tokenizer: PromptTokenizer,
        request: str,
        functions: Sequence[Mapping[str, Any]],
        history: Sequence[Exchange],
    ) -> list[int]:
        """Token ids of a conversation, ready for the assistant's turn. Raises TaskError if the template refuses it."""
        if self.template:
            return tokenizer.chat(messages(request, history, parallel=self.parallel), tools=wrapped(functions))
        return tokenizer.chat(list(self._instructed(request, functions, history)))

    def as_meta(self) -> dict[str, Any]:
        """What a prompt's record says of it."""
        way = "chat template" if self.template else "instruction"
        return {"format": self.format, "tools_by": way, "parallel_calls": self.parallel}

    def _instructed(
        self, request: str, functions: Sequence[Mapping[str, Any]], history: Sequence[Exchange]
    ) -> Iterator[dict[str, Any]]:
        form = FORMATS[self.format]
        listed = "\n".join(map(written, functions))
        example = form.write([ToolCall("function_name", {"parameter": "value"})])
        content = INSTRUCTION.format(functions=listed, example=example, request=request)
        yield {"role": "user", "content": content}
        for exchange in history:
            said = f"{exchange.text}\n\n" if exchange.text else ""
            yield {"role": "assistant", "content": said + form.write(exchange.calls)}
            results = (f"<tool_response>\n{result}\n</tool_response>" for result in exchange.results)
            yield {"role": "user", "content": "\n".join(results)}


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


def messages(request: str, history: Sequence[Exchange], *, parallel: bool) -> list[dict[str, Any]]:
    """A conversation as chat templates take it; calls have ids of nine letters and digits, which Mistral's demand."""
    made: list[dict[str, Any]] = [{"role": "user", "content": request}]
    number = 0
    for exchange in history:
        pairs = list(zip(exchange.calls, exchange.results, strict=True))
        for group in [pairs] if parallel else [[pair] for pair in pairs]:
            numbered = [(f"call{number + index:05d}", *pair) for index, pair in enumerate(group)]
            number += len(group)
            calls = [{"id": key, "type": "function", "function": call.as_dict()} for key, call, _ in numbered]
            made.append({"role": "assistant", "content": exchange.text, "tool_calls": calls})
            made += [
                {"role": "tool", "tool_call_id": key, "name": call.name, "content": result}
                for key, call, result in numbered
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
        listed = tokenizer.render(messages(QUESTION, [], parallel=True), tools=wrapped([PROBE]))
    except TaskError:
        return False
    return PROBE["name"] in listed and _shown(tokenizer, 1) is not None


def _shown(tokenizer: RendersChat, count: int) -> str | None:
    """What the template writes after the question for so many calls in one turn; None if it refuses or drops any."""
    calls = _calls(count)
    results = tuple(f"{WEATHER}-{index}" for index in range(count))
    conversation = messages(QUESTION, [Exchange(calls=calls, results=results)], parallel=True)
    try:
        text = tokenizer.render(conversation, tools=wrapped([PROBE])).rpartition(QUESTION)[2]
    except TaskError:
        return None
    expected = [*results, *(str(call.arguments["place"]) for call in calls)]
    return text if all(part in text for part in expected) else None


def _calls(count: int) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(str(PROBE["name"]), {"place": f"{PLACE}-{index}"}) for index in range(count))
