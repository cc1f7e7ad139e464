"""What one request cost in one cell, in words: seconds by phase, speed to the end, and whose bytes."""

from __future__ import annotations

from collections.abc import Iterator

from vcbench.metrics.bytes import Held, Moment, held
from vcbench.metrics.measures import MEASURES
from vcbench.records.printable import printable
from vcbench.records.reader import CellInfo, Run
from vcbench.records.schema import RequestLine
from vcbench.report.columns import break_even_text, number, timed_margin

MOMENTS: tuple[tuple[Moment, str], ...] = (("kv_start", "start"), ("kv_end", "end"))


def time_lines(line: RequestLine, full: RequestLine | None) -> Iterator[str]:
    """Seconds by phase, and speeds to the end; nothing of what the records do not hold."""
    parts = {
        "prefill": "prefill_s",
        "compression": "compress_s",
        "moved to its tier": "offload_s",
        "decoding": "decode_s",
    }
    known = [f"{word} {number(line.timing[name])} s" for word, name in parts.items() if line.timing.get(name)]
    if "ttft_s" in line.timing:
        known.append(f"first token after {number(line.timing['ttft_s'])} s")
    if known:
        yield f"time: {', '.join(known)}"
    speed = _end_to_end(line)
    if speed is None or line.error is not None:
        return
    reference = _end_to_end(full) if full is not None and full is not line else None
    against = f", {number(speed / reference)} x full KV's of this request" if reference else ""
    yield f"end to end, prefill and compression included: {number(speed)} tokens/s{against}"


def cell_line(run: Run, cell: CellInfo, task: str) -> str:
    """The cell's speeds over all its batches, as `compare` has them; empty where nothing is known."""
    said = []
    for name, words in (("speedup", "decoding"), ("end_to_end_speedup", "end to end")):
        found = MEASURES[name].estimate(run, cell, task)
        if found is not None and cell.arm != "full":
            one = " (one batch)" if found.n < 2 else ""
            said.append(f"{words} {number(found.value)}{one or timed_margin(found)} x full KV")
    ahead = MEASURES["break_even"].estimate(run, cell, task)
    if ahead is not None:
        said.append(f"ahead from output token {break_even_text(ahead)}")
    return f"all batches of the cell: {', '.join(said)}" if said else ""


def byte_lines(line: RequestLine) -> Iterator[str]:
    """Bytes in fast memory and in all by tier, at start and end, with full KV's over each."""
    found = [(when, each) for moment, when in MOMENTS if (each := held(line, moment)) is not None]
    if not found:
        yield "KV bytes: not recorded"
        return
    for when, each in found:
        tiers = ", ".join(f"{count:,} in {printable(tier)}" for tier, count in each.tiers.items() if count)
        yield (
            f"KV bytes at the {when}: full KV {each.full:,}; fast memory to draft {each.fast:,} "
            f"({_factor(each, each.fast)} x less); held in all {each.total:,} ({_factor(each, each.total)}): {tiers}"
        )
    classes = ", ".join(f"{printable(name)} x {layers}" for name, layers in line.cache_classes.items())
    codes = "; ".join(f"{_factor(each, each.codes)} at the {when}" for when, each in found)
    yield f"codes or kept entries alone: {codes}; layers: {classes or 'no class'}"


def _end_to_end(line: RequestLine) -> float | None:
    names = ("prefill_s", "compress_s", "decode_s")
    if not all(name in line.timing for name in names):
        return None
    seconds = sum(line.timing[name] for name in names) + line.timing.get("offload_s", 0.0)
    return len(line.token_ids) / seconds if seconds > 0 else None


def _factor(found: Held, count: int) -> str:
    return f"{found.full / count:.2f}" if count else "?"
