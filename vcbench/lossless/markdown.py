"""The gate's answer as a pull-request comment."""

from __future__ import annotations

from collections.abc import Iterator

from vcbench.lossless.cards import card_lines
from vcbench.lossless.outcome import CheckResult
from vcbench.lossless.render import evidence, headline, reasons, remarks
from vcbench.lossless.result import Verdict
from vcbench.records.printable import markdown_text

LIMIT = 60_000
"""Characters; GitHub refuses a comment of more than 65,536."""
REASONS = 20
CARDS = 3
CUT = "\n\n_Cut here: the comment would be too long. `--html` has everything._\n"


def markdown(result: CheckResult) -> str:
    """The comment, at most `LIMIT` characters."""
    text = "\n".join(_lines(result)) + "\n"
    return text if len(text) <= LIMIT else text[: LIMIT - len(CUT)].rsplit("\n", 1)[0] + CUT


def _lines(result: CheckResult) -> Iterator[str]:
    yield f"### Lossless gate: {result.outcome}"
    yield ""
    yield f"{markdown_text(headline(result))}. Level: *{result.level}*. Records: {markdown_text(result.run)}."
    yield ""
    if result.cells:
        shown = [v for v in Verdict if v is Verdict.IDENTICAL or any(cell.counts[v] for cell in result.cells)]
        yield "| cell | " + " | ".join(map(str, shown)) + " | guards that hold |"
        yield "| --- |" + " ---: |" * (len(shown) + 1)
        for cell in result.cells:
            counts = [str(cell.counts[verdict]) if cell.verdicts else "-" for verdict in shown]
            holding = f"{len(cell.guards) - len(cell.vacuous)} of {len(cell.guards)}"
            yield f"| {markdown_text(cell.name)} | {' | '.join(counts)} | {holding} |"
        yield ""
    against = reasons(result) if result.outcome != "PASS" else []
    yield from (f"- {markdown_text(line)}" for line in against[:REASONS])
    if len(against) > REASONS:
        yield f"- and {len(against) - REASONS} more"
    yield from (f"- note: {markdown_text(line)}" for line in remarks(result)[:REASONS])
    yield ""
    if result.n:
        yield from (markdown_text(line) + "  " for line in evidence(result))
    for card in result.cards[:CARDS]:
        yield ""
        yield f"<details><summary>{markdown_text(f'{card.cell}: {card.request}, step {card.position.step}')}</summary>"
        yield ""
        yield from (f"    {line}" for line in card_lines(card))
        yield ""
        yield "</details>"
