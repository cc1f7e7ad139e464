"""Turns what the engine returns into record lines."""

from __future__ import annotations

import contextlib
import resource
import sys
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vcbench.backends.base import Backend, Capabilities
from vcbench.backends.cells import Cell, Level
from vcbench.engine.decoding.teacher_forced import Divergence
from vcbench.engine.types import BatchTiming, Generation, Tally
from vcbench.models.tokenizer import Tokenizer
from vcbench.records.codec import plain
from vcbench.records.provenance import collect
from vcbench.records.schema import BatchLine, DivergenceLine, PromptLine, RequestLine
from vcbench.runners.plan import plain_draft
from vcbench.runners.setup import Workbench
from vcbench.tasks.base import Prompt
from vcbench.tasks.reasoning import split

TAIL_TOKENS = 64


def prompt_line(task: str, prompt: Prompt, tokenizer: Tokenizer, prefill_s: float) -> PromptLine:
    """A prompt as it was asked."""
    return PromptLine(
        task=task,
        request=prompt.id,
        prompt_ids=list(prompt.ids),
        prompt_sha256=prompt.sha256,
        document_sha256=prompt.document_sha256,
        target=prompt.target,
        target_sha256=prompt.target_sha256,
        meta=dict(prompt.meta),
        tail=_text(tokenizer, prompt.ids[-TAIL_TOKENS:]),
        timing={"prefill_s": prefill_s},
    )


def request_line(
    cell: Cell, prompt: Prompt, generation: Generation, tokenizer: Tokenizer, stop_ids: Collection[int]
) -> RequestLine:
    """One answer; a stop id that ended it is its last id, but no part of its text."""
    ids = generation.token_ids
    said = ids[:-1] if generation.finish_reason == "stop" and ids[-1] in stop_ids else ids
    text = _text(tokenizer, said)
    return RequestLine(
        cell=cell.id,
        task=cell.task.name,
        request=prompt.id,
        prompt_sha256=prompt.sha256,
        token_ids=generation.token_ids,
        text=text,
        finish_reason=generation.finish_reason,
        thinking_tokens=_thinking_tokens(tokenizer, said, text, _text(tokenizer, prompt.ids[-TAIL_TOKENS:])),
        error=generation.error,
        drafted=[r.drafted for r in generation.rounds],
        accepted=[r.accepted for r in generation.rounds],
        committed=[r.committed for r in generation.rounds],
        kv_start=asdict(generation.kv_start) if generation.kv_start else None,
        kv_end=asdict(generation.kv_end) if generation.kv_end else None,
        levels=[level_facts(tally) for tally in generation.levels],
        cache_classes=generation.cache_classes,
        logits_sha256=generation.logits_sha256,
        timing=request_timing(generation),
    )


def level_facts(tally: Tally) -> dict[str, Any]:
    """What one level did for a request, as records have it."""
    return {
        "name": tally.name,
        "drafted": [done.drafted for done in tally.rounds],
        "accepted": [done.accepted for done in tally.rounds],
        "passes": tally.passes,
        "tokens": tally.tokens,
        "cache_class": tally.cache_class,
    }


def request_timing(generation: Generation) -> dict[str, float]:
    """Seconds of one request by phase; `ttft_s` is all that the cell does for it before its first token."""
    timing = {
        "compress_s": generation.compress_s,
        "offload_s": generation.offload_s,
        "decode_s": generation.decode_s,
    }
    if generation.prefill_s is not None:
        before = generation.prefill_s + generation.compress_s + generation.offload_s
        timing |= {"prefill_s": generation.prefill_s, "ttft_s": before + generation.first_s}
    return timing


def failed_line(cell: Cell, prompt: Prompt, reason: str) -> RequestLine:
    """A request that could not be served at all."""
    return RequestLine(
        cell=cell.id,
        task=cell.task.name,
        request=prompt.id,
        prompt_sha256=prompt.sha256,
        token_ids=[],
        text="",
        finish_reason="error",
        error=reason,
    )


def batch_line(
    cell: Cell,
    generations: Sequence[Generation],
    timing: BatchTiming,
    gives: Capabilities,
    neighbours: Mapping[str, float],
    *,
    refilled: bool = False,
) -> BatchLine:
    """The wall clock of one batch; tokens from the prefill are not decoding's. What nobody measured is left out.

    neighbours: the machine's load meanwhile. refilled: these were not decoded together but drawn from as others ended.
    """
    phases = {"draft_s": timing.draft_s, "verify_s": timing.verify_s}
    return BatchLine(
        cell=cell.id,
        task=cell.task.name,
        requests=[generation.request_id for generation in generations],
        tokens=sum(max(0, len(generation.token_ids) - 1) for generation in generations),
        refilled=refilled,
        timing={
            "compress_s": timing.compress_s,
            "compressed_before": timing.compressed_before,
            "offload_s": timing.offload_s,
            "decode_s": timing.decode_s,
            **(phases | {"other_s": timing.other_s if timing.verify_s else 0.0} if gives.phases else {}),
            "steps": timing.steps,
            "row_steps": timing.row_steps,
            "peak_rss_bytes": peak_rss_bytes(),
            **neighbours,
        },
    )


