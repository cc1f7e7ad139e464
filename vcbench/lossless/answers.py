"""What one arm answered and under which settings, whoever produced it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vcbench.metrics.acceptance import request_problem
from vcbench.metrics.levels import level_problem
from vcbench.records.reader import CellInfo, Run
from vcbench.records.schema import RequestLine

SETTINGS = (
    "model",
    "weights_sha256",
    "tokenizer",
    "vocab_size",
    "dtype",
    "stop_ids",
    "stop_strings",
    "max_tokens",
    "sampler",
    "rope",
)
"""What two arms must share before their outputs can be compared."""
GREEDY = {"temperature": 0}
NOISE = "vcbench"
"""The noise that `docs/sampling.md` describes, where a sampler's settings name it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One request's output. `problem`: why it is none, or contradicts itself; empty for a sound one.

    level_problem: what is said of its levels and cannot be, whatever the output; empty for sound ones.
    logprobs: per output token, log-probabilities by token id. `drafted`, `accepted` and `committed`: per round.
    """

    request: str
    prompt_ids: Sequence[int]
    prompt_sha256: str
    token_ids: Sequence[int] = ()
    text: str = ""
    finish_reason: str = "error"
    problem: str = ""
    level_problem: str = ""
    logits_sha256: str = ""
    logprobs: Sequence[Mapping[int, float]] | None = None
    drafted: Sequence[int] = ()
    accepted: Sequence[int] = ()
    committed: Sequence[int] = ()
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """The answers of one arm to one task's requests. A setting that nobody stated is absent.

    `problems`: what is wrong with the records as a whole.
    """

    name: str
    settings: Mapping[str, Any]
    answers: Mapping[str, Answer]
    problems: tuple[str, ...] = ()
    cache: str | None = None

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end an output, where stated."""
        return frozenset(self.settings.get("stop_ids") or ())

    @property
    def max_tokens(self) -> int | None:
        """The cap, where stated."""
        value = self.settings.get("max_tokens")
        return value if isinstance(value, int) else None


def contradiction(arm: Arm, answer: Answer) -> str:
    """Why an answer cannot have ended as it says under its arm's settings; empty where it can, or nobody can tell.

    An answer that contradicts itself is never equal to another one, though that may do so alike.
    """
    count, stops = len(answer.token_ids), arm.settings.get("stop_ids")
    at_stop = answer.token_ids[-1] in arm.stop_ids
    if answer.finish_reason == "length":
        if arm.max_tokens is not None and count < arm.max_tokens:
            return f"it ends by 'length' at {count} of {arm.max_tokens} tokens"
        return "it ends by 'length', but its last token is a stop id" if at_stop else ""
    if answer.finish_reason != "stop" or at_stop or stops is None:
        return ""
    strings = arm.settings.get("stop_strings") or ()
    if not strings:
        return f"it ends by 'stop', but its last token, id {answer.token_ids[-1]}, is no stop id"
    if answer.text and not any(string in answer.text for string in strings):
        return "it ends by 'stop', but with no stop id, and no stop string is in its text"
    return ""


def differences(reference: Arm, method: Arm) -> list[str]:
    """Every setting that is not the same in both arms, in words."""
    found = []
    for key in SETTINGS:
        a, b = reference.settings.get(key), method.settings.get(key)
        if a != b:
            found.append(f"{key}: {_shown(a)} in {reference.name}, {_shown(b)} in {method.name}")
    return found


def unstated(reference: Arm, method: Arm) -> list[str]:
    """Settings that neither arm states, so that nobody knows whether they are the same."""
    return [key for key in SETTINGS if reference.settings.get(key) is None and method.settings.get(key) is None]


def prompt_sha256(ids: Sequence[int]) -> str:
    """SHA-256 of the ids in decimal with commas between them, as records keep it."""
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()


def arm_of_run(run: Run, cell: CellInfo, task: str) -> Arm:
    """A recorded cell's answers to one task."""
    answers = {
        request: _answer(run.requests[cell.id, task, request], prompt.prompt_ids, cell)
        for (prompt_task, request), prompt in run.prompts.items()
        if prompt_task == task and (cell.id, task, request) in run.requests
    }
    who = "full KV" if cell.arm == "full" else "this cell"
    return Arm(name=who, settings=settings_of_run(run, task), answers=answers)


def settings_of_run(run: Run, task: str) -> dict[str, Any]:
    """What a run's records state of `SETTINGS`; old records state less."""
    model = _mapping(run.provenance.get("model"))
    listed = [_mapping(entry) for entry in _list(run.config.get("tasks"))]
    own: Mapping[str, Any] = next((entry for entry in listed if entry.get("name") == task), {})
    ignore_eos = bool(own.get("ignore_eos"))
    stated: dict[str, Any] = {
        "model": model.get("id"),
        "weights_sha256": model.get("weights_sha256"),
        "tokenizer": model.get("tokenizer_sha256"),
        "vocab_size": model.get("vocab_size"),
        "dtype": model.get("dtype"),
        "stop_ids": [] if ignore_eos else model.get("stop_ids"),
        "stop_strings": own.get("stop"),
        "max_tokens": own.get("max_tokens"),
        "sampler": _sampler(run.config.get("sampling", own.get("sampling", GREEDY)), run.config.get("seed")),
        "rope": model.get("architecture_sha256"),
    }
    return {key: value for key, value in stated.items() if value is not None}


def _sampler(stated: Any, seed: Any) -> dict[str, Any]:
    """Sampling as a run had it: where tokens are drawn, with the seed and the noise that decided which."""
    sampler = dict(_mapping(stated))
    if sampler.get("temperature"):
        given = sampler.get("seed")
        sampler |= {"seed": seed if given is None else given, "noise": NOISE}
    return sampler


def _answer(line: RequestLine, prompt_ids: Sequence[int], cell: CellInfo) -> Answer:
    return Answer(
        request=line.request,
        prompt_ids=prompt_ids,
        prompt_sha256=line.prompt_sha256,
        token_ids=line.token_ids,
        text=line.text,
        finish_reason=line.finish_reason,
        problem=request_problem(line, cell),
        level_problem=level_problem(line) if line.committed or line.drafted else "",
        logits_sha256=line.logits_sha256,
        drafted=line.drafted,
        accepted=line.accepted,
        committed=line.committed,
    )


def _shown(value: Any) -> str:
    return "not stated" if value is None else repr(value)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()
