"""Outputs that other engines produced: one JSONL file per arm, described in `docs/lossless.md`.

The first line states the settings, each further line one request. Whatever is wrong with a line becomes that request's
problem, so that it counts as missing; whatever is wrong with the file is a problem of the arm. Neither ever passes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vcbench.errors import RecordError, SchemaVersionError
from vcbench.lossless.answers import Answer, Arm, prompt_sha256
from vcbench.registry import suggest

SCHEMA_VERSION = 1
FINISH_REASONS = ("stop", "length", "error")
CACHES = ("cold", "warm")
POSITIVE = 1e-6
"""Rounding that a log-probability of 0 may have."""
MASS = 0.01
"""Rounding that a sum of probabilities may have, in 16 bits."""


def _ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _object(value: Any) -> bool:
    return isinstance(value, dict)


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a line: what it must be, whether it must be there."""

    fits: Callable[[Any], bool]
    what: str
    required: bool = False


HEADER = {
    "kind": Field(lambda value: value == "outputs", "'outputs'", True),
    "schema": Field(_count, "a whole number", True),
    "model": Field(_text, "a text", True),
    "tokenizer": Field(_text, "a text, best its hash", True),
    "vocab_size": Field(lambda value: _count(value) and value > 0, "a positive whole number", True),
    "dtype": Field(_text, "a text such as bfloat16", True),
    "max_tokens": Field(lambda value: _count(value) and value > 0, "a positive whole number", True),
    "stop_ids": Field(_ids, "a list of token ids", True),
    "sampler": Field(_object, "an object; {\"temperature\": 0} is greedy", True),
    "stop_strings": Field(_texts, "a list of texts"),
    "weights_sha256": Field(_text, "a text"),
    "rope": Field(lambda value: _text(value) or _object(value), "a text or an object"),
    "engine": Field(_text, "a text"),
    "cache": Field(lambda value: value in CACHES, "'cold' or 'warm'"),
    "requests": Field(_count, "a whole number"),
}  # fmt: skip
OUTPUT = {
    "kind": Field(lambda value: value == "output", "'output'", True),
    "schema": Field(_count, "a whole number", True),
    "request": Field(lambda value: _text(value) or type(value) is int, "a text or a whole number", True),
    "prompt_ids": Field(_ids, "a list of token ids", True),
    "output_ids": Field(_ids, "a list of token ids", True),
    "finish_reason": Field(lambda value: value in FINISH_REASONS, f"one of {', '.join(FINISH_REASONS)}", True),
    "text": Field(lambda value: isinstance(value, str), "a text"),
    "error": Field(lambda value: value is None or isinstance(value, str), "a text or null"),
    "logprobs": Field(lambda value: value is None or isinstance(value, list), "a list or null"),
    "completion_tokens": Field(_count, "a whole number"),
    "drafted": Field(_count, "a whole number"),
    "accepted": Field(_count, "a whole number"),
    "cached_tokens": Field(_count, "a whole number"),
}


@dataclass(slots=True)
class _File:
    """A file while it is being read."""

    name: str
    header: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, number: int, row: dict[str, Any]) -> None:
        """Takes in one request's line."""
        where = f"{self.name}, line {number}"
        name = row.get("request")
        if not (_text(name) or type(name) is int):
            self.problems.append(f"{where}: `request` must be a text or a whole number")
            return
        key = str(name)
        if key in self.lines:
            self.problems.append(f"{where}: request {key!r} is that of line {self.lines[key]} already")
            return
        self.lines[key] = number
        problem = _row_problem(row, OUTPUT) or self._content_problem(row)
        ids = row.get("prompt_ids") if _ids(row.get("prompt_ids")) else []
        self.answers[key] = Answer(
            request=key,
            prompt_ids=ids or (),
            prompt_sha256=prompt_sha256(ids or ()),
            token_ids=row["output_ids"] if not problem else (),
            text=str(row.get("text") or ""),
            finish_reason=str(row.get("finish_reason")),
            problem=f"line {number}: {problem}" if problem else "",
            logprobs=_logprobs(row["logprobs"]) if not problem and row.get("logprobs") else None,
            drafted=[row["drafted"]] if _count(row.get("drafted")) else (),
            accepted=[row["accepted"]] if _count(row.get("accepted")) else (),
            cached_tokens=row["cached_tokens"] if _count(row.get("cached_tokens")) else None,
        )

    def _content_problem(self, row: Mapping[str, Any]) -> str:
        """What makes a well-formed line no answer."""
        output, vocabulary = row["output_ids"], self.header.get("vocab_size")
        if row.get("error") or row["finish_reason"] == "error":
            return str(row.get("error") or "finish reason is error")
        if not row["prompt_ids"]:
            return "`prompt_ids` is empty"
        if not output:
            return "no tokens"
        if isinstance(vocabulary, int):
            outside = [token for token in (*row["prompt_ids"], *output) if token >= vocabulary]
            if outside:
                return f"token id {outside[0]} is outside the vocabulary of {vocabulary}"
        if row.get("completion_tokens", len(output)) != len(output):
            return f"completion_tokens is {row['completion_tokens']} for {len(output)} tokens"
        if row.get("accepted", 0) > row.get("drafted", 0):
            return f"{row['accepted']} accepted of {row.get('drafted', 0)} drafted tokens"
        return _logprob_problem(row.get("logprobs"), output)


