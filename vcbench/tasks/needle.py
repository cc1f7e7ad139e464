"""Needles in generated documents: numbers of named things among noise, one of which is asked for.

The form is that of RULER's key-value needles (Hsieh et al., arXiv 2404.06654). Where the needle stands is the point: a
cache that drops what is far from the question, or from the beginning, shows it here.
"""

from __future__ import annotations

import hashlib
import importlib
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

from vcbench.errors import TaskError, VcbenchError
from vcbench.registry import register
from vcbench.tasks.base import Answer, Metric, Prompt, PromptTokenizer, Question, Task, TaskOptions, Value, checked

QUALITIES = (
    "amber",
    "broken",
    "copper",
    "distant",
    "early",
    "frozen",
    "green",
    "hollow",
    "ivory",
    "quiet",
    "red",
    "wide",
)
THINGS = (
    "anchor",
    "bridge",
    "cellar",
    "drum",
    "engine",
    "garden",
    "harbour",
    "ladder",
    "mirror",
    "orchard",
    "tower",
    "well",
)
SENTENCE = "The wind turns to the west and the boats wait in the bay until the tide comes back. "
VALUES = range(100_000, 1_000_000)
NUMBER = re.compile(r"\d[\d,]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TaskOptions):
    """Where the needle stands, in how long a prompt, among what."""

    positions: tuple[float, ...] = field(
        default=(0.0, 0.25, 0.5, 0.75, 1.0),
        metadata={"doc": "Where the needle stands: 0 is the document's first words, 1 its last."},
    )
    lengths: tuple[int, ...] = field(default=(2000,), metadata={"doc": "Lengths of the whole prompt, in tokens."})
    needles: int = field(default=3, metadata={"doc": "Numbers in a document, that asked for included.", "minimum": 1})
    noise: Literal["prose", "repeat"] = field(
        default="prose", metadata={"doc": "`prose` from Python's reference, or `repeat`, one sentence again and again."}
    )
    samples: int = field(default=1, metadata={"doc": "Documents of each length and position.", "minimum": 1})

    def __post_init__(self) -> None:
        if not self.positions or not all(0 <= position <= 1 for position in self.positions):
            raise ValueError("positions must be numbers from 0 to 1, at least one")
        if not self.lengths or min(self.lengths) < 1:
            raise ValueError("lengths must be whole numbers above 0, at least one")
        if len(set(self.positions)) < len(self.positions) or len(set(self.lengths)) < len(self.lengths):
            raise ValueError("positions and lengths must differ from each other")
        if not 1 <= self.needles <= len(QUALITIES) * len(THINGS):
            raise ValueError(f"needles must be 1 to {len(QUALITIES) * len(THINGS)}")


@dataclass(frozen=True, slots=True)
class Needle:
    """A named number, and where it stands."""

    name: str
    value: str
    position: float

    @property
    def sentence(self) -> str:
        """As the document says it."""
        return f"The number of the {self.name} is {self.value}.\n"


@register("task", "needle")
class NeedleTask(Task):
    """One prompt for each position, length and sample; positions of one sample share noise and numbers."""

    Options = Options
    summary = "find a number in generated text, at positions from the first word to the last"
    metrics = (
        Metric(name="found", summary="the first number of the answer is the right one", headline=True),
        Metric(name="mentioned", summary="the right number is anywhere in the answer"),
        Metric(name="confused", summary="the first number is that of another needle", better="lower"),
        Metric(name="same_as_full", summary="the same first number as full KV, where that gives one"),
    )

    def prompts(self, tokenizer: PromptTokenizer, *, limit: int | None, seed: int) -> list[Prompt]:
        """Sample by sample, length by length, and in each the positions in their order."""
        options = self.options
        assert isinstance(options, Options)
        cases = list(product(range(options.samples), options.lengths, options.positions))
        return checked([_prompt(*case, tokenizer, options, seed) for case in cases[:limit]], task="needle")

    def score(self, question: Question, answer: Answer, reference: Answer | None) -> Mapping[str, Value]:
        """Whether the number was found."""
        target, numbers = question.target, _numbers(answer.text)
        first = numbers[0] if numbers else None
        theirs = _numbers(reference.text)[:1] if reference is not None else []
        return {
            "found": first == target["value"],
            "mentioned": target["value"] in numbers,
            "confused": first in target["others"],
            "same_as_full": first == theirs[0] if theirs else None,
        }


def document(noise: Sequence[str], needles: Sequence[Needle]) -> str:
    """The noise with the needles at their shares of it; the first one is the one asked for, outermost at 0 and 1."""
    asked, *others = needles
    placed: list[list[str]] = [[] for _ in range(len(noise) + 1)]
    for needle in others:
        placed[round(needle.position * len(noise))].append(needle.sentence)
    place = placed[round(asked.position * len(noise))]
    place.insert(len(place) if asked.position == 1 else 0, asked.sentence)
    pieces = [*placed[0]]
    for unit, sentences in zip(noise, placed[1:], strict=True):
        pieces += [unit, *(["\n"] if sentences and not unit.endswith("\n") else []), *sentences]
    return "".join(pieces).rstrip()


def _prompt(
    sample: int, length: int, position: float, tokenizer: PromptTokenizer, options: Options, seed: int
) -> Prompt:
    name = f"{length}-at-{position:g}-{sample}"
    # One generator for all positions, so that nothing but the position differs.
    rng = random.Random(f"{seed}/{length}/{sample}")
    needles = _needles(rng, options.needles, position)
    noise = list(_prose(rng)) if options.noise == "prose" else None

    def text(units: int, needles: Sequence[Needle] = needles) -> str:
        return document([SENTENCE] * units if noise is None else noise[:units], needles)

    def render(text: str) -> list[int]:
        try:
            return tokenizer.chat([{"role": "user", "content": f"{text}\n\n{_question(needles[0])}"}])
        except (VcbenchError, ValueError) as error:
            raise TaskError(f"task 'needle', prompt {name}: does not fit the chat template: {error}") from error

    most = None if noise is None else len(noise)
    units = _most_units(lambda units: len(render(text(units))) <= length, most, name, length)
    ids = render(text(units))
    other = render(text(units, [_with_other_value(needles[0]), *needles[1:]]))
    return Prompt(
        id=name,
        ids=tuple(ids),
        document_sha256=hashlib.sha256(text(units).encode()).hexdigest(),
        target={"value": needles[0].value, "others": [needle.value for needle in needles[1:]]},
        meta={
            "position": position,
            "length": length,
            "sample": sample,
            "noise": options.noise,
            "needles": options.needles,
            "answer_token": next(i for i, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b),
        },
    )


def _most_units(fits: Callable[[int], bool], most: int | None, name: str, length: int) -> int:
    """As much noise as fits, at least one unit."""
    high = 64
    while (most is None or high < most) and fits(high):
        high *= 2
    if most is not None and high >= most and fits(most):
        raise TaskError(f"task 'needle', prompt {name}: the prose ends below {length} tokens; use `noise: repeat`")
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    if not low:
        raise TaskError(
            f"task 'needle', prompt {name}: {length} tokens hold no noise beside the needles; raise `lengths`"
        )
    return low


def _needles(rng: random.Random, count: int, position: float) -> list[Needle]:
    """The one asked for first; names and numbers all differ."""
    names = rng.sample([f"{quality} {thing}" for quality, thing in product(QUALITIES, THINGS)], count)
    values = rng.sample(VALUES, count)
    places = [position, *(rng.random() for _ in range(count - 1))]
    return [Needle(name, str(value), place) for name, value, place in zip(names, values, places, strict=True)]


def _with_other_value(needle: Needle) -> Needle:
    """The needle with a number that differs in every digit."""
    return Needle(needle.name, "".join(str((int(digit) + 5) % 10) for digit in needle.value), needle.position)


def _prose(rng: random.Random) -> Iterator[str]:
    """The lines of Python's reference, its topics in a drawn order."""
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError as error:
        raise TaskError("task 'needle': this Python comes without its reference; use `noise: repeat`") from error
    names = sorted(topics)
    rng.shuffle(names)
    for topic in names:
        yield from topics[topic].splitlines(keepends=True)


def _question(needle: Needle) -> str:
    return f"What is the number of the {needle.name}? Answer with the number alone."


def _numbers(text: str) -> list[str]:
    return [found.replace(",", "") for found in NUMBER.findall(text)]
