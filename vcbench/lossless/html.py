"""The gate's answer as one page that needs nothing beside itself: counts, reasons, and every divergence card."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from vcbench.lossless.cards import Card, Side, card_lines
from vcbench.lossless.outcome import CheckResult
from vcbench.lossless.population import SurvivalStep, survival
from vcbench.lossless.render import evidence, headline, reasons, remarks
from vcbench.lossless.result import Verdict
from vcbench.records.printable import printable

COLOURS = {"PASS": "#1a7f37", "FAIL": "#b42318"}
OTHER_COLOUR = "#9a6700"
WIDTH, HEIGHT = 640, 120
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #1f2328; }
h1 span { padding: .1em .5em; border-radius: .3em; color: white; }
table { border-collapse: collapse; margin: 1em 0; }
th, td { border: 1px solid #d1d9e0; padding: .3em .7em; text-align: right; }
th:first-child, td:first-child { text-align: left; }
article { border: 1px solid #d1d9e0; border-radius: .4em; padding: .5em 1em; margin: 1em 0; }
code, pre { font: 13px/1.4 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
mark { background: #ffd8d3; }
"""


def html(result: CheckResult) -> str:
    """The page. Text from records is escaped, so that it can neither be markup nor move anything."""
    colour = COLOURS.get(result.outcome, OTHER_COLOUR)
    body = [
        f'<h1>Lossless gate: <span style="background:{colour}">{_text(result.outcome)}</span></h1>',
        f"<p>{_text(headline(result))}. Level: <em>{_text(result.level)}</em>. Records: {_text(result.run)}.</p>",
        _list(reasons(result) if result.outcome != "PASS" else []),
        _list(f"note: {line}" for line in remarks(result)),
        _counts(result),
        _guards(result),
        _list(evidence(result) if result.n else []),
        _curve(survival(result.verdicts)),
        *_cards(result.cards),
    ]
    head = f'<meta charset="utf-8"><title>Lossless gate: {_text(result.run)}</title><style>{STYLE}</style>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n' + "\n".join(body) + "\n</body></html>\n"


def _counts(result: CheckResult) -> str:
    shown = [v for v in Verdict if v is Verdict.IDENTICAL or any(cell.counts[v] for cell in result.cells)]
    rows = []
    for cell in result.cells:
        counts = [str(cell.counts[verdict]) if cell.verdicts else "-" for verdict in shown]
        rows.append([cell.name, *counts, f"{len(cell.guards) - len(cell.vacuous)} of {len(cell.guards)}"])
    return _table(["cell", *map(str, shown), "guards that hold"], rows)


def _guards(result: CheckResult) -> str:
    rows = [
        [cell.name, guard.name, "holds" if guard.passed else "FAILS", guard.detail]
        for cell in result.cells
        for guard in cell.guards
    ]
    return _table(["cell", "guard", "", "finding"], rows) if rows else ""


def _curve(curve: list[SurvivalStep]) -> str:
    """The share of requests still identical by step, as a drawing."""
    if not curve:
        return ""
    last = max(curve[-1].step, 1)
    points, height = [f"0,0 0,{_y(1.0):.1f}"], 1.0
    for step in curve:
        x = WIDTH * step.step / last
        points.append(f"{x:.1f},{_y(height):.1f} {x:.1f},{_y(step.surviving):.1f}")
        height = step.surviving
    label = f"still identical, steps 0 to {last}: {100 * height:.0f} % at the end"
    return (
        f'<figure><svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{_text(label)}">'
        f'<polyline fill="none" stroke="#0969da" stroke-width="2" points="{" ".join(points)}"/></svg>'
        f"<figcaption>{_text(label)}</figcaption></figure>"
    )


def _y(share: float) -> float:
    return 2 + (HEIGHT - 4) * (1 - share)


def _cards(cards: Iterable[Card]) -> Iterator[str]:
    for card in cards:
        lines = card_lines(card)
        yield f"<article><h2>{_text(lines[0])}</h2>{_side(card.reference)}{_side(card.method)}"
        yield f"<pre>{_text(chr(10).join(lines[1:]))}</pre></article>"


def _side(side: Side) -> str:
    if not side.before and not side.after:
        return ""
    return f"<p>{_text(side.name)}: <code>...{_text(side.before)}<mark>{_text(side.after)}</mark></code></p>"


def _table(head: list[str], rows: list[list[str]]) -> str:
    if not rows:
        return ""
    lines = ["<table><tr>" + "".join(f"<th>{_text(word)}</th>" for word in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{_text(word)}</td>" for word in row) + "</tr>" for row in rows]
    return "\n".join(lines) + "</table>"


def _list(lines: Iterable[str]) -> str:
    items = [f"<li>{_text(line)}</li>" for line in lines]
    return f"<ul>{''.join(items)}</ul>" if items else ""


def _text(text: str) -> str:
    return escape(printable(text, newlines=True), quote=True)
