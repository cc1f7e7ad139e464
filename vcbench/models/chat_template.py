"""Chat templates: found beside the tokenizer, rendered in a sandbox as transformers renders them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, Template, TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from vcbench.errors import ModelError, TaskError

DEFAULT_DATE = datetime(2025, 1, 1)
"""What `strftime_now` answers, so that a prompt does not depend on the day it is built."""


class ChatTemplate:
    """One or several named templates of a model."""

    def __init__(self, sources: Mapping[str, str], *, now: datetime = DEFAULT_DATE) -> None:
        """`sources`: name to template; `default` is the usual one, `tool_use` is taken when there are tools.

        Raises ModelError on a template that does not compile.
        """
        if not sources:
            raise ModelError("no chat template; use a model that has one, or a task whose prompts are plain text")
        self.sources = dict(sources)
        self._environment = _environment(now)
        self._compiled = {name: self._compile(name, source) for name, source in sources.items()}

    @property
    def sha256(self) -> str:
        """Hash over all templates; that of the text itself where there is one."""
        one = next(iter(self.sources.values())) if len(self.sources) == 1 else json.dumps(self.sources, sort_keys=True)
        return hashlib.sha256(one.encode("utf-8", "surrogatepass")).hexdigest()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        special_tokens: Mapping[str, Any] | None = None,
    ) -> str:
        """The conversation as text, ready for the assistant's turn.

        Raises TaskError if the messages do not suit the template.
        """
        name = self._choose(tools)
        template, takes_parts = self._compiled[name]
        prepared = [_prepare(message, index, takes_parts=takes_parts) for index, message in enumerate(messages)]
        try:
            return template.render(
                messages=prepared,
                tools=[dict(tool) for tool in tools] or None,
                documents=None,
                add_generation_prompt=True,
                **(special_tokens or {}),
            )
        except (TemplateError, TypeError, ValueError, AttributeError, LookupError) as error:
            raise TaskError(f"the model's chat template refuses these messages: {error}") from error

    def _choose(self, tools: Sequence[Mapping[str, Any]]) -> str:
        if tools and "tool_use" in self.sources:
            return "tool_use"
        if "default" in self.sources:
            return "default"
        if len(self.sources) == 1:
            return next(iter(self.sources))
        raise ModelError(f"none of the chat templates is the default; there are: {', '.join(self.sources)}")

    def _compile(self, name: str, source: str) -> tuple[Template, bool]:
        try:
            parsed = self._environment.parse(source)
            return self._environment.from_string(source), _reads_parts(parsed)
        except TemplateSyntaxError as error:
            raise ModelError(f"chat template {name!r} does not compile: {error} (line {error.lineno})") from error


def load_template_sources(directory: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Templates of a model directory by name; empty if it has none.

    Looks where transformers does: `chat_template.jinja` (and `additional_chat_templates/*.jinja`), then
    `chat_template.json`, then the tokenizer's configuration, as one string, a mapping, or a list of named ones.
    """
    single = directory / "chat_template.jinja"
    try:
        if single.is_file():
            extra = sorted((directory / "additional_chat_templates").glob("*.jinja"))
            found = {file.stem: file.read_text(encoding="utf-8") for file in extra}
            return {"default": single.read_text(encoding="utf-8")} | found
        legacy = directory / "chat_template.json"
        if legacy.is_file():
            return _named(json.loads(legacy.read_text(encoding="utf-8")).get("chat_template"))
    except (OSError, ValueError, AttributeError) as error:
        raise ModelError(f"cannot read the chat template in {directory}: {error}; fetch the model again") from error
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


def _reads_parts(template: nodes.Template) -> bool:
    """Whether the template loops over a content, and so takes lists of parts.

    Asking `content is string` is no sign: Qwen3-Coder's does and then joins every content to text.
    """
    return any(_ends_in_content(loop.iter) for loop in template.find_all(nodes.For))


def _ends_in_content(node: nodes.Node | None) -> bool:
    if isinstance(node, nodes.Filter):
        return _ends_in_content(node.node)
    if isinstance(node, nodes.Name):
        return node.name == "content"
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "content"


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


def _environment(now: datetime) -> Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = now.strftime
    return environment
