"""Theory-of-mind tracking of LongProc: the steps of a trace compared with the right ones, in order.

Source: Ye et al., LongProc, arXiv 2501.05414.
"""

from __future__ import annotations

import re
import string

STEP = re.compile(r"-\s*Step \d+:")
FIRST = "- Step 0:"
FILLERS = re.compile(r"\b(?:a|an|the|on|in|at|step|thinks?|believes?|is|are|of|location|knows?|belief)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation + "’")


def steps(trace: str) -> list[str]:
    """What the steps of a trace say, lower case, without punctuation and filler words.

    Only the text from the last step 0 on counts, so that a trial before the answer does no harm.
    """
    lines = [line.strip() for line in trace[max(0, trace.rfind(FIRST)) :].splitlines()]
    return [_said(line) for line in lines if STEP.match(line)]


def agreeing_share(answer: str, right: str) -> float:
    """The share of the right steps that the answer has in order, up to its first mistake."""
    given, wanted = steps(answer), steps(right)
    agreeing = next((i for i, (a, b) in enumerate(zip(given, wanted, strict=False)) if a != b), None)
    return (min(len(given), len(wanted)) if agreeing is None else agreeing) / len(wanted)


def _said(line: str) -> str:
    return " ".join(FILLERS.sub(" ", line.removeprefix("-").lower().translate(PUNCTUATION)).split())
