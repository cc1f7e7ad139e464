"""The verdict on one request, from what both arms recorded; an audit may refine the verdict on a fork."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vcbench.lossless.answers import Answer, Arm, contradiction, prompt_sha256
from vcbench.lossless.result import RequestVerdict, Verdict
from vcbench.metrics.text import first_divergence

TOLERANCE = 1e-6
"""Two log-probabilities closer than this belong to equal logits: they are recorded with rounding."""


def judge(task: str, request: str, reference: Arm, method: Arm, *, bitwise: bool) -> RequestVerdict:
    """The verdict on a request of `method`.

    At `bitwise`, any fork is a violation, and the hashes of the logits must agree too where both were recorded.
    """
    full, line = reference.answers.get(request), method.answers.get(request)

    def verdict(kind: Verdict, detail: str = "", *, step: int | None = None, tokens: int = 0) -> RequestVerdict:
        prompt = "" if full is None else full.prompt_sha256
        return RequestVerdict(
            task=task, request=request, verdict=kind, detail=detail, step=step, tokens=tokens, prompt=prompt
        )

    if full is None or line is None:
        who = reference.name if full is None else method.name
        return verdict(Verdict.MISSING, f"no result of {who}")
    if not prompt_sha256(full.prompt_ids) == prompt_sha256(line.prompt_ids) == full.prompt_sha256 == line.prompt_sha256:
        return verdict(Verdict.NOT_COMPARABLE, "the prompts' hashes differ: these answers are to other prompts")
    for arm, answer in ((reference, full), (method, line)):
        if answer.problem:
            return verdict(Verdict.MISSING, f"{arm.name}: {answer.problem}")
    fork = first_divergence(full.token_ids, line.token_ids)
    equal = len(line.token_ids) if fork is None else fork
    if detail := _stop_problem(reference, full, method, line, fork):
        return verdict(Verdict.STOP_MISMATCH, detail, step=fork, tokens=equal)
    for arm, answer in ((reference, full), (method, line)):
        if detail := contradiction(arm, answer):
            return verdict(Verdict.MISSING, f"{arm.name}: {detail}", tokens=equal)
    if fork is None:
        hashes = {full.logits_sha256, line.logits_sha256} - {""}
        if bitwise and len(hashes) > 1:
            detail = "same tokens, but the logits behind them differ in some bit"
            return verdict(Verdict.VIOLATION, detail, tokens=equal)
        if line.level_problem:
            return verdict(Verdict.MISSING, f"same tokens, but {line.level_problem}", tokens=equal)
        return verdict(Verdict.IDENTICAL, tokens=equal)
    detail = f"token {fork}: {reference.name} has id {full.token_ids[fork]}, {method.name} {line.token_ids[fork]}"
    kind, remark = _fork(full, line, fork, bitwise=bitwise)
    return verdict(kind, detail + remark, step=fork, tokens=equal)


def _stop_problem(reference: Arm, full: Answer, method: Arm, line: Answer, fork: int | None) -> str:
    """Why one of the two ends where it should not, or goes on past its end; empty if neither does."""
    for arm, answer in ((reference, full), (method, line)):
        past = [index for index, token in enumerate(answer.token_ids[:-1]) if token in arm.stop_ids]
        if past:
            return f"{arm.name}: {len(answer.token_ids) - past[0] - 1} tokens after the stop id at token {past[0]}"
        if arm.max_tokens is not None and len(answer.token_ids) > arm.max_tokens:
            return f"{arm.name}: {len(answer.token_ids)} tokens, {arm.max_tokens} were asked for at most"
    if fork is None and full.finish_reason != line.finish_reason:
        return (
            f"same tokens, but {reference.name} ends by {full.finish_reason!r} and {method.name} by "
            f"{line.finish_reason!r}"
        )
    if fork is not None and fork == min(len(full.token_ids), len(line.token_ids)):
        return (
            f"{len(line.token_ids)} tokens, {reference.name} has {len(full.token_ids)}; equal as far as both go, "
            f"which ends by {full.finish_reason!r} and {line.finish_reason!r}"
        )
    return ""


def _fork(full: Answer, line: Answer, fork: int, *, bitwise: bool) -> tuple[Verdict, str]:
    """What two different tokens mean by what was recorded alone."""
    if full.logprobs is not None and line.logprobs is not None:
        pair = (full.token_ids[fork], line.token_ids[fork])
        if all(_tied(answer.logprobs, fork, pair) for answer in (full, line)):
            tie = "; both arms put the two first with equal log-probability"
            if bitwise:
                return Verdict.VIOLATION, tie
            if len(full.token_ids) == len(line.token_ids) == fork + 1:
                return Verdict.TIE_EXACT, tie
            return Verdict.INCONCLUSIVE, f"{tie}, but nobody has judged what follows (--audit MODEL)"
    if bitwise:
        return Verdict.VIOLATION, ""
    return Verdict.INCONCLUSIVE, "; only the logits tell a near tie from a violation (--audit MODEL)"


def _tied(logprobs: Sequence[Mapping[int, float]] | None, fork: int, pair: tuple[int, int]) -> bool:
    """Whether both tokens share the highest log-probability of that step."""
    step = logprobs[fork] if logprobs is not None else {}
    if not all(token in step for token in pair):
        return False
    highest = max(step.values())
    return all(highest - step[token] <= TOLERANCE for token in pair)
