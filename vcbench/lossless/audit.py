"""What the audit's rows make of each verdict: a tie, a violation, or nothing that can be decided."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from vcbench.lossless.cards import Card, Side, TopToken
from vcbench.lossless.outcome import AuditSummary, CheckResult
from vcbench.lossless.result import CellResult, RequestVerdict, Verdict
from vcbench.lossless.steps import Row, step_size

CAP_STEPS = 4.0
"""The largest tau that still decides; never a tolerance of its own."""
FORKS = (Verdict.VIOLATION, Verdict.INCONCLUSIVE, Verdict.TIE_EXACT, Verdict.TIE_NEAR)

Key = tuple[str, str]
"""(task, request)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Audited:
    """The reference teacher-forced over both arms' outputs: a row per output token, by request."""

    reference: Mapping[str, Sequence[Row]]
    method: Mapping[str, Sequence[Row]]


def tau_of(audits: Sequence[Audited]) -> float:
    """The largest shortfall of the reference's own outputs, in steps."""
    own = [row.steps for audited in audits for rows in audited.reference.values() for row in rows]
    return max(own, default=0.0)


def apply_audit(result: CheckResult, audits: Sequence[Audited | None], *, model: str, dtype: str) -> CheckResult:
    """The result with every fork classified; `audits` has one entry per cell, None where nothing was audited."""
    known = [audited for audited in audits if audited is not None]
    rows = [row for audited in known for part in (audited.reference, audited.method) for row in part.values()]
    summary = AuditSummary(
        model=model,
        dtype=dtype,
        tau_steps=tau_of(known),
        cap=CAP_STEPS,
        requests=sum(len(audited.method) for audited in known),
        tokens=sum(map(len, rows)),
    )
    cells = []
    for cell, audited in zip(result.cells, audits, strict=True):
        verdicts = cell.verdicts if audited is None else tuple(_refine(v, audited, summary) for v in cell.verdicts)
        cells.append(replace(cell, verdicts=verdicts))
    cards = tuple(_card(card, cells, audits, dtype) for card in result.cards)
    return replace(result, cells=tuple(cells), audit=summary, cards=cards)


def _refine(verdict: RequestVerdict, audited: Audited, summary: AuditSummary) -> RequestVerdict:
    rows = audited.method.get(verdict.request)
    if not rows:
        return verdict
    worst = max(range(len(rows)), key=lambda index: rows[index].steps)
    shortfall = rows[worst].steps
    refined = replace(verdict, shortfall_steps=shortfall)
    if verdict.verdict is Verdict.IDENTICAL or verdict.verdict not in FORKS or verdict.step is None:
        return refined
    detail = verdict.detail.split("; only the logits")[0]
    if not summary.decides:
        wide = f"tau is {summary.tau_steps:.3g} steps of {summary.dtype}, above {summary.cap:g}"
        return replace(refined, verdict=Verdict.INCONCLUSIVE, detail=f"{detail}; {wide}")
    if shortfall > summary.tau_steps:
        far = (
            f"token {worst} (id {rows[worst].token}) lies {shortfall:.4g} steps of {summary.dtype} below the "
            f"reference's leader {rows[worst].leader}, tau is {summary.tau_steps:.3g}"
        )
        return replace(refined, verdict=Verdict.VIOLATION, detail=f"{detail}; {far}")
    ours, theirs = rows[verdict.step], audited.reference.get(verdict.request, ())
    pair = {ours.token, theirs[verdict.step].token if verdict.step < len(theirs) else ours.token}
    near = f"every token within {shortfall:.3g} steps of {summary.dtype} of the reference's leader"
    return replace(
        refined, verdict=Verdict.TIE_EXACT if pair <= ours.tied else Verdict.TIE_NEAR, detail=f"{detail}; {near}"
    )


def _card(card: Card, cells: Sequence[CellResult], audits: Sequence[Audited | None], dtype: str) -> Card:
    """The card with the audit's logits on the reference's side, and the refined verdict."""
    for cell, audited in zip(cells, audits, strict=True):
        if audited is None or (cell.cell.label, cell.task) != (card.cell, card.task):
            continue
        verdict = next((v for v in cell.verdicts if v.request == card.request), None)
        rows = audited.method.get(card.request) or ()
        if verdict is None or card.position.step >= len(rows):
            continue
        row = rows[card.position.step]
        return replace(
            card,
            verdict=str(verdict.verdict),
            detail=verdict.detail,
            dtype=dtype,
            reference=with_logits(card.reference, row.top, row.shortfall, dtype),
        )
    return card


def with_logits(side: Side, top: Sequence[tuple[int, float]], gap: float, dtype: str) -> Side:
    """A side of a card with its highest logits and the gap to the other arm's token."""
    tokens = tuple(TopToken(id=token, text=None, logit=logit) for token, logit in top)
    return replace(side, top=tokens, gap=gap, gap_steps=gap / step_size(dtype, top[0][1]))
