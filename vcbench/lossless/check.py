"""The lossless gate over a recorded run: every VeriCache answer must be full KV's, id for id, and earned."""

from __future__ import annotations

import hashlib
from pathlib import Path

from vcbench.lossless.guards import guards, notes
from vcbench.lossless.render import render
from vcbench.lossless.result import CellResult, CheckResult, RequestVerdict, Verdict
from vcbench.metrics.acceptance import round_problem
from vcbench.metrics.text import first_divergence
from vcbench.records.reader import CellInfo, Run, load_run
from vcbench.records.schema import PromptLine, RequestLine

__all__ = ["check_loaded", "check_run", "render"]


def check_run(path: Path | str) -> CheckResult:
    """The gate's answer for a run's directory. Raises RecordError where the records are damaged."""
    return check_loaded(load_run(path))


def check_loaded(run: Run) -> CheckResult:
    """The gate's answer for a run that was read already."""
    engine = run.config.get("engine")
    exactness = str(engine.get("exactness", "unknown")) if isinstance(engine, dict) else "unknown"
    cells = [
        _check_cell(run, cell, task, bitwise=exactness == "bitwise")
        for task in run.tasks
        for cell in run.cells
        if cell.arm != "full" and cell.answers(task)
    ]
    problems = list(run.dropped)
    if not run.complete:
        problems.append("the run is not complete; the same `vcbench run` command finishes it")
    return CheckResult(run=run.name, exactness=exactness, cells=tuple(cells), problems=tuple(problems))


def _check_cell(run: Run, cell: CellInfo, task: str, *, bitwise: bool) -> CellResult:
    prompts = [line for (prompt_task, _), line in run.prompts.items() if prompt_task == task]
    answered = [line for line in run.requests_of(cell, task) if line.error is None]
    verdicts = [_judge(run, cell, line, bitwise=bitwise) for line in prompts] if cell.arm == "vericache" else []
    return CellResult(
        cell=cell,
        task=task,
        verdicts=tuple(verdicts),
        guards=guards(cell, answered, bitwise=bitwise),
        notes=notes(cell, answered),
    )


def _judge(run: Run, cell: CellInfo, prompt: PromptLine, *, bitwise: bool) -> RequestVerdict:
    baseline = run.baseline(prompt.task)
    full = run.requests.get((baseline.id, prompt.task, prompt.request)) if baseline is not None else None
    line = run.requests.get((cell.id, prompt.task, prompt.request))
    if full is None or line is None:
        who = "full KV" if full is None else "this cell"
        return _verdict(prompt, Verdict.MISSING, f"no result of {who}")
    return compare(prompt, full, line, bitwise=bitwise)


def compare(prompt: PromptLine, full: RequestLine, line: RequestLine, *, bitwise: bool) -> RequestVerdict:
    """The verdict on one answer against full KV's answer to the same prompt.

    With `bitwise`, the hashes of the logits must agree too, where both were recorded.
    """
    digest = hashlib.sha256(",".join(map(str, prompt.prompt_ids)).encode()).hexdigest()
    if not digest == prompt.prompt_sha256 == full.prompt_sha256 == line.prompt_sha256:
        return _verdict(
            prompt, Verdict.NOT_COMPARABLE, "the prompts' hashes differ: these answers are to other prompts"
        )
    for who, answer in (("full KV", full), ("this cell", line)):
        if answer.error is not None or answer.finish_reason == "error":
            return _verdict(prompt, Verdict.ERROR, f"{who}: {answer.error or 'finish reason is error'}")
        if not answer.token_ids:
            return _verdict(prompt, Verdict.MISSING, f"{who}: no tokens")
    if problem := round_problem(line):
        return _verdict(prompt, Verdict.ERROR, problem)
    fork = first_divergence(full.token_ids, line.token_ids)
    return _fork_verdict(prompt, full, line, fork, bitwise=bitwise)


def _fork_verdict(
    prompt: PromptLine, full: RequestLine, line: RequestLine, fork: int | None, *, bitwise: bool
) -> RequestVerdict:
    if fork is None and full.finish_reason == line.finish_reason:
        hashes = {full.logits_sha256, line.logits_sha256} - {""}
        verdict, detail = Verdict.IDENTICAL, ""
        if bitwise and len(hashes) > 1:
            verdict, detail = Verdict.LOGITS_DIFFER, "same tokens, but the logits behind them differ in some bit"
        return _verdict(prompt, verdict, detail, tokens=len(line.token_ids))
    if fork is None:
        detail = f"same tokens, but full KV ends by {full.finish_reason!r} and this by {line.finish_reason!r}"
        return _verdict(prompt, Verdict.STOP_MISMATCH, detail, tokens=len(line.token_ids))
    if fork == min(len(full.token_ids), len(line.token_ids)):
        detail = f"{len(line.token_ids)} tokens, full KV has {len(full.token_ids)}; equal as far as both go"
        return _verdict(prompt, Verdict.STOP_MISMATCH, detail, step=fork, tokens=fork)
    detail = f"token {fork}: full KV has id {full.token_ids[fork]}, this {line.token_ids[fork]}"
    return _verdict(prompt, Verdict.DIVERGED, detail, step=fork, tokens=fork)


def _verdict(
    prompt: PromptLine, verdict: Verdict, detail: str = "", *, step: int | None = None, tokens: int = 0
) -> RequestVerdict:
    return RequestVerdict(
        task=prompt.task, request=prompt.request, verdict=verdict, detail=detail, step=step, tokens=tokens
    )
