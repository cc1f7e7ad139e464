"""The columns of the comparison: what a reader sees of a cell's summary."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from vcbench.metrics.bytes import Factors
from vcbench.metrics.interval import Estimate
from vcbench.metrics.summary import CellSummary
from vcbench.report.table import STYLES, UNKNOWN, Column
from vcbench.scoring.scores import Figure

NEVER = "never"
ROUNDING = 1e-9
"""Share of a value below which an interval is what rounding leaves of none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """A row with the words before its figures, and the headline metrics of its task by name."""

    labels: tuple[str, ...]
    row: CellSummary
    headline: Mapping[str, Figure] = field(default_factory=dict)


Rows = Sequence[Labelled]


def number(value: float | None, digits: int = 3) -> str:
    """The value to so many significant digits, never in exponents above 1e-4; `-` where unknown."""
    if value is None:
        return UNKNOWN
    if math.isinf(value):
        return NEVER
    if value == 0 or abs(value) >= 10**digits:
        return f"{value:,.0f}"
    text = f"{value:#.{digits}g}"
    if "e" not in text:
        return text.rstrip(".")
    return f"{value:.1e}" if abs(value) < 1 else f"{value:,.0f}"


def margin(value: Estimate | None) -> str:
    """` ±` half of the 95 % interval; empty where it is unknown or nothing."""
    half = value.half_width if value is not None else None
    return f" ±{number(half, 2)}" if value is not None and half and half > ROUNDING * abs(value.value) else ""


def timed_margin(value: Estimate | None) -> str:
    """As `margin`, but of a figure of batches, which says so where it rests on a single one."""
    return " ±?" if value is not None and value.n < 2 else margin(value)


def percent(value: Estimate | None) -> str:
    """A share in whole per cent; never rounded up to 100 or down to 0."""
    return UNKNOWN if value is None else whole_percent(value.value)


def whole_percent(share: float) -> str:
    """A share in whole per cent; never rounded up to 100 or down to 0."""
    return f"{min(max(100 * share, 1.0), 99.0):.0f}" if 0 < share < 1 else f"{100 * share:.0f}"


def share_text(value: Estimate | None) -> str:
    """A share in per cent with its interval, which is seldom even on both sides: `0 [0, 71]`."""
    if value is None or value.low is None or value.high is None:
        return percent(value)
    return f"{percent(value)} [{100 * value.low:.0f}, {100 * value.high:.0f}]"


def _value(estimate: Estimate | None) -> str:
    return number(estimate.value if estimate is not None else None)


Of = Callable[[CellSummary], Estimate | None]


def _measure(name: str) -> Of:
    return lambda row: row.measures[name]


def _estimated(
    rows: Rows, key: str, header: str, rank: float, of: Of, legend: str = "", suffix: Callable[[CellSummary], str] = str
) -> Column:
    """A mean with ±, which may be spared."""
    found = [(of(each.row), "" if suffix is str else suffix(each.row)) for each in rows]
    short = [_value(estimate) + (end if estimate is not None else "") for estimate, end in found]
    cells = [text + margin(estimate) for text, (estimate, _) in zip(short, found, strict=True)]
    return Column(key=key, header=header, rank=rank, cells=cells, short=short, legend=legend)


def _timed(rows: Rows, key: str, header: str, rank: float, of: Of, legend: str = "") -> Column:
    """A speed, whose interval is never spared."""
    cells = [_value(of(each.row)) + timed_margin(of(each.row)) for each in rows]
    return Column(key=key, header=header, rank=rank, cells=cells, legend=legend)


def _share(rows: Rows, key: str, header: str, rank: float, of: Of) -> Column:
    found = [of(each.row) for each in rows]
    return Column(
        key=key, header=header, rank=rank, cells=list(map(share_text, found)), short=list(map(percent, found))
    )


def _text(rows: Rows, key: str, header: str, rank: float, of: Callable[[CellSummary], str], legend: str = "") -> Column:
    return Column(key=key, header=header, rank=rank, cells=[of(each.row) for each in rows], legend=legend)


def bytes_text(found: Factors) -> str:
    """Fast and held together, so that neither is read without the other."""
    if found.fast is None or found.held is None:
        return UNKNOWN
    return f"{found.fast:.2f}/{found.held:.2f}"


def _fork(row: CellSummary) -> str:
    """Median step of the first difference, and how many of the requests have one."""
    if row.agreement is None or not row.agreement.n:
        return UNKNOWN
    if row.agreement.first_divergence is None:
        return NEVER
    return f"{row.agreement.first_divergence:.0f} {row.agreement.diverged}/{row.agreement.n}"


def _most(row: CellSummary) -> str:
    return f"/{row.cell.longest_draft + 1}" if row.cell.longest_draft is not None else ""


