"""`vcbench score --curves`: how KL adds up by step, how it is distributed, and how long outputs stay equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vcbench.metrics.growth import REFERENCE_STEP, STRAIGHT, Growth
from vcbench.metrics.interval import Estimate
from vcbench.metrics.survival import Survival
from vcbench.records.printable import printable
from vcbench.records.reader import CellInfo, Run
from vcbench.report.columns import margin, number, whole_percent
from vcbench.report.sparkline import sparkline
from vcbench.report.table import STYLES, UNKNOWN, bare_table, print_whole, table_width
from vcbench.scoring.curves import STEPS, Curves, curves_of

SPARK = 24
GROWTH = (
    "cumulative KL(full || method) in nats by step: mean over outputs ± half of the 95 % bootstrap band over outputs, "
    "bars on one scale; (k): only k outputs get so far"
)
SLOPES = (
    "nats/step: slope of the line through the origin; straight: its R^2; ~: beyond the outputs, along that line, where "
    f"R^2 is {STRAIGHT} or more"
)
SPREAD = (
    "of all steps; dp: probability of full KV's token, method less full; PPL ratio: method over full, on its output"
)
EQUAL = "outputs still equal to full KV's after t tokens, % (Kaplan-Meier: an output that ends equal is censored there)"
Cells = Sequence[tuple[CellInfo, Curves]]


def print_curves(run: Run, task: str, console: Console) -> None:
    """The tables of a task; one that no cell has anything for is left out. Where they are too wide, ± goes first."""
    cells = [(cell, curves_of(run, cell, task)) for cell in run.cells if cell.answers(task) and cell.arm != "full"]
    console.print(Text(f"task {printable(task)}, by position", style="bold"), soft_wrap=True)
    ascii_only, said = console.options.ascii_only, False
    for make, legend in ((_growth, GROWTH), (_slopes, SLOPES), (_spread, SPREAD), (_survival, EQUAL)):
        table = make(cells, bands=True, ascii_only=ascii_only)
        if table is None:
            continue
        if table_width(table, console) > console.width:
            table = make(cells, bands=False, ascii_only=ascii_only) or table
        print_whole(console, table)
        console.print(Text(legend, style="dim"), soft_wrap=True)
        said = True
    if not said:
        console.print("  no cell beside full KV has an answer or a divergence")


def shown_steps(longest: int) -> list[int]:
    """The positions shown: the usual ones, and the last."""
    return [*(step for step in STEPS if step < longest), longest]


def _growth(cells: Cells, *, bands: bool, ascii_only: bool) -> Table | None:
    found = [(cell, curves.growth) for cell, curves in cells if curves.growth is not None]
    if not found:
        return None
    steps = shown_steps(max(len(growth.value) for _, growth in found))
    table = _table(["cell"], ["n", *map(str, steps)], [""])
    top = max(growth.value[-1] for _, growth in found)
    for cell, growth in found:
        bars = sparkline(growth.value, width=SPARK, ascii_only=ascii_only, top=top)
        table.add_row(_label(cell), str(growth.n), *(_at(growth, step, bands) for step in steps), bars)
    return table


def _slopes(cells: Cells, *, bands: bool, ascii_only: bool) -> Table | None:
    found = [(cell, curves.growth, curves.distribution) for cell, curves in cells]
    if not any(growth for _, growth, _ in found):
        return None
    table = _table(["cell"], ["nats/step", "straight", f"at {REFERENCE_STEP}"], ["measured by"])
    for cell, growth, distribution in found:
        if growth is not None and distribution is not None:
            straight = UNKNOWN if growth.straightness is None else f"{growth.straightness:.3f}"
            at = _value(growth.at_reference, bands=bands)
            at = f"~{at}" if growth.extrapolated and growth.at_reference is not None else at
            basis = ", ".join(f"{name} ({count})" for name, count in distribution.basis.items())
            table.add_row(_label(cell), _value(growth.slope, bands=bands), straight, at, basis)
    return table


def _spread(cells: Cells, *, bands: bool, ascii_only: bool) -> Table | None:
    found = [(cell, curves.distribution) for cell, curves in cells if curves.distribution is not None]
    if not found:
        return None
    figures = ["mean", "median", "p90", "p99", "p99.9", "max", "sum", "top-1 %", "top-5 %", "RMS dp %", "PPL ratio"]
    table = _table(["cell"], ["outputs", "steps", "unknown", *figures])
    for cell, each in found:
        shares = (each.top1_agreement, each.top5_overlap, each.delta_p_rms)
        table.add_row(
            _label(cell),
            str(each.outputs),
            f"{each.steps:,}",
            str(each.unknown) if each.unknown else "",
            _value(each.mean, bands=bands),
            *map(number, each.percentiles),
            _value(each.sequence, bands=bands),
            *(_value(share, 100, bands=bands) for share in shares),
            _value(each.ppl_ratio, bands=bands),
        )
    return table


def _survival(cells: Cells, *, bands: bool, ascii_only: bool) -> Table | None:
    found = [(cell, curves.survival) for cell, curves in cells if curves.survival is not None]
    if not found:
        return None
    steps = shown_steps(max(len(each.value) for _, each in found))
    table = _table(["cell"], ["n", "differ", *map(str, steps), "median"])
    for cell, each in found:
        shares = [_share(each, step) for step in steps]
        median = "never" if each.median is None else str(each.median)
        table.add_row(_label(cell), str(each.n), str(each.diverged), *shares, median)
    return table


def _at(growth: Growth, step: int, bands: bool) -> str:
    """The curve at a step, with the number of outputs that reach it where that is not all."""
    if step > len(growth.value):
        return ""
    low, high = growth.low[step - 1], growth.high[step - 1]
    shown = Estimate(value=growth.value[step - 1], low=low, high=high, n=growth.reached[step - 1])
    band = margin(shown) if bands else ""
    fewer = f" ({growth.reached[step - 1]})" if growth.reached[step - 1] < growth.n else ""
    return number(growth.value[step - 1]) + band + fewer


def _share(each: Survival, step: int) -> str:
    """Never rounded to 100 or 0 where it is not. After the last token of all outputs the curve stays as it is."""
    index = min(step, len(each.value)) - 1
    return whole_percent(each.value[index])


def _value(estimate: Estimate | None, scale: float = 1.0, *, bands: bool) -> str:
    if estimate is None:
        return UNKNOWN
    low, high = (None if bound is None else scale * bound for bound in (estimate.low, estimate.high))
    scaled = Estimate(value=scale * estimate.value, low=low, high=high, n=estimate.n)
    return number(scaled.value) + (margin(scaled) if bands else "")


def _label(cell: CellInfo) -> Text:
    return Text(printable(cell.label), style=STYLES.get(cell.arm, ""))


def _table(left: Sequence[str], right: Sequence[str], after: Sequence[str] = ()) -> Table:
    table = bare_table()
    justified: Mapping[str, str] = {**dict.fromkeys(left, "left"), **dict.fromkeys(after, "left")}
    for header in (*left, *right, *after):
        table.add_column(header, justify="left" if header in justified else "right", no_wrap=True, vertical="bottom")
    return table
