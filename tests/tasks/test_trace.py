"""Prompts from a file: every form of request and response, and every fault named with file, line and field."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tasks.words import WordTokenizer
from vcbench import registry
from vcbench.config.load import load_config
from vcbench.errors import ConfigError, TaskError
from vcbench.tasks.base import Answer, Exclusion, Prompt, Question
from vcbench.tasks.trace import Options, TraceTask, similarity


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
        {"id": 7, "messages": [{"role": "user", "content": "one"}]},
        {"id": "c", "prompt_ids": [5, 0]},
    ]
    first, second, third = load(path, *rows)
    assert first.ids == tuple(tokenizer.chat([{"role": "user", "content": "one two"}]))
    assert first.target == [1]
    assert first.meta == {"source": "s", "n": 2, "line": 1}
    assert (second.id, second.meta) == ("7", {"line": 3})
    assert len(second.ids) == len(tokenizer.chat([{"role": "user", "content": "one"}]))
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
USER = {"role": "user", "content": "one"}


def calling(arguments: object) -> dict[str, object]:
    call = {"id": "call_9f", "type": "function", "function": {"name": "find", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


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
        ({"id": "b", "prompt": "a", "tools": "x"}, "field `tools` must be a list of objects"),
        (
            {"id": "b", "prompt": "a", "tools": [{"type": "web_search"}]},
            "field `tools[0]` must be an object with a `function`",
        ),
        (
            {"id": "b", "prompt": "a", "tools": [{"function": {"name": "f", "parameters": "x"}}]},
            "field `tools[0].function.parameters` must be a JSON schema",
        ),
        (
            {"id": "b", "prompt": "a", "tools": [{"function": {"name": "f", "parameters": {"properties": [1]}}}]},
            "field `tools[0].function.parameters` must be a JSON schema",
        ),
        ({"id": "b", "prompt": "a", "functions": [{"name": "f"}]}, "field `functions` is the old form; write `tools`"),
        ({"id": "b", "body": [1]}, "field `body` must be an object, not list"),
        (
            {"id": "b", "body": {"prompt": "x"}, "messages": []},
            "`messages` stands beside `body`, which holds the request",
        ),
        ({"id": "b", "body": {"prompt": "x"}, "request": {}}, "`request` stands beside `body`"),
        ({"id": "b", "request": {"promt": "x"}}, "`request`: exactly one of"),
        ({"id": "b", "prompt": ["x", "y"]}, "field `prompt` must be a text or token ids, not list"),
        ({"id": "b", "messages": [{"role": "assistant", "content": "x"}]}, "there is nothing to ask"),
        ({"id": "b", "messages": [USER, {"role": "assistant", "tool_calls": {"x": 1}}]}, "tool_calls` must be a list"),
        (
            {"id": "b", "messages": [USER, calling("{"), USER]},
            "messages[1].tool_calls[0].function.arguments` is not JSON",
        ),
        ({"id": "b", "messages": [USER, calling("[1]"), USER]}, "function.arguments` must be an object"),
        (
            {"id": "b", "messages": [USER, {"role": "assistant", "content": "x"}], "response": "y"},
            "given twice: `response`",
        ),
        ({"id": "b", "prompt": "x", "target": "y", "response": "y"}, "given twice: `target` and `response`"),
        ({"id": "b", "prompt": "x", "response": 3}, "field `response` must be a text or a completion"),
        ({"id": "b", "prompt": "x", "response": {"choices": []}}, "field `response` must be a text or a completion"),
        (
            {"id": "b", "prompt": "x", "response": {"choices": [{"message": {"content": 3}}]}},
            "message.content` must be",
        ),
        ({"id": "b", "prompt": "a", "meta": []}, "field `meta` must be an object"),
    ],
)
def test_a_faulty_line_is_excluded_with_file_line_and_field(path: Path, row: object, says: str) -> None:
    """The others are asked; where there is no other, the reason is the run's error."""
    load(path, GOOD, row)
    task = TraceTask(Options(path=str(path)))
    (made,) = task.prompts(WordTokenizer(99), limit=None, seed=0)
    (excluded,) = task.excluded

    assert made.id == "a"
    assert excluded.reason.startswith((f"{path}, line 2: ", f"{path}, line 2, `request`: "))
    assert says in excluded.reason
    excluded.reason.encode("utf-8")
    with pytest.raises(TaskError) as caught:
        load(path, {}, row)
    assert "has no prompts: all 2 are excluded; the first, line-1: " in str(caught.value)
    assert f"{path}, line 1: exactly one of" in str(caught.value)


def test_lines_beyond_the_limit_are_not_read(path: Path) -> None:
    """A log may be long, and its end damaged."""
    for beyond in (GOOD, b"{", {"id": "b", "prompt": "y"}):
        task = TraceTask(Options(path=str(path)))
        load(path, GOOD, beyond, limit=1)
        assert len(task.prompts(WordTokenizer(99), limit=1, seed=0)) == 1
        assert task.excluded == []
    with pytest.raises(TaskError, match="line 2: id 'a' is that of line 1 already"):
        load(path, GOOD, GOOD)


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


