"""`vcbench show`: one request in every cell: its text with the first divergence marked, its rounds, KL and bytes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from vcbench.errors import UsageError
from vcbench.metrics.levels import full_loads, level_figures
from vcbench.metrics.text import first_divergence, is_looped
from vcbench.records.printable import never_fail, printable
from vcbench.records.reader import CellInfo, Run, load_run
from vcbench.records.schema import DivergenceLine, PromptLine, RequestLine
from vcbench.registry import suggest
from vcbench.report.cost import byte_lines, cell_line, time_lines
from vcbench.report.sparkline import rounds_bar, sparkline

BEFORE_FORK = 80
"""Characters shown of the text that is still full KV's."""
IDS_SHOWN = 16


def show_request(run: Run | Path, request_id: str, console: Console, *, task: str | None = None) -> None:
    """Prints the prompt's end and every cell's answer to it; of all tasks that have the request, or of one.

    Raises UsageError where there is no such request, with the nearest name.
    """
    loaded = load_run(run) if isinstance(run, Path) else run
    prompts = [
        line
        for (prompt_task, request), line in loaded.prompts.items()
        if request == request_id and task in (None, prompt_task)
    ]
    if not prompts:
        known = [request for prompt_task, request in loaded.prompts if task in (None, prompt_task)]
        hint = suggest(request_id, known) if known else "the run has no prompts yet"
        raise UsageError(f"no request {printable(request_id)!r} in {loaded.path}; {hint}")
    never_fail(console.file)
    for prompt in prompts:
        for line in _request(loaded, prompt, console):
            console.print(line, soft_wrap=True)


def _request(run: Run, prompt: PromptLine, console: Console) -> Iterator[Text]:
    yield Text(f"{printable(prompt.task)}/{printable(prompt.request)}", style="bold")
    yield Text(f"prompt: {len(prompt.prompt_ids):,} tokens, sha256 {prompt.prompt_sha256[:12]}, ends in")
    ids = " ".join(map(str, prompt.prompt_ids[-IDS_SHOWN:]))
    yield _indented(prompt.tail or f"(no text recorded; last token ids {ids})")
    baseline = run.baseline(prompt.task)
    full = run.requests.get((baseline.id, prompt.task, prompt.request)) if baseline is not None else None
    for cell in run.cells:
        if cell.answers(prompt.task):
            key = (cell.id, prompt.task, prompt.request)
            yield Text("")
            yield from _cell(cell, run.requests.get(key), full, run.divergences.get(key), console)
            if words := cell_line(run, cell, prompt.task):
                yield Text(f"  {words}")


def _cell(
    cell: CellInfo,
    line: RequestLine | None,
    full: RequestLine | None,
    divergence: DivergenceLine | None,
    console: Console,
) -> Iterator[Text]:
    yield Text(printable(cell.label), style="bold")
    if line is None:
        yield Text("  no result recorded")
        return
    if line.error is not None:
        yield Text(f"  failed: {printable(line.error)}", style="red")
    looped = ", repeats itself" if is_looped(line.token_ids) else ""
    yield Text(f"  {len(line.token_ids)} tokens, finish reason {printable(line.finish_reason)}{looped}")
    for words in (*byte_lines(line), *time_lines(line, full)):
        yield Text(f"  {words}")
    ascii_only = console.options.ascii_only
    if line.drafted:
        yield Text(f"  rounds, accepted/drafted: {_fractions(line)}")
        yield Text(f"  accepted share:  {rounds_bar(line.accepted, line.drafted, ascii_only=ascii_only)}")
    yield from (Text(f"  {printable(words)}") for words in level_lines(line))
    if divergence is not None and divergence.kl:
        known = [value for value in divergence.kl if value is not None]
        yield Text(f"  KL per step:     {sparkline(divergence.kl, width=_bar_width(console), ascii_only=ascii_only)}")
        unknown = f", {len(divergence.kl) - len(known)} steps unknown" if len(known) < len(divergence.kl) else ""
        yield Text(f"  KL in nats: largest {max(known, default=0.0):.3g}, sum {sum(known):.3g}{unknown}")
    yield from _text(cell, line, full)


def level_lines(line: RequestLine) -> Iterator[str]:
    """What each level did, where more than one drafts, and how often the full cache was read."""
    figures = level_figures([line])
    if len(figures) > 2:
        for each in figures[:-1]:
            passes = f", {each.passes} passes" if each.passes else ""
            yield f"level {each.name}: {each.accepted}/{each.drafted} accepted in {each.rounds} rounds{passes}"
    loads = full_loads(line)
    if line.drafted and loads is not None:
        yield f"full cache read {figures[-1].passes} times: {loads[0] / loads[1]:.3g} per 100 tokens"


def _text(cell: CellInfo, line: RequestLine, full: RequestLine | None) -> Iterator[Text]:
    """The answer; of one that equals full KV's only that it does, of another the end of what is equal and the rest."""
    if cell.arm == "full" or full is None:
        yield _indented(line.text)
        return
    if line.error is not None or full.error is not None:
        yield _indented(line.text)
        return
    fork = first_divergence(full.token_ids, line.token_ids)
    if fork is None:
        same_end = line.finish_reason == full.finish_reason
        yield Text("  same tokens as full KV" + ("" if same_end else ", but another finish reason"))
        return
    at = first_divergence(full.text, line.text)
    at = len(line.text) if at is None else at
    shown = line.text[max(0, at - BEFORE_FORK) : at]
    yield Text(f"  leaves full KV at token {fork}, where it has id {_id(line, fork)} and full KV {_id(full, fork)}")
    text = Text("  " + ("..." if at > BEFORE_FORK else "") + _block(shown))
    text.append(f"[fork at token {fork}]", style="bold red")
    yield text.append(_block(line.text[at:]))


def _id(line: RequestLine, index: int) -> str:
    return str(line.token_ids[index]) if index < len(line.token_ids) else "none (it ends)"


def _fractions(line: RequestLine) -> str:
    return " ".join(f"{a}/{d}" for a, d in zip(line.accepted, line.drafted, strict=False))


def _bar_width(console: Console) -> int:
    return max(10, min(64, console.width - 20))


def _indented(text: str) -> Text:
    return Text("  " + _block(text))


def _block(text: str) -> str:
    return printable(text, newlines=True).replace("\t", "    ").replace("\n", "\n  ")
