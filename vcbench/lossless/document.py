"""The gate's answer as plain data, for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from vcbench.lossless.outcome import CheckResult
from vcbench.lossless.population import survival
from vcbench.lossless.result import CellResult, Verdict

SCHEMA_VERSION = 2


def as_dict(result: CheckResult) -> dict[str, Any]:
    """Plain data with a schema version; `docs/lossless.md` describes it."""
    return {
        "schema": SCHEMA_VERSION,
        "run": result.run,
        "outcome": result.outcome,
        "exit_code": result.exit_code,
        "level": result.level,
        "injected_fault": result.fault,
        "requests": result.n,
        "passed": result.passed,
        "identical": result.identical,
        "ties": result.ties,
        "prompts": result.prompts,
        "violation_rate_upper_95": result.bound,
        "tokens_checked": result.tokens,
        "survival": [asdict(step) for step in survival(result.verdicts)],
        "problems": list(result.problems),
        "differences": list(result.differences),
        "remarks": list(result.remarks),
        "audit": None if result.audit is None else {**asdict(result.audit), "decides": result.audit.decides},
        "thresholds": [finding.as_dict() for finding in result.findings],
        "cells": [_cell(result, cell) for cell in result.cells],
        "cards": [card.as_dict() for card in result.cards],
    }


def _cell(result: CheckResult, cell: CellResult) -> dict[str, Any]:
    return {
        "id": cell.cell.id,
        "label": cell.cell.label,
        "task": cell.task,
        "counts": {str(verdict): cell.counts[verdict] for verdict in Verdict if cell.counts[verdict]},
        "prompts": len({v.sample for v in cell.verdicts}),
        "violation_rate_upper_95": result.bound_of(cell),
        "guards": [{"name": g.name, "passed": g.passed, "detail": g.detail} for g in cell.guards],
        "notes": list(cell.notes),
        "requests": [
            {
                "request": v.request,
                "verdict": str(v.verdict),
                "step": v.step,
                "tokens": v.tokens,
                "shortfall_steps": v.shortfall_steps,
                "detail": v.detail,
            }
            for v in cell.verdicts
        ],
    }