def test_names_of_lines(path: Path) -> None:
    rows = [{"prompt": "x"}, b"", {"custom_id": "c", "id": "own", "prompt": "x"}, {"custom_id": "c", "prompt": "x"}]
    assert [prompt.id for prompt in load(path, *rows, {"request_id": 9, "prompt": "x"})] == ["line-1", "own", "c", "9"]
    with pytest.raises(TaskError, match="line 2: id 'line-1' is that of line 1 already"):
        load(path, {"prompt": "x"}, {"id": "line-1", "prompt": "x"})
    with pytest.raises(TaskError, match="line 2: custom_id 'c' is that of line 1 already"):
        load(path, {"custom_id": "c", "prompt": "x"}, {"custom_id": "c", "prompt": "y"})


@pytest.mark.parametrize("name", ["body", "request"])
def test_bodies_of_requests(path: Path, name: str) -> None:
    tokenizer = WordTokenizer()
    body = {"model": "m", "messages": [USER], "max_tokens": 7, "temperature": 0.5}
    bare, wrapped = load(path, {"id": "a", **body}, {"id": "b", "url": "/v1/chat/completions", name: body, "user": "u"})
    assert bare.ids == wrapped.ids == tuple(tokenizer.chat([USER]))
    assert bare.meta == {"model": "m", "max_tokens": 7, "temperature": 0.5, "line": 1}
    settings = {"model": "m", "max_tokens": 7, "temperature": 0.5}
    assert wrapped.meta == {"url": "/v1/chat/completions", "user": "u", "request": settings, "line": 2}
    (ids,) = load(path, {"id": "c", name: {"prompt": [5, 0]}})
    assert ids.ids == (5, 0)


@pytest.mark.parametrize(
    ("response", "target"),
    [
        ("so it is", "so it is"),
        ({"choices": [{"message": {"role": "assistant", "content": "so"}}, {"message": {"content": "other"}}]}, "so"),
        ({"status_code": 200, "body": {"choices": [{"text": "so"}]}}, "so"),
        (
            {"choices": [{"message": {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}}]},
            "a\nb",
        ),
        (
            {"choices": [{"message": calling('{"x": 1}')}]},
            {"content": "", "tool_calls": [{"name": "find", "arguments": {"x": 1}}]},
        ),
        ({"status_code": 429, "body": {"error": {"message": "too many requests"}}}, None),
        (None, None),
    ],
)
def test_recorded_responses(path: Path, response: object, target: object) -> None:
    (prompt,) = load(path, {"id": "a", "prompt": "x", "response": response})
    assert prompt.target == target


def test_an_answer_at_the_end_of_the_messages(path: Path) -> None:
    turns = [USER, {"role": "assistant", "content": "two"}, USER]
    ended, open_end = load(
        path,
        {"id": "a", "messages": [*turns, {"role": "assistant", "content": "three"}]},
        {"id": "b", "messages": turns},
    )
    assert ended.target == "three"
    assert open_end.target is None
    assert ended.ids == open_end.ids, "the recorded answer is no part of the prompt"


def test_text_parts(path: Path) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "one"}]}]
    assert load(path, {"id": "a", "messages": parts})[0].ids
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(TaskError, match=r"line 1: field `messages\[0\].content\[0\]` must be a text part"):
        load(path, {"id": "a", "messages": image})


def test_prompts_over_the_limit_are_counted(path: Path) -> None:
    path.write_text('{"id": "a", "prompt_ids": [1, 2, 3]}\n{"id": "b", "prompt_ids": [1, 2]}\n')
    task = TraceTask(Options(path=str(path), max_context_tokens=2))
    assert [prompt.id for prompt in task.prompts(WordTokenizer(), limit=None, seed=0)] == ["b"]
    assert task.excluded == [Exclusion(id="a", reason="3 tokens exceed the limit of 2")]


TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"properties": {"x": {"type": "integer"}}}}}]
CONVERSATION = [USER, calling('{"x": 1}'), {"role": "tool", "tool_call_id": "call_9f", "content": "found 7"}]


