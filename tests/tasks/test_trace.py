"""Prompts from a file: every form of request and response, and every fault named with file, line and field."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tasks.words import WordTokenizer
from vcbench.errors import TaskError
from vcbench.tasks.base import Prompt
from vcbench.tasks.trace import Options, TraceTask


def load(path: Path, *rows: object, limit: int | None = None, form: str = "chat", vocab_size: int = 99) -> list[Prompt]:
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"\n".join(lines))
    options = Options(path=str(path), format=form)  # type: ignore[arg-type]
    return TraceTask(options).prompts(WordTokenizer(vocab_size), limit=limit, seed=0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "prompts.jsonl"


def test_three_forms(path: Path) -> None:
    tokenizer = WordTokenizer()
    rows = [
        {"id": "a", "prompt": "one two", "target": [1], "source": "s", "meta": {"n": 2}},
        b"",
        {"id": 7, "messages": [{"role": "user", "content": "one"}], "tools": [{"content": "tool"}]},
        {"id": "c", "prompt_ids": [5, 0]},
    ]
    first, second, third = load(path, *rows)
    assert first.ids == tuple(tokenizer.chat([{"role": "user", "content": "one two"}]))
    assert first.target == [1]
    assert first.meta == {"source": "s", "n": 2, "line": 1}
    assert (second.id, second.meta) == ("7", {"line": 3})
    assert len(second.ids) == len(tokenizer.chat([{"content": "tool"}, {"role": "user", "content": "one"}]))
    assert third.ids == (5, 0)
    assert len({prompt.document_sha256 for prompt in (first, second, third)}) == 3


def test_raw_adds_nothing(path: Path) -> None:
    assert load(path, {"id": "a", "prompt": "x"}, form="raw")[0].ids == (2,)
    assert load(path, {"id": "a", "prompt": " "}, form="raw")[0].ids == (2,)


def test_identical_prompts_stay_separate(path: Path) -> None:
    first, second = load(path, {"id": "a", "prompt": "x"}, {"id": "b", "prompt": "x"})
    assert first.ids == second.ids
    assert first.sha256 == second.sha256


def test_a_byte_order_mark_and_windows_line_ends(path: Path) -> None:
    assert len(load(path, b'\xef\xbb\xbf{"id":"a","prompt":"x"}\r', b'{"id":"b","prompt":"y"}\r', b"")) == 2


GOOD = {"id": "a", "prompt": "x"}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (b"{", "not a line of JSON"),
        (b"\xff", "not a line of JSON"),
        (b'{"id":"b","prompt":"x","n":NaN}', "bare NaN"),
        (b"[1]", "must be a JSON object, not list"),
        ({"id": None, "prompt": "x"}, "field `id` must be a text or a whole number, not null"),
        ({"id": True, "prompt": "x"}, "field `id`"),
        ({"id": "", "prompt": "x"}, "field `id`"),
        ({"id": "b", "promt": "x"}, "found none (did you mean 'prompt'?)"),
        ({"id": "b"}, "found none (the line has no other field)"),
        ({"id": "b", "prompt": "x", "prompt_ids": [1]}, "found `prompt` and `prompt_ids`"),
        ({"id": "b", "prompt": 3}, "field `prompt` must be a text or token ids, not int"),
        ({"id": "b", "prompt": ""}, "field `prompt` is empty"),
        ({"id": "b", "messages": []}, "field `messages` is empty"),
        ({"id": "b", "messages": {}}, "field `messages` must be a list, not dict"),
        ({"id": "b", "messages": [{"content": "x"}]}, "field `messages[0]` must be an object with a `role`"),
        ({"id": "b", "messages": [{"role": "user"}]}, "field `messages[0].content` must be a text"),
        ({"id": "b", "messages": [{"role": "nobody", "content": ""}]}, "chat template: no such role"),
        ({"id": "b", "prompt_ids": []}, "field `prompt_ids` is empty"),
        ({"id": "b", "prompt_ids": [1.0]}, "field `prompt_ids` must be a list of whole numbers"),
        ({"id": "b", "prompt_ids": [True]}, "field `prompt_ids` must be a list of whole numbers"),
        ({"id": "b", "prompt_ids": [1, 99]}, "token id 99 at position 1 is outside the vocabulary (0 to 98)"),
        ({"id": "b", "prompt_ids": [-1]}, "token id -1 at position 0"),
        ({"id": "b", "prompt": "a\ud83d"}, "field `prompt` holds a lone surrogate"),
        ({"id": "b\ud83d", "prompt": "a"}, "field `id` holds a lone surrogate"),
        ({"id": "b", "messages": [{"role": "user", "content": "\udc00"}]}, "field `messages` holds a lone surrogate"),
        ({"id": "b", "prompt": "a", "tools": "x"}, "field `tools` must be a list"),
        ({"id": "b", "prompt": "a", "meta": []}, "field `meta` must be an object"),
        ({"id": "a", "prompt": "other"}, "id 'a' is that of line 1 already"),
    ],
)
def test_faults_name_file_line_and_field(path: Path, row: object, says: str) -> None:
    with pytest.raises(TaskError) as caught:
        load(path, GOOD, row)
    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert says in str(caught.value)
    str(caught.value).encode("utf-8")


def test_faults_beyond_the_limit_are_found(path: Path) -> None:
    assert len(load(path, GOOD, {"id": "b", "prompt": "y"}, limit=1)) == 1
    with pytest.raises(TaskError, match="line 2"):
        load(path, GOOD, GOOD, limit=1)


def test_no_vocabulary_size_known(path: Path) -> None:
    path.write_text('{"id": "a", "prompt_ids": [123456]}')
    tokenizer = WordTokenizer()
    del tokenizer.vocab_size
    assert TraceTask(Options(path=str(path))).prompts(tokenizer, limit=None, seed=0)[0].ids == (123456,)


def test_files_that_give_nothing(path: Path, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="cannot be read: No such file"):
        TraceTask(Options(path=str(path))).prompts(WordTokenizer(), limit=None, seed=0)
    with pytest.raises(TaskError, match="cannot be read"):
        TraceTask(Options(path=str(tmp_path))).prompts(WordTokenizer(), limit=None, seed=0)
    with pytest.raises(TaskError, match="has no prompts"):
        load(path, b"\n\n")


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"id": "a", "prompt_ids": [7], "prompt_ids": [8]}\n')
    with pytest.raises(TaskError, match="line 1: not a line of JSON \\(key 'prompt_ids' is given twice\\)"):
        TraceTask(Options(path=str(path))).prompts(WordTokenizer(), limit=None, seed=0)
