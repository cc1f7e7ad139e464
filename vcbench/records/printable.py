"""Text from records made safe for a terminal: nothing in it moves the cursor, reorders a line or fails to encode."""

from __future__ import annotations

import io
import unicodedata
from typing import IO


def printable(text: str, *, newlines: bool = False) -> str:
    r"""The text with control, format and surrogate characters spelled out as `\x1b`, `\u202e`, `\ud83d`.

    With `newlines`, line ends and tabs stay as they are.
    """
    return "".join(char if _is_safe(char, newlines) else char.encode("unicode_escape").decode() for char in text)


def _is_safe(char: str, newlines: bool) -> bool:
    if newlines and char in "\n\t":
        return True
    # Cc control, Cf format (bidirectional overrides among them), Cs surrogate, Zl and Zp line and paragraph separators.
    return unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp")


def never_fail(stream: IO[str]) -> None:
    """Makes a stream spell out what its encoding lacks, instead of raising."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
