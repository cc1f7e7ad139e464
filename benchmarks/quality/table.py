"""Quality of every method at about 2x, 4x and 8x: `make quality`.

Runs both configurations beside this file, or finishes them, writes benchmarks/results/quality.json and puts the table
into docs/compressors.md. A run that is there already under another version of the code is refused, as by `vcbench run`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import write_result
from orders import order_rows, order_table
from rich.console import Console

from vcbench.config.load import load_config
from vcbench.metrics.interval import Estimate
from vcbench.metrics.summary import CellSummary, summarise
from vcbench.records.reader import Run, load_run
from vcbench.runners.run import execute

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATIONS = ("dropping", "quantised")
PAGE = ROOT / "docs" / "compressors.md"
ELEMENT_BITS = 32
"""Of the full cache that the factors are over: float32."""


def main() -> None:
    """Runs, writes the result and the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recorded", action="store_true", help="run nothing; write what the runs' records hold so far")
    recorded, console = parser.parse_args().recorded, Console()
    runs = []
    for name in CONFIGURATIONS:
        config = load_config(Path(__file__).with_name(f"{name}.yaml"))
        path = Path(config.output_dir) / config.name if recorded else execute(config, console=console)
        if not recorded or path.is_dir():
            runs.append(load_run(path))
    rows = [row for run in runs for row in in_families(quality_rows(run))]
    origin = [{key: run.provenance.get(key) for key in ("git", "versions", "hardware")} for run in runs]
    orders = order_rows(runs)
    write_result("quality", {"prompts": prompt_lengths(runs[0]), "runs": origin, "rows": rows, "orders": orders})
    text = between(between(PAGE.read_text("utf-8"), "quality", table(rows)), "orders", order_table(orders))
    PAGE.write_text(text, "utf-8")
    console.print(f"wrote {PAGE.relative_to(ROOT)}")


def between(text: str, name: str, content: str) -> str:
    """The page with what stands between a table's markers replaced."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    return f"{text.split(begin)[0]}{begin}\n\n{content}\n{end}{text.split(end)[1]}"


def prompt_lengths(run: Run) -> list[int]:
    """Tokens of each prompt."""
    return [len(line.prompt_ids) for line in run.prompts.values()]


def quality_rows(run: Run) -> list[dict[str, Any]]:
    """One row a method: the lossy arm's divergence and bytes beside the VeriCache arm's acceptance."""
    summaries = summarise(run)
    drafts = {row.cell.method: row for row in summaries if row.cell.arm == "vericache"}
    measured = [row for row in summaries if row.cell.arm == "lossy" and row.divergence is not None]
    return [quality_row(row, drafts[row.cell.method]) for row in measured]


def in_families(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of one method together, the least compression first."""
    families = list(dict.fromkeys(row["method"].rsplit("-", 1)[0] for row in rows))
    return sorted(rows, key=lambda row: (families.index(row["method"].rsplit("-", 1)[0]), row["factor_stored_start"]))


def quality_row(lossy: CellSummary, draft: CellSummary) -> dict[str, Any]:
    """Figures of one method with their intervals."""
    assert lossy.divergence is not None
    stored = lossy.at_start.stored
    return {
        "method": lossy.cell.method,
        "n": lossy.n,
        "factor_stored_start": stored,
        "factor_stored_end": lossy.at_end.stored,
        "bits_per_element": ELEMENT_BITS / stored if stored else None,
        "kl_per_step_nats": plain(lossy.divergence.mean),
        "kl_percentiles": lossy.divergence.percentiles,
        "top1_agreement": plain(lossy.divergence.top1_agreement),
        "tokens_per_round_at_25": plain(draft.committed_per_round),
        "vericache_exact": plain(draft.agreement.exact) if draft.agreement is not None else None,
        "drafts_looped": plain(draft.looped),
    }


def plain(estimate: Estimate | None) -> dict[str, Any] | None:
    """An estimate as JSON."""
    if estimate is None:
        return None
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high, "n": estimate.n}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows in Markdown, brackets being 95 % intervals."""
    lines = [
        "| method | factor | bits/element | KL/step, nats | top-1 agreement | tokens a round of 26 | exact |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        kl, top, tokens = (row[key] for key in ("kl_per_step_nats", "top1_agreement", "tokens_per_round_at_25"))
        exact = row["vericache_exact"]
        lines.append(
            f"| `{row['method']}` | {row['factor_stored_start']:.2f} | {row['bits_per_element']:.2f} "
            f"| {shown(kl, '.2g')} | {shown(top, '.1%')} | {shown(tokens, '.1f')} "
            f"| {format(exact['value'] * exact['n'], '.0f') + ' of ' + str(exact['n']) if exact else '-'} |"
        )
    return "\n".join(lines) + "\n"


def shown(estimate: dict[str, Any] | None, form: str) -> str:
    """A figure and its interval; `-` where it was not measured."""
    if estimate is None:
        return "-"
    value, low, high = (format(estimate[key], form) for key in ("value", "low", "high"))
    return f"{value} ({low}–{high})"


if __name__ == "__main__":
    main()