class HermesTokenizer(WordTokenizer):
    """A template that shows functions, calls and results."""

    has_template = True

    def render(self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()) -> str:
        text = "".join(f"<tool>{json.dumps(tool)}" for tool in tools)
        for message in messages:
            text += f"<{message['role']} {message.get('tool_call_id', '')}>{message['content']}"
            for call in message.get("tool_calls", []):
                text += f"<tool_call>\n{json.dumps(call['function'])}\n</tool_call>{call['id']}"
        return text

    def chat(self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        return self.encode(self.render(messages, tools=tools))


@pytest.mark.parametrize(("tokenizer", "way"), [(HermesTokenizer(), "chat template"), (WordTokenizer(), "instruction")])
def test_functions_are_never_dropped(path: Path, tokenizer: WordTokenizer, way: str) -> None:
    path.write_text(json.dumps({"id": "a", "messages": CONVERSATION, "tools": TOOLS}))
    (prompt,) = TraceTask(Options(path=str(path))).prompts(tokenizer, limit=None, seed=0)
    text = tokenizer.decode(prompt.ids)
    assert '"name": "find", "parameters"' in text
    assert '<tool_call>\n{"name": "find", "arguments": {"x": 1}}\n</tool_call>' in text
    assert "found 7" in text
    assert (prompt.meta["functions"]["tools_by"], prompt.meta["functions"]["format"]) == (way, "hermes")
    if way == "chat template":
        assert "</tool_call>call00000<tool call00000>found 7" in text, "ids of our own, the same in call and result"
    else:
        assert text.endswith("<turn>user<tool_response>\nfound 7\n</tool_response><answer>")


def scored(target: object, text: str, reference: str | None = None, **meta: object) -> Mapping[str, object]:
    question = Question(id="a", target=target, meta=meta)
    full = None if reference is None else Answer(text=reference, token_ids=[], finish_reason="stop")
    return TraceTask(Options()).score(question, Answer(text=text, token_ids=[], finish_reason="stop"), full)


def test_agreement_with_the_recorded_response() -> None:
    assert scored("one two three four", " one two three four\n") == {
        "exact_response": True,
        "response_similarity": 1.0,
        "exact_calls": None,
        "same_as_full": None,
    }
    assert scored("one two three four", "one two four three")["response_similarity"] == pytest.approx(0.75)
    assert scored("one two three four", "one two")["response_similarity"] == pytest.approx(2 / 3)
    assert scored("one", "two")["response_similarity"] == 0.0
    assert scored("one", "one!")["exact_response"] is False
    assert (
        scored(None, "x")
        == scored([1], "x")
        == {
            "exact_response": None,
            "response_similarity": None,
            "exact_calls": None,
            "same_as_full": None,
        }
    )
    assert scored("a", "x", "x")["same_as_full"] is True
    assert scored("a", "x", "x ")["same_as_full"] is False


def test_recorded_calls() -> None:
    calls = [{"name": "find", "arguments": {"x": 1, "y": "b"}}, {"name": "find", "arguments": {"x": 2}}]
    target, functions = {"content": "", "tool_calls": calls}, {"format": "hermes", "signatures": {}}

    def same(*given: object) -> object:
        text = "".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in given)
        return scored(target, text, functions=functions)["exact_calls"]

    assert same(*calls) is True
    assert same(*reversed(calls)) is True
    assert same({"name": "find", "arguments": {"y": "b", "x": 1}}, calls[1]) is True
    assert same(calls[0]) is False
    assert same(*calls, calls[0]) is False
    assert same(calls[0], {"name": "find", "arguments": {"x": 3}}) is False
    assert same() is False
    assert same(*calls, {"name": "find"}) is False, "a broken call beside the right ones"
    assert scored(target, "")["exact_calls"] is None, "no functions were offered"
    assert scored(target, "", functions=functions)["exact_response"] is None


@given(st.lists(st.sampled_from("abc"), max_size=12), st.lists(st.sampled_from("abc"), max_size=12))
def test_similarity(one: list[str], other: list[str]) -> None:
    value = similarity(" ".join(one), " ".join(other))
    assert 0 <= value <= 1
    assert (value == 1) == (one == other)


def test_the_sample(path: Path) -> None:
    task, tokenizer = TraceTask(Options()), WordTokenizer()
    prompts = task.prompts(tokenizer, limit=None, seed=0)
    assert len(prompts) == 8
    kinds = [type(prompt.target).__name__ for prompt in prompts]
    assert (kinds.count("str"), kinds.count("dict"), kinds.count("NoneType")) == (5, 2, 1)
    for prompt in prompts:
        assert prompt.meta["synthetic"] is True
        target, meta = json.loads(json.dumps([prompt.target, dict(prompt.meta)]))
        if isinstance(target, str):
            assert scored(target, target, **meta)["response_similarity"] == 1.0
            assert target not in tokenizer.decode(prompt.ids)
        if isinstance(target, dict):
            written = "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in target["tool_calls"])
            assert scored(target, written, **meta)["exact_calls"] is True


def test_the_older_name() -> None:
    """Configurations that say `jsonl` go on working; no new class may take the name, and no list shows it."""
    assert registry.lookup("task", "jsonl") is registry.lookup("task", "trace") is TraceTask
    assert "jsonl" not in registry.names("task")
    with pytest.raises(ValueError, match="'jsonl' is the older name of 'trace'"):
        registry.register("task", "jsonl")


def test_a_configuration_with_the_older_name(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(
        "name: old\nmodel: {id: tiny}\ntasks: [{name: jsonl, path: prompts.jsonl, format: raw}]\ncells: [{arm: full}]\n"
    )
    (task,) = load_config(file).tasks
    assert (task.name, task.options["path"], task.options["format"]) == ("jsonl", "prompts.jsonl", "raw")
    file.write_text(file.read_text().replace("jsonl, path", "jsonlines, path"))
    with pytest.raises(ConfigError, match="unknown task 'jsonlines'") as caught:
        load_config(file)
    assert "'jsonl'" not in str(caught.value)
