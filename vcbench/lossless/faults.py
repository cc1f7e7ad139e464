"""The faults that `vcbench check --inject-fault` builds into the engine, so that the gate can be seen to turn red."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vcbench.errors import UsageError
from vcbench.registry import suggest

Needs = Literal["", "drop", "quantise", "penalty", "levels", "batch", "draw", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault that was reported for some engine. `outcome`: what the gate must say of it.

    `needs`: the kind of compressor (`none` keeps everything) or of sampling, the drafting levels one above the other,
    or the requests decoded together, without which it does nothing.
    """

    doc: str
    outcome: Literal["FAIL", "VACUOUS"] = "FAIL"
    needs: Needs = ""


FAULTS: dict[str, Fault] = {
    "position_from_kept_length": Fault(
        doc="verification rotates its block by the number of kept tokens in place of the true position", needs="drop"
    ),
    "no_rollback_of_last_draft": Fault(doc="the first rejected draft stays in the full cache"),
    "eos_only_checked_at_block_end": Fault(doc="a stop counts only as the last token of a committed block"),
    "cap_before_stop": Fault(doc="a block that reaches max_tokens is cut there before stops are looked for"),
    "nan_accepts_all": Fault(doc="logits that are not a number accept the whole draft"),
    "penalty_ignores_same_round": Fault(
        doc="a repetition penalty does not see the tokens of the same round", needs="penalty"
    ),
    "compressed_cache_in_verify": Fault(doc="verification reads the compressed cache"),
    "drop_last_request": Fault(doc="the last request of every batch is never reported"),
    "wrong_model_records": Fault(doc="another model's answers are recorded under this one's name"),
    "noise_by_draft_index": Fault(
        doc="the noise of a drawn token is keyed by its place in the draft, not in the output", needs="draw"
    ),
    "penalty_sees_rejected_drafts": Fault(
        doc="a penalty counts the whole draft, what is rejected of it included", needs="penalty"
    ),
    "draft_positions_shifted": Fault(
        doc="drafting rotates by the position after the true one; outputs stay right", outcome="VACUOUS", needs="none"
    ),
    "stale_draft_entries": Fault(
        doc="the draft cache takes for each verified token the entry of the one before; outputs stay right",
        outcome="VACUOUS",
        needs="none",
    ),
    "residual_never_quantised": Fault(
        doc="the exact window of a quantised cache never fills, so nothing is quantised",
        outcome="VACUOUS",
        needs="quantise",
    ),
    "middle_level_keeps_one_too_many": Fault(
        doc="a level between the lowest and the full cache keeps the first token that was rejected", needs="levels"
    ),
    "request_released_too_early": Fault(
        doc="when a request ends, another one is let go with it, as if it had ended too", needs="batch"
    ),
    "admitted_with_anothers_entries": Fault(
        doc="a request comes in with entries of the one before it in its full cache", needs="batch"
    ),
    "lowest_level_never_drafts": Fault(
        doc="the lowest level proposes nothing, so that it is not at work", outcome="VACUOUS", needs="levels"
    ),
    "cache_silently_replaced": Fault(doc="an ordinary cache stands in for the compressed one", outcome="VACUOUS"),
}


def find_fault(name: str) -> Fault:
    """The fault of that name. Raises UsageError with the nearest names."""
    if name not in FAULTS:
        raise UsageError(f"unknown fault {name!r}; {suggest(name, list(FAULTS))}")
    return FAULTS[name]