def read_outputs(path: Path, name: str) -> Arm:
    """The arm in a file. Raises RecordError if it cannot be read, SchemaVersionError for another schema version."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror or error}") from error
    file = _File(name)
    *lines, rest = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if rest.strip():
        lines.append(rest)
    for number, text in enumerate(lines, start=1):
        if text.strip():
            _take(file, number, text, last=number == len(lines))
    if not file.header:
        file.problems.append(f"{name}: {'no settings in the first line' if data.strip() else 'the file is empty'}")
    expected = file.header.get("requests")
    if isinstance(expected, int) and expected != len(file.answers):
        file.problems.append(f"{name}: {len(file.answers)} requests, its first line says {expected}")
    stated = {key: value for key, value in file.header.items() if HEADER[key].fits(value)}
    return Arm(
        name=name, settings=stated, answers=file.answers, problems=tuple(file.problems), cache=stated.get("cache")
    )


def _take(file: _File, number: int, text: bytes, *, last: bool) -> None:
    where = f"{file.name}, line {number}"
    try:
        row = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        cut = "; the file is cut off" if last else ""
        file.problems.append(f"{where}: not a line of JSON ({error}){cut}")
        return
    if not isinstance(row, dict):
        file.problems.append(f"{where}: a line must be a JSON object, found {type(row).__name__}")
        return
    if row.get("schema") != SCHEMA_VERSION or type(row.get("schema")) is not int:
        raise SchemaVersionError(
            f"{where}: schema version {row.get('schema')!r}, this vcbench reads version {SCHEMA_VERSION}"
        )
    if file.header or file.lines or row.get("kind") == "output":
        file.add(number, row)
        return
    if problem := _row_problem(row, HEADER):
        file.problems.append(f"{where}: {problem}")
    file.header = {key: value for key, value in row.items() if key in HEADER}


def _row_problem(row: Mapping[str, Any], fields: Mapping[str, Field]) -> str:
    unknown = sorted(row.keys() - fields.keys())
    if unknown:
        return f"unknown key `{unknown[0]}`, {suggest(unknown[0], list(fields))}"
    for key, expected in fields.items():
        if key not in row:
            if expected.required:
                return f"`{key}` is missing; it must be {expected.what}"
        elif not expected.fits(row[key]):
            return f"`{key}` must be {expected.what}"
    return ""


def _logprob_problem(logprobs: Any, output: list[int]) -> str:
    if not logprobs:
        return ""
    if len(logprobs) != len(output):
        return f"{len(logprobs)} steps of log-probabilities for {len(output)} tokens"
    for step, (row, token) in enumerate(zip(logprobs, output, strict=True)):
        if not isinstance(row, dict) or not all(key.isascii() and key.isdigit() for key in row):
            return f"`logprobs` of step {step} must be an object of log-probabilities by token id"
        for key, value in row.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                return f"log-probability of token {key} at step {step} is {value!r}, which is no finite number"
            if value > POSITIVE:
                return f"log-probability of token {key} at step {step} is {value!r}: a probability above 1"
        if str(token) not in row:
            return f"`logprobs` of step {step} lacks the token {token} that was chosen"
        if (mass := math.fsum(math.exp(min(value, 0.0)) for value in row.values())) > 1 + MASS:
            return f"the probabilities of step {step} sum to {mass:.4g}, which is above 1"
        if len({int(key) for key in row}) != len(row):
            return f"`logprobs` of step {step} names a token twice"
    return ""


def _logprobs(rows: list[dict[str, float]]) -> list[dict[int, float]]:
    return [{int(key): float(value) for key, value in row.items()} for row in rows]
