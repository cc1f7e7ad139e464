"""The audit pass: the reference model teacher-forced over what both arms wrote, one prefill-shaped pass a request.

Outputs that were drawn, or chosen under a penalty, are replayed by the rule that chose them: the model's logits, the
tokens before each place and the noise of its position say which token it takes, and what any other one lacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from vcbench.config.sampling import Sampling
from vcbench.config.schema import ModelConfig, RunConfig
from vcbench.engine.decoding.forcing import force
from vcbench.engine.environment import set_threads
from vcbench.engine.model.decoder import Decoder
from vcbench.engine.sampling.selector import Selector
from vcbench.engine.types import Request
from vcbench.errors import InexactError, UsageError
from vcbench.lossless.answers import NOISE, Answer, Arm, prompt_sha256
from vcbench.lossless.audit import Audited, apply_audit
from vcbench.lossless.outcome import CheckResult
from vcbench.lossless.result import CellResult
from vcbench.lossless.steps import Row, drawn_row, inspect_rows
from vcbench.models.store import ModelFiles, resolve_model
from vcbench.records.provenance import neutral
from vcbench.runners.plan import Identity, identify, with_model
from vcbench.runners.setup import load

CHUNK = 2048
ROWS = 64
"""Rows whose logits are held at a time."""
NOT_SETTINGS = ("seed", "noise")


def audit(result: CheckResult, model: str, *, console: Console) -> CheckResult:
    """The result with every fork classified by the model.

    Raises UsageError for outputs whose choices cannot be replayed, and ModelError if the model is not here. A model
    that contradicts the records' own settings makes the result not comparable.
    """
    config = RunConfig(name="audit", model=ModelConfig(id=model), tasks=(), cells=())
    files = resolve_model(config.model)
    arms = [arm for cell in result.cells if cell.arms is not None for arm in cell.arms]
    for arm in arms:
        sampling_of(arm)
    if others := _contradictions(files, arms):
        return replace(result, differences=(*result.differences, *others))
    set_threads(0)
    identity = with_model(identify(config), files)
    decoder = _decoder(files, identity)
    dtype = next((str(arm.settings["dtype"]) for arm in arms if "dtype" in arm.settings), identity.dtype)
    auditor = Auditor(decoder, dtype)
    todo = sum(len(cell.verdicts) for cell in result.cells)
    steps = iter(track(range(todo), "audit", console=console, transient=True, disable=not console.is_terminal))
    audits = [auditor.cell(cell, steps) for cell in result.cells]
    return apply_audit(result, audits, model=neutral(files.id), dtype=dtype)


def _decoder(files: ModelFiles, identity: Identity) -> Decoder:
    """Rows that do not depend on their call where the device can give them, so that tau is as small as can be."""
    try:
        return load(files, identity, "bitwise")[0]
    except InexactError:
        return load(files, identity, "fast")[0]


class Auditor:
    """Rows of outputs, each computed once."""

    def __init__(self, decoder: Decoder, dtype: str) -> None:
        """`dtype`: the precision whose steps are counted."""
        self.decoder, self.dtype = decoder, dtype
        self._known: dict[tuple[str, str, str, tuple[int, ...]], list[Row]] = {}

    def cell(self, cell: CellResult, steps: Iterator[int]) -> Audited | None:
        """Both arms' rows for each request that both answered; None for a cell without verdicts."""
        if cell.arms is None:
            return None
        reference, method = cell.arms
        first: dict[str, list[Row]] = {}
        second: dict[str, list[Row]] = {}
        for verdict in cell.verdicts:
            next(steps, None)
            ours, theirs = method.answers.get(verdict.request), reference.answers.get(verdict.request)
            if ours is not None and theirs is not None and _comparable(ours, theirs):
                first[verdict.request] = self.rows(theirs, reference)
                second[verdict.request] = self.rows(ours, method)
        return Audited(reference=first, method=second)

    def rows(self, answer: Answer, arm: Arm) -> list[Row]:
        """What the model says at each token of an output. Cost: a prefill of the prompt and a pass over the output."""
        sampling = sampling_of(arm)
        drawn_by = "" if sampling.takes_best else answer.request
        # Noise and penalties make a row the request's own; greedy rows of one prompt are everybody's.
        key = (answer.prompt_sha256, drawn_by, str(sampling), tuple(answer.token_ids))
        if key not in self._known:
            selector = None if sampling.takes_best else Selector(_request(answer, arm, sampling))
            self._known[key] = self._forced(answer.prompt_ids, answer.token_ids, selector)
        return self._known[key]

    def _forced(self, prompt: Sequence[int], output: Sequence[int], selector: Selector | None) -> list[Row]:
        prefill = self.decoder.prefill(prompt, chunk=CHUNK)
        rows = self._inspect(prefill.first_logits[None].cpu().numpy(), output, 0, selector)
        for forced in force(self.decoder, {"": prefill.cache}, {"": output[:-1]}, rows=ROWS):
            rows += self._inspect(forced.logits.cpu().numpy(), output, forced.first + 1, selector)
        return rows

    def _inspect(
        self, logits: NDArray[np.float32], output: Sequence[int], start: int, selector: Selector | None
    ) -> list[Row]:
        """Rows of the output tokens from `start` on. logits: [n, V], those that chose them."""
        tokens = output[start : start + len(logits)]
        if selector is None:
            return inspect_rows(logits, tokens, self.dtype)
        rows = []
        for position, (values, token) in enumerate(zip(logits, tokens, strict=True), start=start):
            before = output[:position]
            finite = bool(np.isfinite(values).all())
            margins = selector.margins(values, before, position) if finite else np.full(len(values), np.inf)
            leader = selector.choose(values, before, position) if finite else -1
            rows.append(drawn_row(values, margins, token, leader, self.dtype))
        return rows


