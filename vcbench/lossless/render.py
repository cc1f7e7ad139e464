"""The gate's answer for a reader: counts per cell, what went wrong, and one line that names the level."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vcbench.lossless.result import CellResult, CheckResult, Verdict
from vcbench.records.printable import never_fail, printable

SHOWN = 10
"""Requests listed by name per cell; `--json` lists all."""
HEADERS = {
    Verdict.IDENTICAL: "identical",
    Verdict.LOGITS_DIFFER: "other\nlogits",
    Verdict.DIVERGED: "diverged",
    Verdict.STOP_MISMATCH: "other\nstop",
    Verdict.MISSING: "missing",
    Verdict.ERROR: "error",
    Verdict.NOT_COMPARABLE: "other\nprompt",
}
STYLES = {"PASS": "bold green", "FAIL": "bold red", "VACUOUS": "bold yellow", "NOT_COMPARABLE": "bold yellow"}


def headline(result: CheckResult) -> str:
    """The verdict in one line, with the level and n; it says lossless only of a run that passed."""
    level = "bitwise lossless" if result.level == "bitwise" else f"lossless {result.level}"
    counted = f"{result.identical} of {result.n} request{'' if result.n == 1 else 's'}"
    match result.outcome:
        case "PASS":
            return f"{level}: {counted}"
        case "FAIL" if result.identical == result.n:
            return f"not shown to be {level}: {counted} identical to full KV, but the records are not whole"
        case "FAIL":
            return f"NOT {level}: {counted} identical to full KV"
        case "VACUOUS":
            return f"{counted} identical to full KV, which shows nothing here"
    return "the answers are to different prompts"


def reasons(result: CheckResult) -> list[str]:
    """Why it is no pass: the run's problems, failed guards, and the requests that are not identical, by cell."""
    lines = list(result.problems)
    if not result.n:
        lines.append("no VeriCache request is in the run")
    for cell in result.cells:
        lines += [f"{_name(cell)}: {guard.name}: {guard.detail}" for guard in cell.vacuous]
        failed = [verdict for verdict in cell.verdicts if verdict.verdict is not Verdict.IDENTICAL]
        lines += [f"{_name(cell)}: {v.verdict} {v.task}/{v.request}: {v.detail}" for v in failed[:SHOWN]]
        if len(failed) > SHOWN:
            lines.append(f"{_name(cell)}: and {len(failed) - SHOWN} more")
    return [printable(line) for line in lines]


def remarks(result: CheckResult) -> list[str]:
    """What weakens the answer without changing it."""
    lines = [f"{_name(cell)}: {note}" for cell in result.cells for note in cell.notes]
    return [printable(line) for line in lines]


def evidence(result: CheckResult) -> str:
    """How much a pass shows: the bound on the rate of violations with its n."""
    tokens = sum(verdict.tokens for verdict in result.verdicts)
    bound = "unknown" if result.bound is None else f"{100 * result.bound:.2g} %"
    return f"violation rate below {bound} at 95 % confidence (n = {result.n}, {tokens:,} tokens equal)"


def render(result: CheckResult, console: Console) -> None:
    """Prints the table of cells, the reasons against a pass, the evidence and the verdict."""
    never_fail(console.file)
    console.print(_table(result))
    for line in reasons(result):
        console.print(Text(f"! {line}"), soft_wrap=True)
    for line in remarks(result):
        console.print(Text(f"note: {line}"), soft_wrap=True)
    if result.n:
        console.print(Text(evidence(result)), soft_wrap=True)
    console.print(Text(f"{result.outcome}: {headline(result)}", style=STYLES[result.outcome]), soft_wrap=True)


def _table(result: CheckResult) -> Table:
    made = Table(box=box.SIMPLE_HEAD, title=Text(f"lossless gate: {printable(result.run)}"), title_justify="left")
    made.add_column("cell", overflow="fold")
    shown = [v for v in Verdict if v is Verdict.IDENTICAL or any(cell.counts[v] for cell in result.cells)]
    for header in (*(HEADERS[verdict] for verdict in shown), "tokens\nequal", "guards\nthat hold"):
        made.add_column(header, justify="right", no_wrap=True)
    for cell in result.cells:
        counts = [str(cell.counts[verdict]) if cell.verdicts else "-" for verdict in shown]
        tokens = f"{sum(verdict.tokens for verdict in cell.verdicts):,}" if cell.verdicts else "-"
        holding = f"{len(cell.guards) - len(cell.vacuous)} of {len(cell.guards)}" if cell.guards else "-"
        made.add_row(Text(printable(_name(cell))), *counts, tokens, holding)
    return made


def _name(cell: CellResult) -> str:
    return f"{cell.cell.label} ({cell.task})"
