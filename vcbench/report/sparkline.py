"""Numbers as a row of bars of one character each, eight heights or, without Unicode, ten signs."""

from __future__ import annotations

import math
from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
SIGNS = "_.:-=+*#%@"
UNKNOWN = "?"


def sparkline(values: Sequence[float | None], *, width: int, ascii_only: bool = False, top: float | None = None) -> str:
    """The values scaled to the largest of them, or to `top`.

    More than `width` of them are taken together by their largest. The lowest bar is kept for zero; what is unknown
    shows as `?`, and so does a group with an unknown value.
    """
    size = max(1, math.ceil(len(values) / width))
    groups = [values[start : start + size] for start in range(0, len(values), size)]
    peaks = [
        None if any(value is None for value in group) else max(v for v in group if v is not None) for group in groups
    ]
    most = max((peak for peak in peaks if peak is not None), default=0.0) if top is None else top
    return "".join(UNKNOWN if peak is None else _bar(peak / most if most > 0 else 0.0, ascii_only) for peak in peaks)


def rounds_bar(accepted: Sequence[int], drafted: Sequence[int], *, ascii_only: bool = False) -> str:
    """One bar a round: the share of its draft that was accepted; a space where nothing was drafted."""
    pairs = zip(accepted, drafted, strict=False)
    return "".join(_bar(a / d, ascii_only) if d else " " for a, d in pairs)


def _bar(share: float, ascii_only: bool) -> str:
    """Lowest only for 0, highest only for 1."""
    bars = SIGNS if ascii_only else BARS
    if share <= 0:
        return bars[0]
    return bars[min(len(bars) - 1, max(1, math.floor(share * (len(bars) - 1))))]
