"""What a task is: something that turns options and a tokenizer into prompts."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from vcbench.errors import TaskError


class PromptTokenizer(Protocol):
    """What a task may ask of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text, with no special token added."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids; undecodable bytes become U+FFFD."""

    def chat(self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Token ids of a conversation under the model's chat template, ready for the assistant's turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request of a task. `id` is unique within the task; ids of tokens are the truth, text is derived."""

    id: str
    ids: tuple[int, ...]
    document_sha256: str
    target: Any = None
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def sha256(self) -> str:
        """Hash of the token ids."""
        return hashlib.sha256(",".join(map(str, self.ids)).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Base of every task's options; a subclass adds typed fields with defaults and `metadata={"doc": ...}`."""


class Task(ABC):
    """A registered source of prompts. Subclasses set `Options` and `summary`."""

    Options: ClassVar[type[TaskOptions]] = TaskOptions
    summary: ClassVar[str] = ""

    def __init__(self, options: TaskOptions) -> None:
        self.options = options

    @abstractmethod
    def prompts(self, tokenizer: PromptTokenizer, *, limit: int | None, seed: int) -> list[Prompt]:
        """The task's prompts, in a fixed order. Raises TaskError on missing or malformed data."""


def checked(prompts: Sequence[Prompt], *, task: str) -> list[Prompt]:
    """The prompts as a list. Raises TaskError if there are none, one is empty, or two share an id."""
    if not prompts:
        raise TaskError(f"task {task!r} has no prompts with these options; relax them or raise the limit")
    places: dict[str, int] = {}
    for number, prompt in enumerate(prompts, start=1):
        if not prompt.ids:
            raise TaskError(f"task {task!r}, prompt {number} ({prompt.id!r}): no tokens; give it some text")
        if prompt.id in places:
            raise TaskError(f"task {task!r}, prompts {places[prompt.id]} and {number} share the id {prompt.id!r}")
        places[prompt.id] = number
    return list(prompts)
