"""Real long text that any machine has: the sources of Python's standard library and the topics of its reference.

Both change with the version of Python, so the hash of each document is recorded.
"""

from __future__ import annotations

import hashlib
import importlib
import random
import sysconfig
import tokenize
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vcbench.errors import TaskError
from vcbench.registry import register
from vcbench.tasks.base import Exclusion, Prompt, PromptTokenizer, Task, TaskOptions, checked

Kind = Literal["code", "prose"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One prompt: a document, what to do with it, and how many tokens the whole prompt may take."""

    id: str
    kind: Kind
    document: str
    tokens: int
    instruction: str


ENTRIES = (
    # The first ones are those that the embedded model answers with the least repetition.
    Entry("continue-csv", "code", "csv.py", 1600, "Write the code that follows where this file breaks off."),
    Entry("summarise-execmodel", "prose", "execmodel", 2000, "Summarise this text in your own words."),
    Entry(
        "describe-textwrap",
        "code",
        "textwrap.py",
        3500,
        "Describe every public function and class of this module: what it is for, its arguments, what it returns.",
    ),
    Entry(
        "tutorial-specialnames",
        "prose",
        "specialnames",
        5500,
        "Write a tutorial for beginners that teaches the main points of this text with short code examples.",
    ),
    Entry("port-fractions", "code", "fractions.py", 4000, "Rewrite the central class of this file in JavaScript."),
    Entry("summarise-debugger", "prose", "debugger", 2800, "Explain to a new programmer how to use this debugger."),
    Entry("explain-assignment", "prose", "assignment", 1400, "Explain this text with a short example for each rule."),
    Entry("explain-heapq", "code", "heapq.py", 1200, "Explain step by step how this module works."),
    Entry("test-shlex", "code", "shlex.py", 2500, "Write unit tests with `unittest` for the code in this file."),
    Entry("questions-compound", "prose", "compound", 4500, "Write ten exam questions about this text and answer them."),
    Entry(
        "compare-formatstrings", "prose", "formatstrings", 3000, "List the rules in this text, each with an example."
    ),
    Entry("review-dataclasses", "code", "dataclasses.py", 6000, "Review this code as a careful colleague would."),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(TaskOptions):
    """What to take from the table."""

    min_context_tokens: int = field(default=1000, metadata={"doc": "Prompts are at least this long.", "minimum": 1})
    max_context_tokens: int = field(default=6000, metadata={"doc": "Prompts are at most this long.", "minimum": 1})
    kinds: tuple[Kind, ...] = field(
        default=("code", "prose"), metadata={"doc": "`code` (modules) and `prose` (topics of the reference)."}
    )
    shuffle: bool = field(default=False, metadata={"doc": "Draw the order from the run's seed."})

    def __post_init__(self) -> None:
        if self.max_context_tokens < self.min_context_tokens:
            raise ValueError("max_context_tokens is below min_context_tokens {options.min_context_tokens}")
        if not self.kinds:
            raise ValueError("kinds must name `code`, `prose` or both")


@register("task", "stdlib")
class StdlibTask(Task):
    """Explain, continue, summarise: contexts of 1k to 6k tokens, truncated at a line's end to meet their length."""

    Options = Options
    summary = "explain, continue or summarise Python's own sources and reference, contexts of 1k-6k tokens"

    def prompts(self, tokenizer: PromptTokenizer, *, limit: int | None, seed: int) -> list[Prompt]:
        """The table's prompts in its order. One whose document is too short for `min_context_tokens` is excluded."""
        options = self.options
        assert isinstance(options, Options)
        self.excluded = []
        entries = [entry for entry in ENTRIES if entry.kind in options.kinds]
        if options.shuffle:
            random.Random(seed).shuffle(entries)
        made: list[Prompt] = []
        for entry in entries:
            if limit is not None and len(made) >= limit:
                break
            tokens = min(max(entry.tokens, options.min_context_tokens), options.max_context_tokens)
            prompt = build(entry, tokenizer, tokens)
            if len(prompt.ids) >= options.min_context_tokens:
                made.append(prompt)
            else:
                least = options.min_context_tokens
                reason = f"all of {entry.document} makes {len(prompt.ids)} tokens, below min_context_tokens {least}"
                self.excluded.append(Exclusion(id=prompt.id, reason=reason))
        return checked(made, task="stdlib", excluded=self.excluded)


def build(entry: Entry, tokenizer: PromptTokenizer, tokens: int) -> Prompt:
    """The entry's prompt with as many whole lines of its document as fit into `tokens`.

    Raises TaskError where the document is not installed, or not even one line fits.
    """
    document = read_document(entry)
    lines = document.splitlines(keepends=True)

    def render(count: int) -> list[int]:
        content = _content(entry, "".join(lines[:count]), whole=count == len(lines))
        return tokenizer.chat([{"role": "user", "content": content}])

    count = most_lines(lambda count: len(render(count)) <= tokens, len(lines))
    if count == 0:
        raise TaskError(f"task 'stdlib': not one line of {entry.document} fits into {tokens} tokens; raise the limits")
    return Prompt(
        id=entry.id,
        ids=tuple(render(count)),
        document_sha256=hashlib.sha256(document.encode()).hexdigest(),
        meta={"kind": entry.kind, "document": entry.document, "lines": count, "document_lines": len(lines)},
    )


def read_document(entry: Entry) -> str:
    """The document's text. Raises TaskError where this Python comes without it."""
    try:
        if entry.kind == "prose":
            topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
            return topics[entry.document]
        with tokenize.open(Path(sysconfig.get_paths()["stdlib"]) / entry.document) as source:
            return source.read()
    except (ImportError, KeyError, OSError, SyntaxError) as error:
        raise TaskError(
            f"task 'stdlib': this Python comes without {entry.document} ({error}); "
            "use a full installation of Python, or another task"
        ) from error


def most_lines(fits: Callable[[int], bool], total: int) -> int:
    """The largest count up to `total` that fits, by bisection; 0 if none does."""
    low, high = 0, total + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _content(entry: Entry, text: str, *, whole: bool) -> str:
    part = "" if whole else "the beginning of "
    text = text.rstrip("\n")
    if entry.kind == "code":
        return (
            f"Here is {part}the file `{entry.document}` from Python's standard library.\n\n"
            f"```python\n{text}\n```\n\n{entry.instruction}"
        )
    return (
        f"Here is {part}the topic `{entry.document}` from Python's language reference.\n\n"
        f'"""\n{text}\n"""\n\n{entry.instruction}'
    )
