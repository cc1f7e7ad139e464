"""Foreign text made safe for where it is shown: a terminal, Markdown, a spreadsheet. Everything that prints goes here.

Foreign is whatever vcbench has not written itself: names of models, tasks, requests and cells, errors, answers.
"""

from __future__ import annotations

import io
import unicodedata
from typing import IO

MARKUP = {ord(char): f"&#{ord(char)};" for char in "&\\`*_[]<>|#@~$"}
FORMULA = ("=", "+", "-", "@")
"""With which a spreadsheet takes a cell for a formula."""


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


def markdown_text(text: str) -> str:
    """One line of Markdown in which nothing is markup."""
    return printable(text).translate(MARKUP)


def spreadsheet_text(text: str) -> str:
    """Text of a cell that no spreadsheet takes for a formula."""
    safe = printable(text)
    return f"'{safe}" if safe.lstrip().startswith(FORMULA) else safe


def never_fail(stream: IO[str]) -> None:
    """Makes a stream spell out what its encoding lacks, instead of raising."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
