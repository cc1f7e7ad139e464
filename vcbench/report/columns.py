"""The columns of the comparison: what a reader sees of a cell's summary, and what goes into CSV."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vcbench.metrics.interval import Estimate
from vcbench.metrics.summary import CellSummary
from vcbench.scoring.scores import Figure

UNKNOWN = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """A row with the words before its figures, and the headline metrics of its task by name."""

    labels: tuple[str, ...]
    row: CellSummary
    headline: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of figures. `wide` adds the interval; on a narrow screen, columns of a high `rank` go first."""

    key: str
    header: str
    rank: int
    narrow: Callable[[Labelled], str]
    wide: Callable[[Labelled], str]


def number(value: float | None, digits: int = 3) -> str:
    """The value to so many significant digits, never in exponents above 1e-4; `-` where unknown."""
    if value is None:
        return UNKNOWN
    if value == 0 or abs(value) >= 10**digits:
        return f"{value:,.0f}"
    text = f"{value:#.{digits}g}"
    return text.rstrip(".") if "e" not in text else f"{value:.1e}"


def margin(value: Estimate | None) -> str:
    """` ±` half of the 95 % interval; empty where it is unknown or nothing."""
    return f" ±{number(value.half_width, 2)}" if value is not None and value.half_width else ""


def percent(value: Estimate | None) -> str:
    """A share in whole per cent; never rounded up to 100 or down to 0."""
    if value is None:
        return UNKNOWN
    return f"{min(max(100 * value.value, 1.0), 99.0):.0f}" if 0 < value.value < 1 else f"{100 * value.value:.0f}"


def _value(estimate: Estimate | None) -> str:
    return number(estimate.value if estimate is not None else None)


def _stored(row: CellSummary) -> str:
    factor = row.at_start.stored
    return UNKNOWN if factor is None else f"{factor:.2f}"


def _fork(row: CellSummary) -> str:
    """Median step of the first difference, and how many of the requests have one."""
    if row.agreement is None or not row.agreement.n:
        return UNKNOWN
    if row.agreement.first_divergence is None:
        return "never"
    return f"{row.agreement.first_divergence:.0f} {row.agreement.diverged}/{row.agreement.n}"


def _accepted(row: CellSummary) -> str:
    if row.committed_per_round is None:
        return UNKNOWN
    most = f"/{row.cell.longest_draft + 1}" if row.cell.longest_draft is not None else ""
    return _value(row.committed_per_round) + most


def _estimated(
    key: str,
    header: str,
    rank: int,
    estimate: Callable[[CellSummary], Estimate | None],
    text: Callable[[CellSummary], str] | None = None,
) -> Column:
    narrow = text or (lambda row: _value(estimate(row)))
    return Column(
        key,
        header,
        rank,
        lambda each: narrow(each.row),
        lambda each: narrow(each.row) + margin(estimate(each.row)),
    )


def _exact(key: str, header: str, rank: int, text: Callable[[CellSummary], str]) -> Column:
    return Column(key, header, rank, lambda each: text(each.row), lambda each: text(each.row))


def headline_columns(rows: Sequence[Labelled]) -> list[Column]:
    """A column for each headline metric that any row has; shares in per cent."""
    names = dict.fromkeys(name for each in rows for name in each.headline)
    return [_headline(name, next(each.headline[name] for each in rows if name in each.headline)) for name in names]


def _headline(name: str, example: Figure) -> Column:
    is_share = example.metric.kind == "share"
    unit = "\n%" if is_share else ""

    def narrow(each: Labelled) -> str:
        found = each.headline.get(name)
        estimate = found.estimate if found is not None else None
        return percent(estimate) if is_share else _value(estimate)

    def wide(each: Labelled) -> str:
        found = each.headline.get(name)
        if found is None or found.estimate is None:
            return narrow(each)
        scale = 100.0 if is_share else 1.0
        low, high = (None if bound is None else scale * bound for bound in (found.estimate.low, found.estimate.high))
        return narrow(each) + margin(Estimate(value=0.0, low=low, high=high, n=found.n))

    return Column(name, name.replace("_", "\n") + unit, 1, narrow, wide)


COLUMNS = (
    _exact("n", "n", 4, lambda row: str(row.n)),
    _exact("factor_stored", "KV\nfactor\nx", 2, _stored),
    _estimated("kl_per_step", "KL/step\nnats", 3, lambda row: row.divergence.mean if row.divergence else None),
    _estimated("kl_at_end", "KL end\nnats", 5, lambda row: row.divergence.sequence if row.divergence else None),
    _exact("first_divergence", "first\nfork\nstep", 6, _fork),
    _estimated("token_f1", "token\nF1", 7, lambda row: row.agreement.token_f1 if row.agreement else None),
    _exact("exact", "exact\n%", 0, lambda row: percent(row.agreement.exact if row.agreement else None)),
    _estimated("accepted", "tokens\nper\nround", 1, lambda row: row.committed_per_round, _accepted),
    _estimated("tokens_per_s", "decode\ntokens/s", 3, lambda row: row.speed.decode_tokens_per_s),
    _exact("speedup", "speed\nx full", 0, lambda row: number(row.speedup)),
    _exact("looped", "looped\n%", 8, lambda row: percent(row.looped)),
    _exact("failed", "failed", 9, lambda row: str(row.errors + row.missing)),
)


def flat(run: str, row: CellSummary) -> dict[str, Any]:
    """Every figure of a row under one name each, with its unit; intervals as `_low` and `_high`."""
    cell, speed = row.cell, row.speed
    values: dict[str, Any] = {"run": run, "task": row.task, "cell": cell.id, "label": cell.label, "arm": cell.arm}
    values |= {"method": cell.method, "compressor": cell.compressor, "draft_length": cell.longest_draft}
    values |= {"prompts": row.prompts, "n": row.n, "errors": row.errors, "missing": row.missing}
    values["output_tokens"] = row.output_tokens
    for moment, found in (("start", row.at_start), ("end", row.at_end)):
        values |= {f"factor_{name}_{moment}": getattr(found, name) for name in ("codes", "stored", "resident")}
        values |= {f"stored_bytes_{moment}": found.stored_bytes, f"full_bytes_{moment}": found.full_bytes}
    divergence, agreement, accepted = row.divergence, row.agreement, row.acceptance
    values |= _spread("kl_per_step_nats", divergence.mean if divergence else None)
    values |= _spread("kl_at_end_nats", divergence.sequence if divergence else None)
    values["kl_unknown_steps"] = divergence.unknown if divergence else None
    values |= _spread("top1_agreement", divergence.top1_agreement if divergence else None)
    values["first_divergence_step"] = agreement.first_divergence if agreement else None
    values["diverged"] = agreement.diverged if agreement else None
    values |= _spread("token_f1", agreement.token_f1 if agreement else None)
    values |= _spread("exact", agreement.exact if agreement else None)
    values |= _spread("committed_per_round", row.committed_per_round)
    values["acceptance_rate"] = accepted.rate if accepted else None
    values |= _spread("full_loads_per_100_tokens", row.full_loads_per_100_tokens)
    values |= _spread("decode_tokens_per_s", speed.decode_tokens_per_s)
    values |= {"speedup": row.speedup}
    values |= _spread("prefill_tokens_per_s", row.prefill_tokens_per_s)
    for name in ("draft_s_per_round", "verify_s_per_round", "other_s_per_round", "peak_rss_bytes"):
        values[name] = getattr(speed, name)
    return values | _spread("looped", row.looped)


def _spread(name: str, value: Estimate | None) -> dict[str, float | None]:
    if value is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: value.value, f"{name}_low": value.low, f"{name}_high": value.high}
