"""Chat templates: found beside the tokenizer, rendered in a sandbox as transformers renders them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from vcbench.errors import ModelError, TaskError
from vcbench.models.files import read_json, read_text
from vcbench.models.template_process import TEMPLATES
from vcbench.registry import suggest

DEFAULT_DATE = datetime(2025, 1, 1)
"""What `strftime_now` answers, so that a prompt does not depend on the day it is built."""
GIVEN = ("messages", "tools", "documents", "add_generation_prompt")
"""What every template is given; special tokens come beside it."""
LONGEST_MESSAGE = 500


class ChatTemplate:
    """One or several named templates of a model."""

    def __init__(self, sources: Mapping[str, str], *, now: datetime = DEFAULT_DATE) -> None:
        """`sources`: name to template; `default` is the usual one, `tool_use` is taken when there are tools.

        Raises ModelError on a template that does not compile.
        """
        if not sources:
            raise ModelError("no chat template; use a model that has one, or a task whose prompts are plain text")
        self.sources = dict(sources)
        self._now = now.isoformat()
        self._ended: str | None = None
        self._facts = {name: self._compile(name, source) for name, source in sources.items()}

    @property
    def sha256(self) -> str:
        """Hash over all templates; that of the text itself where there is one."""
        one = next(iter(self.sources.values())) if len(self.sources) == 1 else json.dumps(self.sources, sort_keys=True)
        return hashlib.sha256(one.encode("utf-8", "surrogatepass")).hexdigest()

    def check_arguments(self, arguments: Mapping[str, Any]) -> None:
        """Raises ModelError on an argument that no template reads, or that would replace what vcbench gives it."""
        reads = {name for facts in self._facts.values() for name in facts["reads"]} - set(GIVEN)
        for name in arguments:
            if name in GIVEN:
                raise ModelError(f"model.template: `{name}` is given by vcbench itself; remove it")
            if name not in reads:
                raise ModelError(
                    f"model.template: the model's chat template does not read `{name}`, so it would change nothing; it "
                    f"reads {', '.join(sorted(reads)) or 'no argument'} ({suggest(name, sorted(reads))})"
                )

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as text, ready for the assistant's turn. `variables`: special tokens and arguments.

        Raises TaskError if the messages do not suit the template, or it takes too much time or memory over them.
        """
        name = self._choose(tools)
        if self._ended is not None:
            raise TaskError(f"the model's chat template is not tried again: {self._ended}")
        takes_parts = self._facts[name]["takes_parts"]
        prepared = [_prepare(message, index, takes_parts=takes_parts) for index, message in enumerate(messages)]
        given = dict(variables or {}) | {
            "messages": prepared,
            "tools": [dict(tool) for tool in tools] or None,
            "documents": None,
            "add_generation_prompt": True,
        }
        try:
            answer = TEMPLATES.ask(self.sources[name], self._now, given)
        except (TypeError, ValueError, RecursionError) as error:
            raise TaskError(f"a message or tool holds what JSON cannot: {error}") from error
        if "ended" in answer:
            # A thousand prompts would each take the time after which it was ended.
            self._ended = one_line(answer["error"])
        if "error" in answer:
            raise TaskError(f"the model's chat template refuses these messages: {one_line(answer['error'])}")
        return str(answer["text"])

    def _choose(self, tools: Sequence[Mapping[str, Any]]) -> str:
        if tools and "tool_use" in self.sources:
            return "tool_use"
        if "default" in self.sources:
            return "default"
        if len(self.sources) == 1:
            return next(iter(self.sources))
        raise ModelError(f"none of the chat templates is the default; there are: {', '.join(self.sources)}")

    def _compile(self, name: str, source: str) -> dict[str, Any]:
        """What the template's text tells: `takes_parts` and `reads`."""
        answer = TEMPLATES.ask(source, self._now, None)
        if "error" in answer:
            raise ModelError(f"chat template {name!r} does not compile: {one_line(answer['error'])}")
        return answer


def one_line(text: str) -> str:
    """A message of a stranger's template without line ends, and not endless."""
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_MESSAGE else line[:LONGEST_MESSAGE] + "..."


def load_template_sources(directory: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Templates of a model directory by name; empty if it has none.

    Looks where transformers does: `chat_template.jinja` (and `additional_chat_templates/*.jinja`), then
    `chat_template.json`, then the tokenizer's configuration, as one string, a mapping, or a list of named ones.
    """
    single = directory / "chat_template.jinja"
    if single.is_file():
        extra = sorted((directory / "additional_chat_templates").glob("*.jinja"))
        return {"default": read_text(single)} | {file.stem: read_text(file) for file in extra}
    legacy = directory / "chat_template.json"
    if legacy.is_file():
        return _named(read_json(legacy).get("chat_template"))
    return _named(tokenizer_config.get("chat_template"))


def _named(value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list) and all(isinstance(item, Mapping) for item in value):
        value = {item.get("name"): item.get("template") for item in value}
    if isinstance(value, Mapping) and all(isinstance(part, str) for pair in value.items() for part in pair):
        return dict(value)
    raise ModelError("chat_template is neither a template nor a list of named templates")


def _prepare(message: Mapping[str, Any], index: int, *, takes_parts: bool) -> dict[str, Any]:
    """A copy of the message without null fields, its content and tool calls in the form that templates expect."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise TaskError(f"message {index} has no role; a message is a mapping with `role` and `content`")
    copy = {key: value for key, value in message.items() if value is not None}
    content = copy.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        texts = [_part_text(part, index) for part in content]
        copy["content"] = [{"type": "text", "text": text} for text in texts] if takes_parts else "\n".join(texts)
    elif content is not None and not isinstance(content, str):
        raise TaskError(f"message {index} has content of type {type(content).__name__}; expected text or text parts")
    if isinstance(copy.get("tool_calls"), Sequence):
        copy["tool_calls"] = [_parsed_call(call, index) for call in copy["tool_calls"]]
    return copy


def _part_text(part: Any, index: int) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type", "unknown") if isinstance(part, Mapping) else type(part).__name__
    raise TaskError(f"message {index} holds a part of type {kind!r}; only text parts are supported")


def _parsed_call(call: Any, index: int) -> Any:
    """The call with JSON-text arguments parsed: APIs carry text, templates iterate over a mapping."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except ValueError as error:
        raise TaskError(f"message {index} has tool-call arguments that are not JSON: {error}") from error
    return {**call, "function": {**function, "arguments": arguments}}
