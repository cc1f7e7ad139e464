"""Prompts from a JSONL file: one object a line with an `id` and one of `prompt`, `messages` and `prompt_ids`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from vcbench.errors import TaskError, VcbenchError
from vcbench.registry import register, suggest
from vcbench.tasks.base import Prompt, PromptTokenizer, Task, TaskOptions, checked

SOURCES = ("prompt", "messages", "prompt_ids")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TaskOptions):
    """Which file, and how a `prompt` becomes tokens."""

    path: str = field(metadata={"doc": "The file, relative to the working directory."})
    format: Literal["chat", "raw"] = field(
        default="chat",
        metadata={"doc": "`chat` makes a `prompt` the user's turn of the chat template; `raw` adds no token at all."},
    )

    def __post_init__(self) -> None:
        if not self.path:
            raise ValueError("path must name a file")


@dataclass(frozen=True, slots=True)
class Row:
    """One parsed line and where it stands."""

    where: str
    number: int
    data: bytes
    values: Mapping[str, Any]

    def refuse(self, message: str) -> NoReturn:
        """Raises TaskError with file and line."""
        raise TaskError(f"{self.where}: {message}")


@register("task", "jsonl")
class JsonlTask(Task):
    """Any prompts. Further keys of a line go to the prompt's `meta`, except `target`, `tools` and `meta` itself."""

    Options = Options
    summary = "your own prompts: a JSONL file of {id, prompt | messages | prompt_ids}"

    def prompts(self, tokenizer: PromptTokenizer, *, limit: int | None, seed: int) -> list[Prompt]:
        """The file's prompts in its order; ids and fields of all lines are checked, beyond the limit too."""
        options = self.options
        assert isinstance(options, Options)
        made: list[Prompt] = []
        lines: dict[str, int] = {}
        for row in read_rows(Path(options.path)):
            name = _identifier(row)
            if name in lines:
                row.refuse(f"id {name!r} is that of line {lines[name]} already; give each line its own")
            lines[name] = row.number
            source = _source(row)
            if limit is None or len(made) < limit:
                made.append(_prompt(row, name, source, tokenizer, options))
        return checked(made, task="jsonl")


def read_rows(path: Path) -> Iterator[Row]:
    """The objects of a JSONL file; blank lines are skipped. Raises TaskError with the line."""
    try:
        data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror or error}; check the task's `path`") from error
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            values = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise TaskError(f"{where}: not a line of JSON ({error})") from error
        if not isinstance(values, dict):
            raise TaskError(f"{where}: a line must be a JSON object, not {type(values).__name__}")
        row = Row(where, number, line.strip(), values)
        if (field_name := _surrogate(values)) is not None:
            row.refuse(f"field `{field_name}` holds a lone surrogate, which no tokenizer can encode; remove it")
        yield row


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"bare {name}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys all differ."""
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return made


def _surrogate(values: Mapping[str, Any]) -> str | None:
    """The first field with a lone surrogate anywhere inside."""
    for key, value in values.items():
        # The escapes of ensure_ascii would hide what this looks for.
        text = key + json.dumps(value, ensure_ascii=False)
        if any("\ud800" <= character <= "\udfff" for character in text):
            return key.encode("ascii", "backslashreplace").decode()
    return None


def _identifier(row: Row) -> str:
    value = row.values.get("id")
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        row.refuse(f"field `id` must be a text or a whole number, not {json.dumps(value)}")
    return str(value)


def _source(row: Row) -> str:
    """Which of `SOURCES` the line has, with its shape checked."""
    given = [name for name in SOURCES if name in row.values]
    if len(given) != 1:
        found = " and ".join(f"`{name}`" for name in given) or f"none ({_hint(row)})"
        row.refuse(f"exactly one of `prompt`, `messages` and `prompt_ids` is needed, found {found}")
    name, value = given[0], row.values[given[0]]
    if name == "prompt" and not isinstance(value, str):
        row.refuse(f"field `prompt` must be a text, not {type(value).__name__}")
    if name == "messages":
        _check_messages(row, value)
    if name == "prompt_ids" and not (isinstance(value, list) and all(type(item) is int for item in value)):
        row.refuse("field `prompt_ids` must be a list of whole numbers")
    if not value:
        row.refuse(f"field `{name}` is empty; an empty prompt has no answer")
    return name


def _hint(row: Row) -> str:
    others = [key for key in row.values if key != "id"]
    return suggest(others[0], list(SOURCES)) if others else "the line has no other field"


def _check_messages(row: Row, messages: Any) -> None:
    if not isinstance(messages, list):
        row.refuse(f"field `messages` must be a list, not {type(messages).__name__}")
    for number, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            row.refuse(f"field `messages[{number}]` must be an object with a `role`")
        if not isinstance(message.get("content"), str) and not message.get("tool_calls"):
            row.refuse(f"field `messages[{number}].content` must be a text")


def _prompt(row: Row, name: str, source: str, tokenizer: PromptTokenizer, options: Options) -> Prompt:
    value = row.values[source]
    ids: Sequence[int]
    if source == "prompt_ids":
        ids = value
    elif source == "prompt" and options.format == "raw":
        ids = tokenizer.encode(value)
    else:
        messages = value if source == "messages" else [{"role": "user", "content": value}]
        try:
            ids = tokenizer.chat(messages, tools=_tools(row))
        except (VcbenchError, ValueError) as error:
            row.refuse(f"field `{source}` does not fit the model's chat template: {error}")
    _check_ids(row, source, ids, getattr(tokenizer, "vocab_size", None))
    return Prompt(
        id=name,
        ids=tuple(ids),
        document_sha256=hashlib.sha256(row.data).hexdigest(),
        target=row.values.get("target"),
        meta=_meta(row),
    )


def _tools(row: Row) -> list[Mapping[str, Any]]:
    tools = row.values.get("tools") or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        row.refuse("field `tools` must be a list of objects")
    return tools


def _check_ids(row: Row, source: str, ids: Sequence[int], vocab_size: int | None) -> None:
    if not ids:
        row.refuse(f"field `{source}` gives no tokens")
    highest = vocab_size - 1 if vocab_size is not None else None
    for position, token in enumerate(ids):
        if token < 0 or (highest is not None and token > highest):
            bound = f"0 to {highest}" if highest is not None else "0 or more"
            row.refuse(f"field `{source}`: token id {token} at position {position} is outside the vocabulary ({bound})")


def _meta(row: Row) -> dict[str, Any]:
    given = row.values.get("meta", {})
    if not isinstance(given, dict):
        row.refuse(f"field `meta` must be an object, not {type(given).__name__}")
    others = {key: value for key, value in row.values.items() if key not in (*SOURCES, "id", "target", "tools", "meta")}
    return {**others, **given, "line": row.number}
