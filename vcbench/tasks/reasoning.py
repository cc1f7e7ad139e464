"""The one place that tells what a model thinks from what it answers.

Every answer passes through `split` on its way to a scorer or an export: `Answer` does it. Tags of all families are
looked for, whatever the model, since none of them is ordinary text.
Source: the tags that vLLM's and sglang's reasoning parsers and the models' own chat templates know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Family:
    """A pair of tags. `lone`: its end is written by nothing but thoughts, so it ends one that the template opened."""

    opening: str
    closing: str
    lone: bool = True


FAMILIES = (
    Family("<think>", "</think>"),
    Family("[THINK]", "[/THINK]"),
    Family("<seed:think>", "</seed:think>"),
    Family("<longcat_think>", "</longcat_think>"),
    Family("◁think▷", "◁/think▷"),
    Family("<|begin_of_thought|>", "<|end_of_thought|>"),
    Family("<|START_THINKING|>", "<|END_THINKING|>"),
    Family("<|inner_prefix|>", "<|inner_suffix|>"),
    Family("<|channel>thought", "<channel|>"),
    Family("<unused94>thought", "<unused95>"),
    Family("[unused16]", "[unused17]"),
    Family("<thinking>", "</thinking>", lone=False),
    Family("<thought>", "</thought>", lone=False),
    Family("<reasoning>", "</reasoning>", lone=False),
)
SPOKEN = re.compile(
    r"\s*(?:Here(?:'s| is) my thought process:|Here are my reasoning steps:)"
    r"(?P<thought>.*?)(?:Here(?:'s| is) my response:|(?=\[BEGIN FINAL RESPONSE\])|\Z)",
    re.DOTALL,
)
"""Models that say so in words, at the answer's beginning."""
UNMARKED = re.compile(r"\s*analysis(?P<thought>.*?)assistantfinal", re.DOTALL)
"""Channels whose special tokens a decoder dropped."""
WRAPPERS = (
    ("<|begin_of_solution|>", "<|end_of_solution|>"),
    ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ("[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"),
    ("<answer>", "</answer>"),
    ("<response>", "</response>"),
)
"""What some models put around the answer that follows a thought."""
CHANNEL = re.compile(r"<\|channel\|>\s*(?P<name>\w*)[^<]*(?:<\|constrain\|>[^<]*)?<\|message\|>")
CHANNEL_END = re.compile(r"<\|(?:end|return|call|start|channel)\|>")
THOUGHT_CHANNEL = "analysis"
TAG = re.compile("|".join(re.escape(tag) for each in FAMILIES for tag in (each.opening, each.closing)), re.IGNORECASE)
BY_TAG = {
    tag.lower(): (family, tag == family.opening) for family in FAMILIES for tag in (family.opening, family.closing)
}
CALL = ("<tool_call>", "</tool_call>")
QUOTES = frozenset("\"'`")
FENCE = re.compile(r"^[ \t]*(?:`{3,}|~{3,})", re.MULTILINE)
BLANK_LINES = re.compile(r"\A(?:[ \t]*\r?\n)+")


@dataclass(frozen=True, slots=True)
class Split:
    """An output taken apart. `thoughts`: spans of characters, tags included; `closed`: whether the last one ended."""

    answer: str
    thoughts: tuple[tuple[int, int], ...] = ()
    closed: bool = True


@dataclass(frozen=True, slots=True)
class _Tag:
    start: int
    end: int
    family: Family
    opens: bool
    quoted: bool
    enclosed: bool


def split(text: str, *, prompt_tail: str = "") -> Split:
    """The answer without its thoughts, which is empty where a thought did not end.

    An end without a beginning ends a thought that began the text, as where the template wrote the beginning; of several
    ends the last one counts, as chat templates have it. Tags that are quoted or stand in a block of code of the answer
    are the answer's own. A text without thoughts comes back as it is.

    Args:
        prompt_tail: the prompt's last characters, which show whether the template opened a thought.
    """
    if CHANNEL.search(text):
        return _channels(text)
    if any(head.end() == len(prompt_tail) for head in CHANNEL.finditer(prompt_tail)):
        return _made(text, [(0, len(text))], closed=False)
    for pattern in (SPOKEN, UNMARKED):
        if found := pattern.match(text):
            closed = found.end("thought") < len(text)
            return _made(text, [(0, found.end())], closed=closed)
    spans, closed = _spans(text, opened_by(prompt_tail))
    return _made(text, spans, closed=closed)


def opened_by(prompt_tail: str) -> Family | None:
    """The family whose opening tag ends the prompt."""
    tail = prompt_tail.rstrip().lower()
    return next((family for family in FAMILIES if tail.endswith(family.opening.lower())), None)


