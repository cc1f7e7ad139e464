"""Every figure of a cell's summary under one name each, for CSV and Parquet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vcbench.metrics.interval import Estimate
from vcbench.metrics.measures import MEASURES, NEVER
from vcbench.metrics.summary import CellSummary
from vcbench.scoring.scores import Figure

NAMES = {
    "acceptance": "committed_per_round",
    "acceptance_unlooped": "committed_per_round_unlooped",
    "tokens_per_s": "decode_tokens_per_s",
    "break_even": "break_even_tokens",
    "kl": "kl_per_step_nats",
    "kl_end": "kl_at_end_nats",
    "fast_factor": "factor_fast_end",
    "held_factor": "factor_held_end",
}
"""Columns of measures whose own names do not say unit or moment."""


def flat(run: str, row: CellSummary, headline: Mapping[str, Figure]) -> dict[str, Any]:
    """Every figure with its unit in its name; intervals as `_low` and `_high`, samples of what is timed as `_n`."""
    cell, speed, load = row.cell, row.speed, row.load
    values: dict[str, Any] = {"run": run, "task": row.task, "cell": cell.id, "label": cell.label, "arm": cell.arm}
    values |= {"method": cell.method, "compressor": cell.compressor, "draft_length": cell.longest_draft}
    values |= {"prompts": row.prompts, "n": row.n, "errors": row.errors, "missing": row.missing}
    values |= {"output_tokens": row.output_tokens, "batches": row.batches, "paired_batches": row.paired}
    for name, measure in MEASURES.items():
        values |= _spread(NAMES.get(name, name), row.measures[name], counted=measure.timed)
    never = row.measures["break_even"]
    values["break_even_never"] = None if never is None else never.value == NEVER
    for moment, found in (("start", row.at_start), ("end", row.at_end)):
        for name in ("codes", "stored", "fast", "held"):
            values.setdefault(f"factor_{name}_{moment}", getattr(found, name))
        for name in ("full_bytes", "stored_bytes", "fast_bytes", "held_bytes"):
            values[f"{name}_{moment}"] = getattr(found, name)
        for tier in ("memory", "disk"):
            values[f"{tier}_bytes_{moment}"] = found.tiers.get(tier, 0) if found.n else None
    divergence, agreement, accepted = row.divergence, row.agreement, row.acceptance
    values["kl_unknown_steps"] = divergence.unknown if divergence else None
    values |= _spread("top1_agreement", divergence.top1_agreement if divergence else None)
    values["first_divergence_step"] = agreement.first_divergence if agreement else None
    values["diverged"] = agreement.diverged if agreement else None
    values |= _spread("token_f1", agreement.token_f1 if agreement else None)
    values["acceptance_rate"] = accepted.rate if accepted else None
    values |= _spread("prefill_tokens_per_s", row.prefill_tokens_per_s)
    for name in ("draft_s_per_round", "verify_s_per_round", "other_s_per_round", "peak_rss_bytes"):
        values[name] = getattr(speed, name)
    values |= {"other_cpus": load.other_cpus if load else None, "cpus": load.cpus if load else None}
    for name, figure in headline.items():
        values |= _spread(name, figure.estimate)
    return values


def _spread(name: str, value: Estimate | None, *, counted: bool = False) -> dict[str, float | int | None]:
    if value is None:
        found: dict[str, float | int | None] = {name: None, f"{name}_low": None, f"{name}_high": None}
    else:
        found = {name: _finite(value.value), f"{name}_low": _finite(value.low), f"{name}_high": _finite(value.high)}
    return found | ({f"{name}_n": value.n if value else 0} if counted else {})


def _finite(value: float | None) -> float | None:
    """What a table of numbers can hold; `break_even_never` says where the value is infinite."""
    return value if value is not None and math.isfinite(value) else None
