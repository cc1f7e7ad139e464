"""Samples are whole pieces of many documents, and never of those that prompts ask about."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from vcbench.calibration.text import CODE, DEFAULT, default_documents, sample
from vcbench.errors import CalibrationError
from vcbench.tasks.stdlib import ENTRIES, read_document


def words(text: str) -> Sequence[int]:
    """A token for each word, the same for equal words."""
    return [sum(map(ord, word)) for word in text.split()]


def test_documents_take_turns(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.txt", "b.txt")]
    files[0].write_text("a " * 40)
    files[1].write_text("b " * 100)
    found = sample(words, files, 4, 32)

    assert [piece[0] for piece in found.ids] == [97, 98, 98, 98]
    assert {len(piece) for piece in found.ids} == {32}
    assert found.data["source"] == ["a.txt", "b.txt"]
    assert (found.data["samples"], found.data["sample_tokens"]) == (4, 32)


def test_the_hash_is_of_the_pieces(tmp_path: Path) -> None:
    for name, text in (("a.txt", "x y z z"), ("b.txt", "x y z w"), ("c.txt", "x y q q")):
        (tmp_path / name).write_text("x " * 29 + text)
    hashes = [sample(words, [tmp_path / f"{name}.txt"], 1, 32).data["sha256"] for name in "abc"]

    assert hashes[0] == hashes[1] != hashes[2]


def test_the_default_is_the_standard_librarys_prose_and_code() -> None:
    found = sample(words, [], 16, 500)

    assert len(found.ids) == 16
    assert len(set(found.ids)) == 16
    assert found.data["source"] == DEFAULT
    assert found == sample(words, [], 16, 500)


def test_no_prompt_is_fitted_on() -> None:
    asked = {read_document(entry) for entry in ENTRIES}
    assert not asked.intersection(default_documents(400))
    assert not {entry.document for entry in ENTRIES}.intersection(CODE)


def test_too_little_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a " * 63)
    with pytest.raises(CalibrationError, match="1 pieces of 32 tokens, and 2 are wanted; name more text with --text"):
        sample(words, [tmp_path / "a.txt"], 2, 32)


def test_unreadable_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(CalibrationError, match="give text files in UTF-8"):
        sample(words, [tmp_path / "a.txt"], 1, 32)
    with pytest.raises(CalibrationError, match=r"cannot read .*none\.txt"):
        sample(words, [tmp_path / "none.txt"], 1, 32)


@pytest.mark.parametrize(("count", "tokens"), [(0, 32), (1, 31)])
def test_nothing_to_fit_on_is_refused(count: int, tokens: int) -> None:
    with pytest.raises(CalibrationError, match="calibrate nothing"):
        sample(words, [], count, tokens)
