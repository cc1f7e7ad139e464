"""`vcbench score --curves`: how KL adds up by step, how it is distributed, and how long outputs stay equal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from vcbench.metrics.growth import REFERENCE_STEP, STRAIGHT, Growth
from vcbench.metrics.interval import Estimate
from vcbench.metrics.survival import Survival
from vcbench.records.printable import printable
from vcbench.records.reader import CellInfo, Run
from vcbench.report.columns import margin, number, whole_percent
from vcbench.report.sparkline import sparkline
from vcbench.report.table import STYLES, UNKNOWN, Column, fit, print_whole, say
from vcbench.scoring.curves import STEPS, Curves, curves_of

SPARK = 24
GROWTH = "cumulative KL(full || method) in nats by step: mean over outputs; bars: one scale; (k): k outputs get so far"
BANDS = "±: half of the 95 % bootstrap band over outputs"
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
    """The tables of a task; one that no cell has anything for is left out."""
    cells = [(cell, curves_of(run, cell, task)) for cell in run.cells if cell.answers(task) and cell.arm != "full"]
    console.print(Text(f"task {printable(task)}, by position", style="bold"), soft_wrap=True)
    said = False
    for make, legend in ((_growth, GROWTH), (_slopes, SLOPES), (_spread, SPREAD), (_survival, EQUAL)):
        columns = make(cells, ascii_only=console.options.ascii_only)
        if not columns:
            continue
        fitted = fit(columns, console)
        print_whole(console, fitted.table)
        banded = any("±" in text for texts in fitted.texts for text in texts)
        say(console, f"{legend}; {BANDS}" if banded else legend, style="dim")
        if fitted.hidden:
            say(console, f"not shown at this width: {', '.join(fitted.hidden)}", style="dim")
        said = True
    if not said:
        console.print("  no cell beside full KV has an answer or a divergence")


def shown_steps(longest: int) -> list[int]:
    """The positions shown: the usual ones, and the last."""
    return [*(step for step in STEPS if step < longest), longest]


def _growth(cells: Cells, *, ascii_only: bool) -> list[Column]:
    found = [(cell, curves.growth) for cell, curves in cells if curves.growth is not None]
    if not found:
        return []
    steps = shown_steps(max(len(growth.value) for _, growth in found))
    top = max(growth.value[-1] for _, growth in found)
    bars = [sparkline(growth.value, width=SPARK, ascii_only=ascii_only, top=top) for _, growth in found]
    return [
        *_first(found, "n", [str(growth.n) for _, growth in found]),
        *_steps(
            steps, [[_at(growth, step, bands) for _, growth in found] for step in steps for bands in (True, False)]
        ),
        Column(key="bars", header="", rank=3, cells=bars),
    ]


def _slopes(cells: Cells, *, ascii_only: bool) -> list[Column]:
    found = [
        (cell, curves.growth, curves.distribution)
        for cell, curves in cells
        if curves.growth is not None and curves.distribution is not None
    ]
    if not found:
        return []
    straight = [UNKNOWN if each.straightness is None else f"{each.straightness:.3f}" for _, each, _ in found]
    basis = [", ".join(f"{name} ({count})" for name, count in each.basis.items()) for _, _, each in found]
    return [
        _labels([cell for cell, _, _ in found]),
        _spread_column("nats/step", [each.slope for _, each, _ in found], 0),
        Column(key="straight", header="straight", rank=0, cells=straight),
        _spread_column(
            f"at {REFERENCE_STEP}",
            [each.at_reference for _, each, _ in found],
            1,
            before=["~" if each.extrapolated and each.at_reference is not None else "" for _, each, _ in found],
        ),
        Column(key="basis", header="measured by", rank=2, cells=basis, label=True),
    ]


def _spread(cells: Cells, *, ascii_only: bool) -> list[Column]:
    found = [(cell, curves.distribution) for cell, curves in cells if curves.distribution is not None]
    if not found:
        return []
    each = [distribution for _, distribution in found]
    names = (("median", 2), ("p90", 5), ("p99", 4), ("p99.9", 8), ("max", 3))
    points = [[number(one.percentiles[index]) for one in each] for index in range(len(names))]
    columns = _first(found, "outputs", [str(one.outputs) for one in each])
    columns += [
        Column(key="steps", header="steps", rank=7, cells=[f"{one.steps:,}" for one in each]),
        Column(key="unknown", header="unknown", rank=1, cells=[str(one.unknown or "") for one in each]),
        _spread_column("mean", [one.mean for one in each], 0),
        *(
            Column(key=name, header=name, rank=rank, cells=cells_)
            for (name, rank), cells_ in zip(names, points, strict=True)
        ),
        _spread_column("sum", [one.sequence for one in each], 0),
        _spread_column("top-1\n%", [one.top1_agreement for one in each], 1, scale=100),
        _spread_column("top-5\n%", [one.top5_overlap for one in each], 6, scale=100),
        _spread_column("RMS dp\n%", [one.delta_p_rms for one in each], 6, scale=100),
        _spread_column("PPL\nratio", [one.ppl_ratio for one in each], 1),
    ]
    return columns


def _survival(cells: Cells, *, ascii_only: bool) -> list[Column]:
    found = [(cell, curves.survival) for cell, curves in cells if curves.survival is not None]
    if not found:
        return []
    steps = shown_steps(max(len(each.value) for _, each in found))
    medians = ["never" if each.median is None else str(each.median) for _, each in found]
    return [
        *_first(found, "n", [str(each.n) for _, each in found]),
        Column(key="differ", header="differ", rank=1, cells=[str(each.diverged) for _, each in found]),
        *_steps(steps, [[_share(each, step) for _, each in found] for step in steps for _ in (True, False)]),
        Column(key="median", header="median", rank=0, cells=medians),
    ]


def _first(found: Sequence[tuple[CellInfo, object]], name: str, counts: Sequence[str]) -> list[Column]:
    return [_labels([cell for cell, _ in found]), Column(key=name, header=name, rank=1, cells=counts)]


def _labels(cells: Sequence[CellInfo]) -> Column:
    styles = [STYLES.get(cell.arm, "") for cell in cells]
    return Column(key="cell", header="cell", rank=0, cells=[cell.label for cell in cells], label=True, styles=styles)


def _steps(steps: Sequence[int], texts: Sequence[Sequence[str]]) -> list[Column]:
    """A column a step, with and without bands in turn; the last step stays, and of the others the early ones go."""
    return [
        Column(
            key=str(step),
            header=str(step),
            rank=0 if step == steps[-1] else 4 + len(steps) - index,
            cells=texts[2 * index],
            short=texts[2 * index + 1],
        )
        for index, step in enumerate(steps)
    ]


def _spread_column(
    header: str,
    estimates: Sequence[Estimate | None],
    rank: float,
    *,
    scale: float = 1.0,
    before: Sequence[str] | None = None,
) -> Column:
    marks = before or [""] * len(estimates)
    pairs = list(zip(marks, estimates, strict=True))
    return Column(
        key=header,
        header=header,
        rank=rank,
        cells=[mark + _value(each, scale, bands=True) for mark, each in pairs],
        short=[mark + _value(each, scale, bands=False) for mark, each in pairs],
    )


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