def length(value: float | None) -> str:
    """A number of tokens, which may be `never`."""
    return number(value, 12) if value is None or math.isinf(value) else f"{value:,.0f}"


def break_even_text(found: Estimate | None) -> str:
    """The length with its interval, either of which may be `never`; one batch has none."""
    if found is None or found.low is None or found.high is None:
        return length(found.value if found else None) + timed_margin(found)
    if found.low == found.high:
        return length(found.value)
    return f"{length(found.value)} [{length(found.low)}, {length(found.high)}]"


def _break_even(rows: Rows) -> Column:
    found = [each.row.measures["break_even"] for each in rows]
    return Column(
        key="break_even",
        header="ahead\nfrom\ntoken",
        rank=2,
        cells=list(map(break_even_text, found)),
        short=[length(each.value if each else None) for each in found],
        legend=AHEAD,
    )


def label_columns(headers: Sequence[str], rows: Rows) -> list[Column]:
    """The words before a row's figures, in the colour of its arm."""
    styles = [STYLES.get(each.row.cell.arm, "") for each in rows]
    return [
        Column(key=name, header=name, rank=0, cells=[each.labels[i] for each in rows], label=True, styles=styles)
        for i, name in enumerate(headers)
    ]


def headline_columns(rows: Rows) -> list[Column]:
    """A column for each headline metric that any row has; shares in per cent."""
    names = dict.fromkeys(name for each in rows for name in each.headline)
    return [
        _headline(rows, name, next(each.headline[name] for each in rows if name in each.headline)) for name in names
    ]


def _headline(rows: Rows, name: str, example: Figure) -> Column:
    is_share = example.metric.kind == "share"
    found = [each.headline[name].estimate if name in each.headline else None for each in rows]
    short = [percent(each) if is_share else _value(each) for each in found]
    cells = [share_text(each) if is_share else _value(each) + margin(each) for each in found]
    header = name.replace("_", "\n") + ("\n%" if is_share else "")
    return Column(key=name, header=header, rank=1.1, cells=cells, short=short)


BYTES = (
    "KV x less: full KV's bytes over those needed in fast memory to draft / over all held, the full copy included "
    "(below 1: more than full KV)"
)
AHEAD = "ahead from: output tokens from which the cell has taken less time in all"
TO_END = "end to end: prefill and compression included"


def columns_of(rows: Rows) -> list[Column]:
    """The columns that every run has, and those of its tasks' headline metrics after the first."""
    failed = any(each.row.errors + each.row.missing for each in rows)
    return [
        _text(rows, "n", "n", 1, lambda row: str(row.n)),
        *headline_columns(rows),
        _text(rows, "kv_end", "KV x less\nat end\nfast/held", 0, lambda row: bytes_text(row.at_end), BYTES),
        _text(rows, "kv_start", "at start\nfast/held", 13, lambda row: bytes_text(row.at_start)),
        _estimated(rows, "kl_per_step", "KL/step\nnats", 1.2, _measure("kl")),
        _estimated(rows, "kl_at_end", "KL end\nnats", 10, _measure("kl_end")),
        _text(rows, "first_divergence", "first\nfork\ntoken", 7, _fork, "first fork: median, and share of n"),
        _estimated(rows, "token_f1", "token\nF1", 12, lambda row: row.agreement.token_f1 if row.agreement else None),
        _share(rows, "exact", "exact\n%", 0, _measure("exact")),
        _estimated(rows, "acceptance", "tokens\nper\nround", 3, _measure("acceptance"), "round: of at most k+1", _most),
        _estimated(
            rows, "acceptance_unlooped", "of these\nnot\nlooped", 11, _measure("acceptance_unlooped"), "", _most
        ),
        _timed(rows, "tokens_per_s", "decode\ntokens/s", 5, _measure("tokens_per_s")),
        _timed(rows, "speedup", "decode\nspeed\nx full", 0, _measure("speedup")),
        _share(rows, "looped", "looped\n%", 0, _measure("looped")),
        _estimated(rows, "prefill_s", "prefill\ns", 9, _measure("prefill_s")),
        _estimated(rows, "compress_s", "compress\ns", 4, _measure("compress_s")),
        _estimated(rows, "ttft_s", "first\ntoken\ns", 8, _measure("ttft_s")),
        _timed(rows, "end_to_end_tokens_per_s", "end to end\ntokens/s", 6, _measure("end_to_end_tokens_per_s")),
        _timed(rows, "end_to_end_speedup", "end to\nend\nx full", 0, _measure("end_to_end_speedup"), TO_END),
        _break_even(rows),
        _text(rows, "failed", "failed", 0 if failed else 14, lambda row: str(row.errors + row.missing)),
    ]