def _spans(text: str, family: Family | None) -> tuple[list[tuple[int, int]], bool]:
    """Where the thoughts are, in order, and whether the last one ended."""
    tags = list(_tags(text))
    spans: list[tuple[int, int]] = []
    start, after, last = 0, 0, len(text.rstrip())
    for tag in tags:
        if family is not None:
            if tag.family == family and not tag.opens and not tag.quoted:
                spans.append((start, tag.end))
                family, after = None, tag.end
        elif tag.opens and _begins(text, tag, after):
            family, start = tag.family, tag.start
        elif not tag.opens and tag.family.lone and _ends(text, tag, after):
            # Nothing after a further end: the answer stands before it.
            spans = [(0, tag.end)] if tag.end < last or not spans else [*spans, (tag.start, tag.end)]
            after = tag.end
    if family is None:
        return spans, True
    # A thought that ends in a quotation mark, or is followed by one, looks like a quoted tag.
    ends = [tag for tag in tags if tag.family == family and not (tag.opens or tag.enclosed) and tag.start >= start]
    if ends:
        return [*spans, (start, ends[-1].end)], True
    return [*spans, (start, len(text))], False


def _tags(text: str) -> Iterator[_Tag]:
    for found in TAG.finditer(text):
        family, opens = BY_TAG[found[0].lower()]
        before, behind = text[max(0, found.start() - 1) : found.start()], text[found.end() : found.end() + 1]
        edges = ("", "\n", "\r")
        quoted = (before in QUOTES and behind not in edges) or (behind in QUOTES and before not in edges)
        enclosed = before in QUOTES and before == behind
        yield _Tag(found.start(), found.end(), family, opens, quoted, enclosed)


def _begins(text: str, tag: _Tag, after: int) -> bool:
    """Whether an opening tag begins a thought: unquoted, in no block of code, first of its line or closed later on."""
    if tag.quoted or _in_fence(text[after : tag.start]):
        return False
    line = text[after : tag.start].rpartition("\n")[2]
    if not line.strip():
        return True
    closing = text.lower().find(tag.family.closing.lower(), tag.end)
    return closing >= 0 and line.strip() not in ("+", "-")


def _ends(text: str, tag: _Tag, after: int) -> bool:
    """Whether a closing tag without an opening one ends a thought: not quoted, nor in a call or a block of code."""
    if tag.quoted or _in_call(text, tag, after):
        return False
    first = tag.start == 0 or text[tag.start - 1] == "\n"
    return first or not _in_fence(text[after : tag.start])


def _in_call(text: str, tag: _Tag, after: int) -> bool:
    begun, ended = (text.rfind(mark, after, tag.start) for mark in CALL)
    return begun > ended and CALL[1] in text[tag.end :]


def _in_fence(text: str) -> bool:
    return len(FENCE.findall(text)) % 2 == 1


def _channels(text: str) -> Split:
    """Of channels (`<|channel|>NAME<|message|>...`) all but the thought's are the answer."""
    thoughts: list[tuple[int, int]] = []
    answer = []
    closed = True
    first = CHANNEL.search(text)
    at = first.start() if first else 0
    if text[:at].strip():
        # The template wrote the first channel's head.
        thoughts.append((0, at))
    while (head := CHANNEL.search(text, at)) is not None:
        end = CHANNEL_END.search(text, head.end())
        stop = end.start() if end else len(text)
        if head["name"].lower() == THOUGHT_CHANNEL:
            thoughts.append((head.start(), stop))
            closed = end is not None
        else:
            answer.append(text[head.end() : stop])
            closed = True
        at = stop
    return Split("\n".join(filter(None, answer)), tuple(thoughts), closed)


def _made(text: str, spans: list[tuple[int, int]], *, closed: bool) -> Split:
    if not spans:
        return Split(text)
    parts, at = [], 0
    for start, end in spans:
        parts.append(text[at:start])
        at = end
    answer = BLANK_LINES.sub("", "".join([*parts, text[at:]]))
    return Split(_unwrapped(answer) if answer.strip() else "", tuple(spans), closed)


def _unwrapped(answer: str) -> str:
    """The answer without what is put around it; an end that is not there was cut off."""
    for opening, closing in WRAPPERS:
        _, found, inner = answer.lstrip().partition(opening)
        if found and answer.lstrip().startswith(opening):
            head, ended, rest = inner.rpartition(closing)
            return BLANK_LINES.sub("", head + rest if ended else inner)
    return answer
