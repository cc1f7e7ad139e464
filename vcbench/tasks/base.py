"""What a task is: something that turns options and a tokenizer into prompts, and answers into scores."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from vcbench.errors import RowError, TaskError
from vcbench.records.codec import plain
from vcbench.tasks.reasoning import split


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

    @property
    def target_sha256(self) -> str:
        """Hash of the target, as JSON with sorted keys."""
        return hashlib.sha256(json.dumps(plain(self.target), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """Base of every task's options; a subclass adds typed fields with defaults and `metadata={"doc": ...}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """A row of the data that cannot be asked, such as one over the context's limit; it is counted and shown."""

    id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What a task says of one answer.

    A `share` is a bool of each answer, a `mean` a float, and a `ratio` is pooled: sum over sum. `headline` metrics
    are shown by `vcbench compare`, all of them by `vcbench score`. `neither` is for what only describes.

    Prompts with the same `meta["group"]` belong together, such as the steps of one conversation. A share `of` groups
    counts a group as true where every answer that has a value is true, and as nothing where an answer is missing.
    """

    name: str
    summary: str
    kind: Literal["share", "mean", "ratio"] = "share"
    better: Literal["higher", "lower", "neither"] = "higher"
    headline: bool = False
    of: Literal["answer", "group"] = "answer"


@dataclass(frozen=True, slots=True)
class Ratio:
    """One answer's part in a pooled metric, such as correct calls of expected calls."""

    numerator: float
    denominator: float


Value = bool | float | Ratio | None
"""A metric of one answer; None where it does not apply, which is counted apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A prompt as the records give it back for scoring."""

    id: str
    target: Any
    meta: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One arm's answer, made of the text of its whole output; what it thinks before is no part of `text`.

    So no task has to take thoughts out, and none can forget it. `text` has no closing stop token, but other special
    tokens (of tool calls) are in it; it is empty where a thought did not end (`thought_ended`). `written` is the whole
    output. `prompt_tail`: the prompt's last characters, which show whether the template opened a thought.
    """

    text: str
    token_ids: Sequence[int]
    finish_reason: str
    prompt_tail: InitVar[str] = ""
    written: str = field(init=False)
    thought_ended: bool = field(init=False)

    def __post_init__(self, prompt_tail: str) -> None:
        parts = split(self.text, prompt_tail=prompt_tail)
        for name, value in (("written", self.text), ("text", parts.answer), ("thought_ended", parts.closed)):
            object.__setattr__(self, name, value)


class Task(ABC):
    """A registered source of prompts. Subclasses set `Options` and `summary`, and `metrics` if they score answers.

    `excluded` is filled by `prompts`.
    """

    Options: ClassVar[type[TaskOptions]] = TaskOptions
    summary: ClassVar[str] = ""
    metrics: tuple[Metric, ...] = ()
    """Of the class, or of the instance where the options decide what is scored."""

    def __init__(self, options: TaskOptions) -> None:
        self.options = options
        self.excluded: list[Exclusion] = []

    @abstractmethod
    def prompts(self, tokenizer: PromptTokenizer, *, limit: int | None, seed: int) -> list[Prompt]:
        """The task's prompts, in a fixed order. Raises TaskError on missing or malformed data."""

    def score(self, question: Question, answer: Answer, reference: Answer | None) -> Mapping[str, Value]:
        """The value of each of `metrics`, from records alone: no model, no tokenizer, no network.

        Args:
            reference: full KV's answer to the same question; None where there is none.
        """
        return {}

    def follow_up(self, prompt: Prompt, answer: Answer, tokenizer: PromptTokenizer) -> Prompt | None:
        """The next turn of a conversation that an answer leads to; None where it ends there, as with most tasks.

        It must depend on its arguments and the task's data alone. Each cell follows its own answers; those that give
        the same answers must share one prompt, so its id is best made by `follow_up_id`. Only called after `prompts`.
        """
        return None

    def has_follow_ups(self) -> bool:
        """Whether answers may lead to further prompts; a task that asks on in some of its modes alone says which."""
        return type(self).follow_up is not Task.follow_up

    def export(self, cell: str, answers: Sequence[tuple[Question, Answer]], directory: Path) -> list[Path]:
        """Writes a cell's answers in the benchmark's own format, for its own tools, and says which files."""
        return []


T = TypeVar("T")


def as_needed(rows: Iterable[T], made: Sequence[Prompt], limit: int | None) -> Iterator[T]:
    """The rows one by one until `made` holds `limit` prompts; what comes after is never read."""
    remaining = iter(rows)
    while limit is None or len(made) < limit:
        try:
            yield next(remaining)
        except StopIteration:
            return


@contextmanager
def excluding(excluded: list[Exclusion], name: str) -> Iterator[None]:
    """Within it a row that is refused is added to `excluded` and no more is made of it."""
    try:
        yield
    except RowError as error:
        excluded.append(Exclusion(id=name, reason=str(error)))


def follow_up_id(parent: Prompt, ids: Sequence[int], *, name: str) -> str:
    """`name` and 8 hex digits over the parent's id and the follow-up's token ids: the same history, the same id."""
    return f"{name}-{hashlib.sha256(f'{parent.id}:{tuple(ids)}'.encode()).hexdigest()[:8]}"


def checked(prompts: Sequence[Prompt], *, task: str, excluded: Sequence[Exclusion] = ()) -> list[Prompt]:
    """The prompts as a list. Raises TaskError if there are none, with what was excluded, one is empty, or two share an
    id."""
    if not prompts and excluded:
        first = f"the first, {excluded[0].id}: {excluded[0].reason}"
        raise TaskError(f"task {task!r} has no prompts: all {len(excluded)} are excluded; {first}")
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
