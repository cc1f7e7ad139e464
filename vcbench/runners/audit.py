"""The audit pass: the reference model teacher-forced over what both arms wrote, one prefill-shaped pass a request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import Console
from rich.progress import track

from vcbench.config.sampling import Sampling
from vcbench.config.schema import ModelConfig, RunConfig
from vcbench.engine.decoder import Block, Decoder
from vcbench.engine.environment import set_threads
from vcbench.errors import InexactError, UsageError
from vcbench.lossless.answers import Answer, Arm, prompt_sha256
from vcbench.lossless.audit import Audited, apply_audit
from vcbench.lossless.result import CellResult, CheckResult
from vcbench.lossless.steps import Row, inspect_rows
from vcbench.models.store import ModelFiles, resolve_model
from vcbench.records.provenance import neutral
from vcbench.runners.plan import Identity, identify, with_model
from vcbench.runners.setup import load

CHUNK = 2048
ROWS = 64
"""Rows whose logits are held at a time."""
GREEDY = ({"temperature": 0}, {"temperature": 0.0})


def audit(result: CheckResult, model: str, *, console: Console) -> CheckResult:
    """The result with every fork classified by the model.

    Raises UsageError for outputs that were drawn at random, and ModelError if the model is not here. A model that
    contradicts the records' own settings makes the result not comparable.
    """
    config = RunConfig(name="audit", model=ModelConfig(id=model), tasks=(), cells=())
    files = resolve_model(config.model)
    arms = [arm for cell in result.cells if cell.arms is not None for arm in cell.arms]
    for arm in arms:
        _refuse_sampled(arm)
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
        self._known: dict[tuple[str, tuple[int, ...]], list[Row]] = {}

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
                first[verdict.request], second[verdict.request] = self.rows(theirs), self.rows(ours)
        return Audited(reference=first, method=second)

    def rows(self, answer: Answer) -> list[Row]:
        """What the model says at each token of an output. Cost: a prefill of the prompt and a pass over the output."""
        key = (answer.prompt_sha256, tuple(answer.token_ids))
        if key not in self._known:
            self._known[key] = self._forced(answer.prompt_ids, answer.token_ids)
        return self._known[key]

    def _forced(self, prompt: Sequence[int], output: Sequence[int]) -> list[Row]:
        prefill = self.decoder.prefill(prompt, chunk=CHUNK)
        rows = inspect_rows(prefill.first_logits[None].cpu().numpy(), output[:1], self.dtype)
        for start in range(0, len(output) - 1, ROWS):
            fed = list(output[start:-1][:ROWS])
            logits = self.decoder.forward([Block(prefill.cache, fed)]).cpu().numpy()
            prefill.cache.commit(len(fed))
            rows += inspect_rows(logits, output[start + 1 : start + 1 + len(fed)], self.dtype)
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


def _refuse_sampled(arm: Arm) -> None:
    stated = arm.settings.get("sampler")
    if not isinstance(stated, dict):
        return
    known = {key: value for key, value in stated.items() if key in Sampling.__dataclass_fields__ and key != "seed"}
    default = Sampling()
    changed = [key for key, value in known.items() if value != getattr(default, key) and not _means_default(key, value)]
    if changed:
        raise UsageError(
            f"the audit teacher-forces greedy outputs; those of {arm.name} were chosen with {', '.join(changed)}. "
            "With noise keyed by position their ids are compared exactly, so that no audit is needed"
        )


def _means_default(key: str, value: object) -> bool:
    """Other engines' spellings of a setting that is off."""
    return (key, value) in (("top_k", -1), ("top_p", 1), ("temperature", 0)) or value in (None, {}, [])
