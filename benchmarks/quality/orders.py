"""Orders of methods that papers report, held against quality runs: ratios of two methods' divergence."""

from __future__ import annotations

from typing import Any

from vcbench.metrics.interval import ratio
from vcbench.records.reader import Run

ORDERS: tuple[tuple[str, str, str], ...] = (
    ("KVzip above StreamingLLM", "kvzip-4x", "streamingllm-4x"),
    ("SnapKV above StreamingLLM", "snapkv-4x", "streamingllm-4x"),
    ("KVzip above SnapKV", "kvzip-4x", "snapkv-4x"),
    ("Expected Attention above SnapKV", "expected-attention-4x", "snapkv-4x"),
    ("PyramidKV above SnapKV at small budgets", "pyramidkv-8x", "snapkv-8x"),
    ("H2O above StreamingLLM", "h2o-4x", "streamingllm-4x"),
    ("KVzip above its surrogate KVzap", "kvzip-4x", "kvzap-4x"),
    ("keys by channel above keys by token", "kivi-4", "int4"),
    ("KVQuant above KIVI, 3 bits", "kvquant-3", "kivi-3"),
    ("KVQuant above KIVI, 2 bits", "kvquant-2", "kivi-2"),
    ("RotateKV above KIVI, 2 bits", "rotatekv-2", "kivi-2"),
    ("TurboQuant unbiased above plain", "turboquant-k3v3", "turboquant-k3v3-plain"),
    ("TurboQuant unbiased far above QJL", "turboquant-k3v3", "turboquant-k3v3-qjl"),
    ("keys want bits more than values", "turboquant-k4v3", "turboquant-k3v3"),
)
"""A claim, the method that should diverge less, and the one that should diverge more."""

FEWER_BITS: tuple[tuple[str, str], ...] = (
    ("kivi-4", "kivi-2"),
    ("kvquant-4", "kvquant-2"),
    ("rotatekv-4", "rotatekv-2"),
    ("turboquant-k4v4", "turboquant-k2v2"),
)
"""Of which the first should diverge about a hundredth of the second."""


def order_rows(runs: list[Run]) -> list[dict[str, Any]]:
    """KL of the first method over the second's, prompt by prompt, with a 95 % interval."""
    sums = {method: kl for run in runs for method, kl in divergence_sums(run).items()}
    claims = [*ORDERS, *(("4 bits near 1 % of 2 bits", *pair) for pair in FEWER_BITS)]
    rows = []
    for claim, low, high in claims:
        if low not in sums or high not in sums:
            continue
        both = sorted(sums[low].keys() & sums[high].keys())
        found = ratio([sums[low][prompt] for prompt in both], [sums[high][prompt] for prompt in both])
        if found is not None and found.low is not None and found.high is not None:
            rows.append(
                {"claim": claim, "less": low, "more": high, "n": found.n}
                | {"kl_ratio": {"value": found.value, "low": found.low, "high": found.high}}
            )
    return rows


def divergence_sums(run: Run) -> dict[str, dict[tuple[str, str], float]]:
    """Nats over all steps of each (task, request), by method of the lossy cells."""
    lossy = {cell.id: cell.method for cell in run.cells if cell.arm == "lossy" and cell.method}
    sums: dict[str, dict[tuple[str, str], float]] = {}
    for (cell, task, request), line in run.divergences.items():
        if cell in lossy:
            sums.setdefault(lossy[cell], {})[task, request] = sum(kl for kl in line.kl if kl is not None)
    return sums


def order_table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown, brackets being 95 % intervals."""
    lines = ["| papers report | KL of | over that of | ratio | here |", "|---|---|---|---|---|"]
    for row in rows:
        value, low, high = (row["kl_ratio"][key] for key in ("value", "low", "high"))
        found = f"{value:.2g} ({low:.2g}–{high:.2g})"
        lines.append(f"| {row['claim']} | `{row['less']}` | `{row['more']}` | {found} | {verdict(row)} |")
    return "\n".join(lines) + "\n"


def verdict(row: dict[str, Any]) -> str:
    """What the interval says of a claim."""
    low, high = row["kl_ratio"]["low"], row["kl_ratio"]["high"]
    if (row["less"], row["more"]) in FEWER_BITS:
        return "yes" if low <= 0.01 <= high else f"no: {row['kl_ratio']['value']:.0%}"
    if high < 1:
        return "yes"
    return "the other way" if low > 1 else f"not told by {row['n']} prompts"