def _comparable(ours: Answer, theirs: Answer) -> bool:
    if ours.problem or theirs.problem:
        return False
    return prompt_sha256(ours.prompt_ids) == prompt_sha256(theirs.prompt_ids)


def _contradictions(files: ModelFiles, arms: Sequence[Arm]) -> list[str]:
    """Where the model is not the one that the records name."""
    ours = {"weights_sha256": files.weights_sha256, "vocab_size": files.architecture.vocab_size}
    found = [
        f"{key}: {value!r} in the audit's model {neutral(files.id)}, {arm.settings[key]!r} in {arm.name}"
        for arm in arms
        for key, value in ours.items()
        if key in arm.settings and arm.settings[key] != value
    ]
    return list(dict.fromkeys(found))


def sampling_of(arm: Arm) -> Sampling:
    """How an arm's tokens were chosen. Raises UsageError where that cannot be replayed, naming what is in the way."""
    stated = arm.settings.get("sampler")
    given: dict[str, Any] = stated if isinstance(stated, dict) else {}
    known = {spec.name for spec in fields(Sampling)}
    values = {key: value for key, value in given.items() if not _means_default(key, value)}
    if unknown := sorted(values.keys() - known - set(NOT_SETTINGS)):
        raise UsageError(
            f"the audit does not know the sampler setting {unknown[0]!r} of {arm.name}; nothing is ignored"
        )
    for key, value in values.items():
        numbers = value.values() if key == "logit_bias" and isinstance(value, dict) else (value,)
        if key in known and not all(type(number) in (int, float) for number in numbers):
            raise UsageError(f"sampler setting {key!r} of {arm.name} is {value!r}; it must be a number")
    bias = {int(token): float(value) for token, value in (values.pop("logit_bias", None) or {}).items()}
    sampling = Sampling(**{key: value for key, value in values.items() if key in known}, logit_bias=bias)
    if sampling.temperature > 0 and (sampling.seed is None or given.get("noise") != NOISE):
        raise UsageError(
            f"the outputs of {arm.name} were drawn with temperature {sampling.temperature:g} and noise that the audit "
            f"cannot replay; it needs the seed and noise: {NOISE} (docs/sampling.md). Give greedy outputs"
        )
    return sampling


def _request(answer: Answer, arm: Arm, sampling: Sampling) -> Request:
    """What the answer's engine was asked, as far as it decides which token is taken."""
    cap = arm.max_tokens or len(answer.token_ids)
    prompt = tuple(answer.prompt_ids)
    return Request(id=answer.request, prompt_ids=prompt, max_tokens=cap, stop_ids=arm.stop_ids, sampling=sampling)


def _means_default(key: str, value: object) -> bool:
    """Other engines' spellings of a setting that is off."""
    return (key, value) in (("top_k", -1), ("top_p", 1), ("temperature", 0)) or value in (None, {}, [])
