"""The text that calibrations are fitted on: files that the user names, or Python's own prose and code.

The default holds none of the documents that the task `stdlib` asks about, so that no method is fitted on its test.
"""

from __future__ import annotations

import hashlib
import importlib
import sysconfig
import tokenize
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vcbench.errors import CalibrationError

DEFAULT = "python-stdlib"
LEAST_TOKENS = 32
"""Of a piece: with fewer, the first tokens that fits leave out are a good part of it."""
CODE = (
    "argparse.py", "ast.py", "bdb.py", "calendar.py", "cmd.py", "codecs.py", "configparser.py", "contextlib.py",
    "copy.py", "difflib.py", "doctest.py", "enum.py", "ftplib.py", "gettext.py", "gzip.py", "imaplib.py", "inspect.py",
    "ipaddress.py", "locale.py", "mailbox.py", "optparse.py", "pathlib.py", "pickle.py", "platform.py", "plistlib.py",
    "poplib.py", "pprint.py", "queue.py", "random.py", "sched.py", "selectors.py", "shutil.py", "smtplib.py",
    "socket.py", "statistics.py", "subprocess.py", "tarfile.py", "tempfile.py", "threading.py", "trace.py",
    "traceback.py", "typing.py", "uuid.py", "zipfile.py",
)  # fmt: skip
"""Modules of the standard library; those that a Python comes without are passed over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Token ids of pieces of text, all equally long, and what they are: a JSON object with source and hash."""

    ids: tuple[tuple[int, ...], ...]
    data: dict[str, Any]


def sample(encode: Callable[[str], Sequence[int]], files: Sequence[Path], count: int, tokens: int) -> Samples:
    """`count` pieces of `tokens` tokens each, from the files in order or from the default text.

    Documents take turns, so that few pieces still see many of them. Raises CalibrationError where the text is
    unreadable or too short.
    """
    if count < 1 or tokens < LEAST_TOKENS:
        raise CalibrationError(
            f"{count} samples of {tokens} tokens calibrate nothing; give at least 1 of at least {LEAST_TOKENS}"
        )
    documents = [_read(path) for path in files] if files else default_documents(count)
    pieces = _pieces([list(encode(document)) for document in documents], count, tokens)
    if len(pieces) < count:
        where = "the files" if files else "the standard library of this Python"
        raise CalibrationError(
            f"{where} hold only {len(pieces)} pieces of {tokens} tokens, and {count} are wanted; name more text with "
            "--text, or lower --samples or --sample-tokens"
        )
    digest = hashlib.sha256(repr(pieces).encode()).hexdigest()
    source = [path.name for path in files] if files else DEFAULT
    return Samples(
        ids=tuple(map(tuple, pieces)),
        data={"source": source, "sha256": digest, "samples": count, "sample_tokens": tokens},
    )


def default_documents(count: int) -> list[str]:
    """Topics of Python's reference, longest first and without those of `stdlib` prompts, alternating with modules."""
    from vcbench.tasks.stdlib import ENTRIES

    taken = {entry.document for entry in ENTRIES}
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
    except ImportError:
        topics = {}
    prose = sorted((text for name, text in topics.items() if name not in taken), key=len, reverse=True)[:count]
    code = [text for name in CODE if name not in taken and (text := _module(name)) is not None]
    return [text for pair in zip(prose, code, strict=False) for text in pair] or [*prose, *code]


def _module(name: str) -> str | None:
    try:
        with tokenize.open(Path(sysconfig.get_paths()["stdlib"]) / name) as source:
            return source.read()
    except (OSError, SyntaxError):
        return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CalibrationError(f"cannot read {path}: {error}; give text files in UTF-8") from error


def _pieces(documents: Sequence[list[int]], count: int, tokens: int) -> list[list[int]]:
    """Whole pieces, the first of every document before the second of any."""
    longest = max(map(len, documents), default=0)
    return [
        document[start : start + tokens]
        for start in range(0, longest, tokens)
        for document in documents
        if len(document) >= start + tokens
    ][:count]
