"""The gate's answer for a reader: counts per cell, what went wrong, and one line that names the level."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vcbench.lossless.cards import card_lines
from vcbench.lossless.outcome import CheckResult
from vcbench.lossless.population import survival
from vcbench.lossless.result import CellResult, RequestVerdict, Verdict
from vcbench.records.printable import never_fail, printable

SHOWN = 10
"""Requests listed by name per cell; `--json` lists all."""
CARDS_SHOWN = 3
POINTS_SHOWN = 6
HEADERS = {
    Verdict.IDENTICAL: "identical",
    Verdict.TIE_EXACT: "exact\ntie",
    Verdict.TIE_NEAR: "near\ntie",
    Verdict.VIOLATION: "violation",
    Verdict.STOP_MISMATCH: "other\nstop",
    Verdict.INCONCLUSIVE: "undecided",
    Verdict.MISSING: "missing",
    Verdict.NOT_COMPARABLE: "other\nprompt",
}
STYLES = {
    "PASS": "bold green",
    "FAIL": "bold red",
    "VACUOUS": "bold yellow",
    "INCONCLUSIVE": "bold yellow",
    "NOT_COMPARABLE": "bold yellow",
}


def headline(result: CheckResult) -> str:
    """The verdict in one line, with the level and n; it says lossless only of a run that passed."""
    level = "bitwise lossless" if result.level == "bitwise" else f"lossless {result.level}"
    reference = _reference(result)
    counted = f"{result.passed} of {result.n} request{'' if result.n == 1 else 's'}"
    match result.outcome:
        case "PASS":
            ties = f", {result.ties} of them by a tie" if result.ties else ""
            return f"{level}: {counted}{ties}"
        case "FAIL" if any(finding.outcome == "fail" for finding in result.findings) and result.passed == result.n:
            return f"{counted} pass, but a threshold is crossed"
        case "FAIL" if result.passed == result.n or (result.problems and _only_missing(result)):
            return f"not shown to be {level}: {counted} identical to {reference}, but the records are not whole"
        case "FAIL":
            return f"NOT {level}: {counted} identical to {reference}"
        case "INCONCLUSIVE" if result.undecided or (result.audit is not None and not result.audit.decides):
            return f"not shown to be {level}: {result.undecided} of {result.n} requests are undecided"
        case "INCONCLUSIVE":
            return f"{counted} pass, but a threshold is undecided"
        case "VACUOUS":
            return f"{counted} identical to {reference}, which shows nothing here"
    return "the answers are to different prompts or were made under different settings"


def _only_missing(result: CheckResult) -> bool:
    return all(each.verdict in (Verdict.IDENTICAL, Verdict.MISSING) for each in result.verdicts)


def _reference(result: CheckResult) -> str:
    """What the answers were compared with, in words."""
    names = {cell.arms[0].name for cell in result.cells if cell.arms is not None}
    return "full KV" if names <= {"full KV"} else "the reference"


def reasons(result: CheckResult) -> list[str]:
    """Why it is no pass: differences, problems, failed guards, thresholds, and the requests that do not pass."""
    lines = [f"differs: {line}" for line in result.differences]
    lines += result.problems
    if not result.n:
        lines.append("no VeriCache request is in the run")
    for cell in result.cells:
        lines += [f"{cell.name}: {guard.name}: {guard.detail}" for guard in cell.vacuous]
        failed = [verdict for verdict in cell.verdicts if verdict.verdict is not Verdict.IDENTICAL]
        lines += [f"{cell.name}: {v.verdict} {_request(v)}: {v.detail}" for v in failed[:SHOWN]]
        if len(failed) > SHOWN:
            lines.append(f"{cell.name}: and {len(failed) - SHOWN} more")
    for finding in result.findings:
        if finding.outcome != "pass":
            lines.append(f"{finding.rule}: {finding.outcome}: {_where(finding.cell)}{finding.detail}")
    return [printable(line) for line in lines]


def remarks(result: CheckResult) -> list[str]:
    """What weakens the answer without changing it, and the thresholds that hold."""
    lines = [f"the engine was broken on purpose: {result.fault}"] if result.fault else []
    lines += result.remarks
    lines += [f"{cell.name}: {note}" for cell in result.cells for note in cell.notes]
    lines += [
        f"{finding.rule}: holds: {_where(finding.cell)}{finding.detail}"
        for finding in result.findings
        if finding.outcome == "pass"
    ]
    return [printable(line) for line in lines]


def evidence(result: CheckResult) -> list[str]:
    """How much a pass shows: the bound on the rate of violations with its n, the audit, and survival by step."""
    bound = "unknown" if result.bound is None else f"{float(f'{100 * result.bound:.2g}'):g} %"
    several = result.judged_cells > 1
    where = f", in the weakest of {result.judged_cells} cells" if several else ""
    lines = [
        f"violation rate below {bound} at 95 % confidence{where} (n = {result.prompts} independent "
        f"prompt{'' if result.prompts == 1 else 's'}, {result.n} answers, {result.tokens:,} tokens equal)"
    ]
    if result.audit is not None:
        a = result.audit
        limit = "" if a.decides else f", above {a.cap:g}: too coarse to decide anything"
        lines.append(
            f"audited with {a.model}: {a.tokens:,} tokens of {a.requests} requests; the reference's own output falls "
            f"short by at most tau = {a.tau_steps:.3g} steps of {a.dtype}{limit}"
        )
    curve = survival(result.verdicts)
    if curve:
        every = max(1, -(-len(curve) // POINTS_SHOWN))
        points = [*curve[:-1:every], curve[-1]]
        lines.append("still identical after step " + ", ".join(f"{p.step}: {100 * p.surviving:.0f} %" for p in points))
    return [printable(line) for line in lines]


def render(result: CheckResult, console: Console) -> None:
    """Prints the table of cells, the cards, the reasons against a pass, the evidence and the verdict."""
    never_fail(console.file)
    console.print(_table(result))
    for line in _cards(result):
        console.print(Text(line), soft_wrap=True)
    for line in reasons(result):
        console.print(Text(f"! {line}"), soft_wrap=True)
    for line in remarks(result):
        console.print(Text(f"note: {line}"), soft_wrap=True)
    if result.n:
        for line in evidence(result):
            console.print(Text(line), soft_wrap=True)
    console.print(Text(f"{result.outcome}: {headline(result)}", style=STYLES[result.outcome]), soft_wrap=True)


def _cards(result: CheckResult) -> Iterator[str]:
    for card in result.cards[:CARDS_SHOWN]:
        yield from [*card_lines(card), ""]
    if len(result.cards) > CARDS_SHOWN:
        yield f"{len(result.cards) - CARDS_SHOWN} more divergences; --html FILE and --json show all"
        yield ""


def _table(result: CheckResult) -> Table:
    made = Table(box=box.SIMPLE_HEAD, title=Text(f"lossless gate: {printable(result.run)}"), title_justify="left")
    made.add_column("cell", overflow="fold")
    shown = [v for v in Verdict if v is Verdict.IDENTICAL or any(cell.counts[v] for cell in result.cells)]
    for header in (*(HEADERS[verdict] for verdict in shown), "tokens\nequal", "guards\nthat hold"):
        made.add_column(header, justify="right", no_wrap=True)
    for cell in result.cells:
        made.add_row(Text(printable(cell.name)), *_figures(cell, shown))
    return made


def _figures(cell: CellResult, shown: list[Verdict]) -> list[str]:
    counts = [str(cell.counts[verdict]) if cell.verdicts else "-" for verdict in shown]
    tokens = f"{sum(verdict.tokens for verdict in cell.verdicts):,}" if cell.verdicts else "-"
    holding = f"{len(cell.guards) - len(cell.vacuous)} of {len(cell.guards)}" if cell.guards else "-"
    return [*counts, tokens, holding]


def _request(verdict: RequestVerdict) -> str:
    return f"{verdict.task}/{verdict.request}" if verdict.task else verdict.request


def _where(cell: str) -> str:
    return f"{cell}: " if cell else ""
