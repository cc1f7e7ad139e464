"""The standard library's texts as prompts: whole lines, the wanted length, the template's end intact."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tasks.words import WordTokenizer
from vcbench import registry
from vcbench.errors import TaskError
from vcbench.tasks import stdlib
from vcbench.tasks.base import Prompt, checked
from vcbench.tasks.stdlib import ENTRIES, Options, StdlibTask, most_lines, read_document


def test_registered_with_a_summary() -> None:
    assert registry.lookup("task", "stdlib") is StdlibTask
    assert StdlibTask.summary


def test_four_prompts_of_diverse_kind_and_length() -> None:
    tokenizer = WordTokenizer()
    prompts = StdlibTask(Options()).prompts(tokenizer, limit=4, seed=0)
    assert [prompt.meta["kind"] for prompt in prompts] == ["code", "prose", "code", "prose"]
    for prompt, wanted in zip(prompts, (1600, 2000, 3500, 5500), strict=True):
        assert wanted - 120 <= len(prompt.ids) <= wanted
    assert prompts == StdlibTask(Options()).prompts(tokenizer, limit=4, seed=1), "the seed draws nothing by itself"


def test_all_of_the_table() -> None:
    assert len(ENTRIES) >= 8
    assert len({entry.id for entry in ENTRIES}) == len(ENTRIES)
    prompts = StdlibTask(Options()).prompts(WordTokenizer(), limit=None, seed=0)
    assert len(prompts) >= 8
    assert {prompt.meta["kind"] for prompt in prompts} == {"code", "prose"}


def test_whole_lines_and_the_end_of_the_template() -> None:
    tokenizer = WordTokenizer()
    for prompt, entry in zip(StdlibTask(Options()).prompts(tokenizer, limit=4, seed=0), ENTRIES, strict=False):
        text = tokenizer.decode(prompt.ids)
        assert text.startswith("<turn>user")
        assert text.endswith(f"{entry.instruction}<answer>")
        document = read_document(entry)
        shown = "".join(document.splitlines(keepends=True)[: prompt.meta["lines"]]).rstrip("\n")
        assert f"\n{shown}\n" in text
        assert "the beginning of" in text
        assert prompt.document_sha256 == hashlib.sha256(document.encode()).hexdigest()


def test_a_document_that_fits_is_shown_whole() -> None:
    tokenizer = WordTokenizer()
    prompt = stdlib.build(ENTRIES[0], tokenizer, 100_000)
    assert prompt.meta["lines"] == prompt.meta["document_lines"]
    assert "the beginning of" not in tokenizer.decode(prompt.ids)


@pytest.mark.parametrize("bound", [100, 300, 700])
def test_small_contexts(bound: int) -> None:
    options = Options(min_context_tokens=10, max_context_tokens=bound)
    prompts = StdlibTask(options).prompts(WordTokenizer(), limit=4, seed=0)
    assert len(prompts) == 4
    assert all(10 <= len(prompt.ids) <= bound for prompt in prompts)


def test_kinds_order_and_minimum() -> None:
    tokenizer = WordTokenizer()
    prose = StdlibTask(Options(kinds=("prose",))).prompts(tokenizer, limit=3, seed=0)
    assert {prompt.meta["kind"] for prompt in prose} == {"prose"}
    shuffled = StdlibTask(Options(shuffle=True)).prompts(tokenizer, limit=None, seed=5)
    assert shuffled == StdlibTask(Options(shuffle=True)).prompts(tokenizer, limit=None, seed=5)
    assert [p.id for p in shuffled] != [p.id for p in StdlibTask(Options()).prompts(tokenizer, limit=None, seed=5)]
    task = StdlibTask(Options(min_context_tokens=5000))
    longer = task.prompts(tokenizer, limit=None, seed=0)
    assert all(len(prompt.ids) >= 5000 for prompt in longer)
    names = [entry.id for entry in stdlib.ENTRIES]
    assert sorted([*(prompt.id for prompt in longer), *(item.id for item in task.excluded)]) == sorted(names)
    assert all("below min_context_tokens 5000" in item.reason for item in task.excluded)
    assert task.excluded


def test_bad_options_and_missing_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="max_context_tokens is below"):
        Options(min_context_tokens=10, max_context_tokens=5)
    with pytest.raises(ValueError, match="kinds"):
        Options(kinds=())
    with pytest.raises(TaskError, match=r"not one line of csv.py fits into 20 tokens"):
        StdlibTask(Options(min_context_tokens=1, max_context_tokens=20)).prompts(WordTokenizer(), limit=1, seed=0)
    with pytest.raises(TaskError, match="has no prompts: all 12 are excluded"):
        StdlibTask(Options(min_context_tokens=10**6, max_context_tokens=10**7)).prompts(
            WordTokenizer(), limit=None, seed=0
        )
    for kind in ("code", "prose"):
        entry = stdlib.Entry("x", kind, "missing.py", 1200, "Explain.")  # type: ignore[arg-type]
        monkeypatch.setattr(stdlib, "ENTRIES", (entry,))
        with pytest.raises(TaskError, match=r"comes without missing.py"):
            StdlibTask(Options()).prompts(WordTokenizer(), limit=1, seed=0)


@given(st.integers(0, 60), st.integers(-5, 70))
def test_bisection(total: int, bound: int) -> None:
    assert most_lines(lambda count: count <= bound, total) == max(0, min(total, bound))


def test_checked() -> None:
    good = Prompt(id="a", ids=(1,), document_sha256="")
    assert checked([good], task="t") == [good]
    with pytest.raises(TaskError, match="prompts 1 and 2 share the id 'a'"):
        checked([good, Prompt(id="a", ids=(2,), document_sha256="")], task="t")
    with pytest.raises(TaskError, match=r"prompt 1 \('a'\): no tokens"):
        checked([Prompt(id="a", ids=(), document_sha256="")], task="t")
