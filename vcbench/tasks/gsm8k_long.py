"""Grade-school questions behind a long context: several in one prompt, after many worked examples.

Rows are those of GSM8K (Cobbe et al., arXiv 2110.14168): {question, answer}, the answer ending in `#### N`. Chaining
questions is the idea of Liu et al., LongGenBench, arXiv 2410.04199.
"""

from __future__ import annotations

import hashlib
import random
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from math import inf
from pathlib import Path

from vcbench.errors import TaskError, VcbenchError
from vcbench.registry import register
from vcbench.tasks.base import (
    Answer,
    Metric,
    Prompt,
    PromptTokenizer,
    Question,
    Ratio,
    Task,
    Value,
    checked,
    excluding,
)
from vcbench.tasks.budget import over
from vcbench.tasks.rows import Row, read_rows
from vcbench.tasks.source import SplitOptions, source_rows

SAMPLE_FILE = "gsm8k.jsonl"
DEFAULT_SHOTS = 8
EXAMPLE_SPLIT = "train"
NUMBER = r"(?<![\d.])-?\d[\d,]*(?:\.\d+)?"
GOLD = re.compile(rf"####\s*({NUMBER})\s*$")
MARKED = re.compile(rf"####\s{{0,8}}[^\w\s-]?\s{{0,8}}({NUMBER})")
STATED = re.compile(rf"answer is[^\d\n-]{{0,80}}({NUMBER})", re.IGNORECASE)
HEADING = re.compile(r"^[^\w\n]*answer[ _#]{1,2}(\d{1,4})\b", re.IGNORECASE | re.MULTILINE)
NEXT_QUESTION = re.compile(r"^[^\w\n]*(?:question|example)\b", re.IGNORECASE | re.MULTILINE)
CALCULATION = re.compile(r"<<[^<>]*>>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(SplitOptions):
    """How many questions and worked examples stand in a prompt, and where both come from."""

    config: str = field(default="main", metadata={"doc": "Configuration of the data set on the hub."})
    questions: int = field(default=4, metadata={"doc": "Questions in one prompt.", "minimum": 1})
    shots: int | None = field(
        default=None, metadata={"doc": "Worked examples before the questions; 8 unless given.", "minimum": 0}
    )
    context_tokens: int | None = field(
        default=None, metadata={"doc": "As many worked examples as fit into prompts of this length.", "minimum": 1}
    )
    examples: str = field(
        default="",
        metadata={"doc": "A local file of worked examples; else the hub's `train` split, or rows that are not asked."},
    )
    max_context_tokens: int | None = field(
        default=None, metadata={"doc": "Leave out prompts longer than this; they are counted.", "minimum": 1}
    )

    def __post_init__(self) -> None:
        SplitOptions.__post_init__(self)
        if self.shots is not None and self.context_tokens is not None:
            raise ValueError("shots and context_tokens both set how many examples there are; give one of them")

    @property
    def most_tokens(self) -> float:
        """No prompt is longer than this."""
        return min(limit for limit in (self.max_context_tokens, self.context_tokens, inf) if limit is not None)


@dataclass(frozen=True, slots=True)
class Problem:
    """One row: a question, its worked solution without the calculator's marks, and the result as a number."""

    number: int
    question: str
    solution: str
    result: str


@register("task", "gsm8k-long")
class Gsm8kLongTask(Task):
    """`questions` rows a prompt, in their order; the last prompt may have fewer."""

    Options = Options
    summary = "grade-school questions in long prompts: several at once after worked examples; GSM8K or own sample"
    metrics = (
        Metric(name="correct", summary="questions answered with exactly the right number", kind="ratio", headline=True),
        Metric(name="all_correct", summary="prompts of which every question is right"),
        Metric(name="answered", summary="questions to which any number is given", kind="ratio"),
        Metric(
            name="same_as_full",
            summary="the same number as full KV, of questions to which that gives one",
            kind="ratio",
        ),
    )

    def prompts(self, tokenizer: PromptTokenizer, *, limit: int | None, seed: int) -> list[Prompt]:
        """The prompts; examples are drawn from the seed, never from a prompt's own questions."""
        options = self.options
        assert isinstance(options, Options)
        self.excluded = []
        asked = self._problems(source_rows(options, SAMPLE_FILE, config=options.config))
        if (shown := _example_rows(options)) is not None:
            pool = list(self._problems(shown, "example-"))
        else:
            # The examples of a prompt are drawn from all other rows, so all of them are read.
            pool = list(asked)
            asked = iter(pool)
        made: list[Prompt] = []
        while (limit is None or len(made) < limit) and (group := list(islice(asked, options.questions))):
            prompt = _prompt(group, pool, tokenizer, options, seed)
            if (exclusion := over(prompt.id, len(prompt.ids), options.most_tokens)) is not None:
                self.excluded.append(exclusion)
            else:
                made.append(prompt)
        return checked(made, task="gsm8k-long", excluded=self.excluded)

    def _problems(self, rows: Iterator[Row], prefix: str = "") -> Iterator[Problem]:
        """The rows that are problems; the others are excluded."""
        for row in rows:
            with excluding(self.excluded, f"{prefix}{row.place.replace(' ', '-')}"):
                yield _problem(row)

    def score(self, question: Question, answer: Answer, reference: Answer | None) -> Mapping[str, Value]:
        """Each question for itself; see `results`."""
        right = [Decimal(result) for result in question.target["results"]]
        given = results(answer.text, len(right))
        values: dict[str, Value] = {
            "correct": Ratio(sum(map(_equal, given, right)), len(right)),
            "all_correct": all(map(_equal, given, right)),
            "answered": Ratio(sum(number is not None for number in given), len(right)),
            "same_as_full": None,
        }
        if reference is not None:
            pairs = [
                pair for pair in zip(given, results(reference.text, len(right)), strict=True) if pair[1] is not None
            ]
            values["same_as_full"] = Ratio(sum(_equal(*pair) for pair in pairs), len(pairs)) if pairs else None
        return values


def results(answer: str, count: int) -> list[Decimal | None]:
    """The numbers that an answer gives to `count` questions; None for each that it leaves open.

    Answers begin with `Answer N`, the first of each N counts, and each ends where a further question begins. Without
    such headings the numbers marked `####` are taken in their order, or for a single question the whole text.
    """
    headings = [heading for heading in HEADING.finditer(answer) if 1 <= int(heading[1]) <= count]
    if not headings:
        return [_result(answer)] if count == 1 else _marked(answer, count)
    found: dict[int, Decimal | None] = {}
    ends = [heading.start() for heading in headings[1:]] + [len(answer)]
    for heading, end in zip(headings, ends, strict=True):
        found.setdefault(int(heading[1]), _result(answer[heading.end() : end]))
    return [found.get(number) for number in range(1, count + 1)]


def _result(text: str) -> Decimal | None:
    """The number after the first `####`, else that of `answer is`, else the last one before a further question."""
    own = NEXT_QUESTION.split(text, maxsplit=1)[0]
    for found in (MARKED.search(own), STATED.search(own)):
        if found:
            return _decimal(found[1])
    numbers = re.findall(NUMBER, own)
    return _decimal(numbers[-1]) if numbers else None


def _marked(answer: str, count: int) -> list[Decimal | None]:
    numbers = [_decimal(found[1]) for found in MARKED.finditer(answer)][:count]
    return [*numbers, *[None] * (count - len(numbers))]


def _equal(given: Decimal | None, right: Decimal | None) -> bool:
    return given is not None and given == right


def _decimal(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))


