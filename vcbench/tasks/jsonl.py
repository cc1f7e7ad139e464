"""Prompts from a JSONL file: one object a line with an `id` and one of `prompt`, `messages` and `prompt_ids`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vcbench.errors import VcbenchError
from vcbench.registry import register, suggest
from vcbench.tasks.base import Prompt, PromptTokenizer, Task, TaskOptions, checked
from vcbench.tasks.rows import Row, identified, read_rows

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
        for name, row in identified(read_rows(Path(options.path)), "id"):
            source = _source(row)
            if limit is None or len(made) < limit:
                made.append(_prompt(row, name, source, tokenizer, options))
        return checked(made, task="jsonl")


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
        row.messages(name)
    if name == "prompt_ids" and not (isinstance(value, list) and all(type(item) is int for item in value)):
        row.refuse("field `prompt_ids` must be a list of whole numbers")
    if not value:
        row.refuse(f"field `{name}` is empty; an empty prompt has no answer")
    return name


def _hint(row: Row) -> str:
    others = [key for key in row.values if key != "id"]
    return suggest(others[0], list(SOURCES)) if others else "the line has no other field"


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
