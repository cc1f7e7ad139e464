"""`vcbench score --curves`: how KL adds up by step, how it is distributed, and how long outputs stay equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vcbench.metrics.growth import REFERENCE_STEP, Growth
from vcbench.metrics.interval import Estimate
from vcbench.metrics.survival import Survival
from vcbench.records.printable import printable
from vcbench.records.reader import CellInfo, Run
from vcbench.report.columns import UNKNOWN, margin, number
from vcbench.report.sparkline import sparkline
from vcbench.report.table import STYLES
from vcbench.scoring.curves import STEPS, Curves, Distribution, curves_of

SPARK = 24
GROWTH = (
    "cumulative KL(full || method) in nats by step: mean over outputs ± half of the 95 % bootstrap band over outputs, "
    "bars on one scale; ~: extrapolated along the slope; straight: R^2 of that line; (k): only k outputs get so far"
)
SPREAD = (
    "of all steps; dp: probability of full KV's token, method less full; PPL ratio: method over full, on its output"
)
EQUAL = "outputs still equal to full KV's after t tokens, % (Kaplan-Meier: an output that ends equal is censored there)"
Cells = Sequence[tuple[CellInfo, Curves]]


def print_curves(run: Run, task: str, console: Console) -> None:
    """The three tables of a task; one that no cell has anything for is left out."""
    cells = [(cell, curves_of(run, cell, task)) for cell in run.cells if cell.answers(task) and cell.arm != "full"]
    console.print(Text(f"task {printable(task)}, by position", style="bold"), soft_wrap=True)
    made = [_growth(cells, ascii_only=console.options.ascii_only), _spread(cells), _survival(cells)]
    for table, legend in zip(made, (GROWTH, SPREAD, EQUAL), strict=True):
        if table is not None:
            console.print(table)
            console.print(Text(legend, style="dim"), soft_wrap=True)
    if made == [None, None, None]:
        console.print("  no cell beside full KV has an answer or a divergence")


def shown_steps(longest: int) -> list[int]:
    """The positions shown: the usual ones, and the last."""
    return [*(step for step in STEPS if step < longest), longest]


def _growth(cells: Cells, *, ascii_only: bool) -> Table | None:
    found = [(cell, curves.growth, curves.distribution) for cell, curves in cells if curves.growth is not None]
    if not found:
        return None
    steps = shown_steps(max(len(growth.value) for _, growth, _ in found if growth is not None))
    table = _table(
        ["cell"], ["n", *map(str, steps), "nats/step", "straight", f"at {REFERENCE_STEP}"], ["measured by", ""]
    )
    top = max(growth.value[-1] for _, growth, _ in found if growth is not None)
    for cell, growth, distribution in found:
        assert growth is not None
        at = ("~" if growth.extrapolated else "") + _value(growth.at_reference)
        straight = UNKNOWN if growth.straightness is None else f"{growth.straightness:.3f}"
        table.add_row(
            _label(cell),
            str(growth.n),
            *(_at(growth, step) for step in steps),
            _value(growth.slope),
            straight,
            at,
            ", ".join(distribution.basis) if distribution is not None else "",
            sparkline(growth.value, width=SPARK, ascii_only=ascii_only, top=top),
        )
    return table


def _spread(cells: Cells) -> Table | None:
    found = [(cell, curves.distribution) for cell, curves in cells if curves.distribution is not None]
    if not found:
        return None
    figures = ["mean", "median", "p90", "p99", "p99.9", "max", "sum", "top-1 %", "top-5 %", "RMS dp %", "PPL ratio"]
    table = _table(["cell"], ["outputs", "steps", "unknown", *figures])
    for cell, each in found:
        assert each is not None
        table.add_row(_label(cell), *_spread_cells(each))
    return table


def _spread_cells(each: Distribution) -> list[str]:
    return [
        str(each.outputs),
        f"{each.steps:,}",
        str(each.unknown) if each.unknown else "",
        _value(each.mean),
        *map(number, each.percentiles),
        _value(each.sequence),
        _value(each.top1_agreement, 100),
        _value(each.top5_overlap, 100),
        _value(each.delta_p_rms, 100),
        _value(each.ppl_ratio),
    ]


def _survival(cells: Cells) -> Table | None:
    found = [(cell, curves.survival) for cell, curves in cells if curves.survival is not None]
    if not found:
        return None
    steps = shown_steps(max(len(each.value) for _, each in found if each is not None))
    table = _table(["cell"], ["n", "differ", *map(str, steps), "median"])
    for cell, each in found:
        assert each is not None
        shares = [_share(each, step) for step in steps]
        median = "never" if each.median is None else str(each.median)
        table.add_row(_label(cell), str(each.n), str(each.diverged), *shares, median)
    return table


def _at(growth: Growth, step: int) -> str:
    """The curve at a step, with the number of outputs that reach it where that is not all."""
    if step > len(growth.value):
        return ""
    low, high = growth.low[step - 1], growth.high[step - 1]
    band = margin(Estimate(value=growth.value[step - 1], low=low, high=high, n=growth.reached[step - 1]))
    fewer = f" ({growth.reached[step - 1]})" if growth.reached[step - 1] < growth.n else ""
    return number(growth.value[step - 1]) + band + fewer


def _share(each: Survival, step: int) -> str:
    """Never rounded to 100 or 0 where it is not. After the last token of all outputs the curve stays as it is."""
    index = min(step, len(each.value)) - 1
    value = each.value[index]
    return f"{min(max(100 * value, 1.0), 99.0):.0f}" if 0 < value < 1 else f"{100 * value:.0f}"


def _value(estimate: Estimate | None, scale: float = 1.0) -> str:
    if estimate is None:
        return UNKNOWN
    low, high = (None if bound is None else scale * bound for bound in (estimate.low, estimate.high))
    scaled = Estimate(value=scale * estimate.value, low=low, high=high, n=estimate.n)
    return number(scaled.value) + margin(scaled)


def _label(cell: CellInfo) -> Text:
    return Text(printable(cell.label), style=STYLES.get(cell.arm, ""))


def _table(left: Sequence[str], right: Sequence[str], after: Sequence[str] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    justified: Mapping[str, str] = {**dict.fromkeys(left, "left"), **dict.fromkeys(after, "left")}
    for header in (*left, *right, *after):
        table.add_column(header, justify="left" if header in justified else "right", no_wrap=True, vertical="bottom")
    return table