def _problem(row: Row) -> Problem:
    question, answer = row.text("question").strip(), row.text("answer").strip()
    gold = GOLD.search(answer)
    if gold is None:
        row.refuse("field `answer` must end in `#### ` and a number")
    return Problem(row.number, question, CALCULATION.sub("", answer), gold[1].replace(",", ""))


def _example_rows(options: Options) -> Iterator[Row] | None:
    """The rows of the worked examples' own source; None if they come from the rows that are asked."""
    if options.examples:
        return read_rows(Path(options.examples))
    if options.dataset and not options.file:
        shown = SplitOptions(dataset=options.dataset, revision=options.revision, split=EXAMPLE_SPLIT)
        return source_rows(shown, SAMPLE_FILE, config=options.config)
    return None


def _prompt(
    asked: Sequence[Problem], pool: Sequence[Problem], tokenizer: PromptTokenizer, options: Options, seed: int
) -> Prompt:
    name = f"q{asked[0].number}" if len(asked) == 1 else f"q{asked[0].number}-{asked[-1].number}"
    questions = {problem.question for problem in asked}
    others = [problem for problem in pool if problem.question not in questions]
    random.Random(f"{seed}/{name}").shuffle(others)

    def render(shots: int) -> list[int]:
        try:
            return tokenizer.chat([{"role": "user", "content": _content(others[:shots], asked)}])
        except (VcbenchError, ValueError) as error:
            raise TaskError(f"task 'gsm8k-long', prompt {name}: does not fit the chat template: {error}") from error

    if options.context_tokens is None:
        shots = DEFAULT_SHOTS if options.shots is None else options.shots
        if shots > len(others):
            raise TaskError(
                f"task 'gsm8k-long', prompt {name}: {shots} worked examples are wanted, and {len(others)} are there; "
                "set `shots` lower, or give more `examples`"
            )
    else:
        shots = _most_shots(render, len(others), options.context_tokens, name)
    rows = "\n".join(f"{problem.question}\n{problem.solution}" for problem in (*others[:shots], *asked))
    return Prompt(
        id=name,
        ids=tuple(render(shots)),
        document_sha256=hashlib.sha256(rows.encode()).hexdigest(),
        target={"results": [problem.result for problem in asked]},
        meta={**options.origin, "rows": [problem.number for problem in asked], "shots": shots},
    )


def _most_shots(render: Callable[[int], Sequence[int]], most: int, tokens: int, name: str) -> int:
    """As many examples as fit."""
    too_many = bisect_left(range(most + 1), True, key=lambda shots: len(render(shots)) > tokens)
    if too_many > most:
        raise TaskError(
            f"task 'gsm8k-long', prompt {name}: all {most} worked examples fill {len(render(most))} of context_tokens "
            f"{tokens}; give more `examples`, or lower it"
        )
    return max(0, too_many - 1)


def _content(shown: Sequence[Problem], asked: Sequence[Problem]) -> str:
    examples = "".join(
        f"Example {number}\nQuestion: {problem.question}\nAnswer: {problem.solution}\n\n"
        for number, problem in enumerate(shown, start=1)
    )
    questions = "\n".join(f"Question {number}: {problem.question}" for number, problem in enumerate(asked, start=1))
    several = f"these {len(asked)} questions in their order" if len(asked) > 1 else "this question"
    return (
        "Solve word problems step by step. The last line of every answer is #### followed by the result as a number."
        f"\n\n{examples}Now answer {several}. Begin every answer with its number, such as `Answer 1:`.\n\n{questions}"
    )