def divergence_line(cell: Cell, request: str, divergence: Divergence, seconds: float) -> DivergenceLine:
    """The teacher-forced divergence of one request."""
    return DivergenceLine(
        cell=cell.id,
        task=cell.task.name,
        request=request,
        kl=divergence.kl,
        top1_agree=divergence.top1_agree,
        top5_overlap=divergence.top5_overlap,
        logprob_full=divergence.logprob_full,
        logprob_method=divergence.logprob_method,
        basis=divergence.basis,
        timing={"divergence_s": seconds},
    )


def provenance(bench: Workbench) -> dict[str, Any]:
    """The content of `provenance.json` when a run begins; what the backend finds out once it is opened comes later."""
    config, identity = bench.config, bench.backend.identity()
    return collect(
        cells=[cell_entry(cell, bench.backend) for cell in bench.plan.cells],
        model={
            "id": bench.files.id,
            "revision": bench.files.revision,
            "weights_sha256": bench.files.weights_sha256,
            "tokenizer_sha256": identity.tokenizer_sha256,
            "architecture_sha256": identity.architecture_sha256,
            "vocab_size": bench.files.architecture.vocab_size,
            "stop_ids": list(identity.stop_ids),
            "dtype": identity.dtype,
            "device": identity.device,
            "template": dict(config.model.template),
            "generation_config": {"dropped": plain(bench.files.generation.dropped)},
            "notes": list(bench.notes),
        },
        seeds={"run": config.seed},
        extra={
            "code_sha256": identity.code_sha256,
            "kernels": dict(identity.kernels),
            "backend": {"name": bench.backend.name, "capabilities": asdict(bench.backend.capabilities())},
            "excluded": {name: [asdict(each) for each in task.excluded] for name, task in bench.sources.items()},
            **bench.backend.facts(),
        },
    )


def cell_entry(cell: Cell, backend: Backend) -> dict[str, Any]:
    """A cell as provenance lists it; compressor, draft length and cache class of the level below the full cache."""
    upper = cell.levels[-1] if cell.levels else None
    facts = dict(backend.cell_facts(cell))
    classes: Mapping[str, str] = facts.pop("level_classes", {})
    return {
        "id": cell.id,
        "label": cell.label,
        "arm": cell.config.arm,
        "method": cell.config.method,
        "compressor": upper.method.compressor if upper is not None and upper.method is not None else None,
        "draft_length": plain_draft(upper.config.draft_length) if upper is not None else None,
        "full_cache": cell.config.full_cache,
        "draft_weights": cell.config.draft_weights,
        "task": cell.task.name,
        "cache_class": facts.pop("cache_class", None),
        "levels": [level_entry(level, classes.get(level.name)) for level in cell.levels],
        **facts,
        **(calibration_entry(upper) if upper is not None else {}),
    }


def level_entry(level: Level, cache_class: str | None) -> dict[str, Any]:
    """A level below the full cache as provenance lists it."""
    return {
        "name": level.name,
        "compressor": level.method.compressor if level.method is not None else None,
        "draft_length": plain_draft(level.config.draft_length),
        "min_match": level.config.min_match,
        "cache_class": cache_class,
        **calibration_entry(level),
    }


def calibration_entry(level: Level) -> dict[str, Any]:
    """What a level's method was fitted on; nothing for one that uses no calibration."""
    if level.calibration is None:
        return {}
    return {"calibration": {"sha256": level.calibration.sha256, "data": level.calibration.facts.get("data")}}


def reset_peak_rss() -> None:
    """Starts the memory peak anew where the system can (Linux); elsewhere it stays that of the whole process."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_rss_bytes() -> int:
    """The most memory that this process has held since `reset_peak_rss`."""
    with contextlib.suppress(OSError, StopIteration):
        status = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in status if line.startswith("VmHWM:")).split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _thinking_tokens(tokenizer: Tokenizer, ids: Sequence[int], text: str, prompt_tail: str) -> int:
    """Tokens of the spans that are thoughts; a token across a border counts as thought."""

    def tokens_to(end: int) -> int:
        """The fewest ids whose text reaches `end` characters."""
        return bisect_left(range(len(ids)), end, key=lambda count: len(_text(tokenizer, ids[:count])))

    spans = split(text, prompt_tail=prompt_tail).thoughts
    return sum(tokens_to(end) - tokens_to(start) for start, end in spans)


def _text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return tokenizer.decode(ids)
