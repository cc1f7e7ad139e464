"""The text of a prompt: an issue, numbered files between `[start of ...]` and `[end of ...]`, an example of a patch.

The layout is that of SWE-bench's prompts ("style-3"; Jimenez et al., SWE-bench, arXiv 2310.06770, appendix D); the
sentences and the example are this project's. A row's own `text`, where there is one, is used as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_FILE = re.compile(
    r"^\[start of (?P<path>[^\]\n]+)\]\n(?P<lines>.*?)\n?^\[end of (?P=path)\]$", re.DOTALL | re.MULTILINE
)
_MARKER = re.compile(r"\[(?:start|end) of [^\]\n]+\]\n?$")
_OPEN, _CLOSE = "<code>\n", "\n</code>"

_TASK = "A problem was reported in a Python project. The report comes first, then the files that bear on it."
_FORM = """\
Changes to files are written as a patch, a unified diff: for each file its old and its new name, then hunks which
give line numbers, a few unchanged lines around each change, and the lines that go (-) and come (+). For example:"""
_EXAMPLE = '''\
<patch>
--- a/shapes/area.py
+++ b/shapes/area.py
@@ -1,8 +1,11 @@
 import math
 
 
 def circle(radius):
-    return math.pi * radius
+    """Area of a circle."""
+    if radius < 0:
+        raise ValueError("a radius is not negative")
+    return math.pi * radius**2
 
 
 def square(side):
</patch>'''
_WISH = """\
Write one patch that solves the reported problem and that `git apply` takes in the project's directory. Answer with
the patch alone, in the form shown above.
The patch:
"""


def build_text(problem: str, files: Mapping[str, str]) -> str:
    """The prompt for a problem. `files`: path to content, in the order in which they are shown."""
    code = "\n".join(f"[start of {path}]\n{number_lines(content)}\n[end of {path}]" for path, content in files.items())
    parts = (_TASK, f"<issue>\n{problem}\n</issue>\n", f"{_OPEN}{code}{_CLOSE}\n", _FORM, f"{_EXAMPLE}\n", _WISH)
    return "\n".join(parts)


def number_lines(content: str) -> str:
    """Each line after its number, from 1; a final newline shows as a last, empty line."""
    return "\n".join(f"{number} {line}" for number, line in enumerate(content.split("\n"), start=1))


def split_code(text: str) -> tuple[str, str, str]:
    """What stands before, in and after the code section; a text without one is all `before`."""
    start = text.find(f"{_OPEN}[start of ")
    end = text.rfind(_CLOSE)
    if start < 0 or end < start:
        return text, "", ""
    start += len(_OPEN)
    return text[:start], text[start : end + 1], text[end + 1 :]


def shown_files(text: str) -> dict[str, str] | None:
    """The files of a prompt's code section: path to content. None where it has none, or their lines are not numbered.

    The inverse of `build_text`, and of SWE-bench's own layout.
    """
    files: dict[str, str] = {}
    for match in _FILE.finditer(split_code(text)[1]):
        lines = match["lines"].split("\n")
        stripped = [line.removeprefix(f"{number} ") for number, line in enumerate(lines, start=1)]
        if any(len(line) == len(plain) for line, plain in zip(lines, stripped, strict=True)):
            return None
        files[match["path"]] = "\n".join(stripped)
    return files or None


def is_marker(line: str) -> bool:
    """Whether the line begins or ends a file."""
    return _MARKER.match(line) is not None
