"""Prompts as a run gets them: one BOS token at most, and a chat template where one is needed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.models import tiny
from vcbench.config.schema import TaskConfig
from vcbench.errors import TaskError
from vcbench.models.gguf_convert import build_tokenizer
from vcbench.models.tokenizer import Tokenizer
from vcbench.runners.setup import make_prompts, make_task
from vcbench.tasks.base import Prompt

BOS = "<|im_start|>"


def tokenizer_with(directory: Path, template: str | None, bos: str | None = BOS) -> Tokenizer:
    directory.mkdir(exist_ok=True)
    build_tokenizer(tiny.TOKENS, tiny.MERGES, tiny.SPECIAL).save(str(directory / "tokenizer.json"))
    config = {"chat_template": template, "bos_token": bos, "eos_token": "<|im_end|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return Tokenizer(directory)


def trace(tmp_path: Path, text: str, form: str = "chat") -> TaskConfig:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"id": "first", "prompt": text}))
    return TaskConfig(name="trace", options={"path": str(path), "format": form}, max_tokens=4)


def prompts(task: TaskConfig, tokenizer: Tokenizer) -> list[Prompt]:
    return make_prompts(task, make_task(task), tokenizer, seed=0, max_context=10_000)


def test_a_template_that_writes_bos_gives_one(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path / "model", "{{ bos_token }}{{ messages[0].content }}")
    (prompt,) = prompts(trace(tmp_path, "the"), tokenizer)
    assert prompt.ids.count(tokenizer.bos_id) == 1
    assert prompt.ids[0] == tokenizer.bos_id
    (raw,) = prompts(trace(tmp_path, f"{BOS}the", "raw"), tokenizer)
    assert raw.ids == prompt.ids, "raw adds none"


@pytest.mark.parametrize(
    ("template", "text", "form"),
    [
        ("{{ bos_token }}{{ messages[0].content }}", f"{BOS}the", "chat"),
        ("{{ bos_token }}{{ bos_token }}{{ messages[0].content }}", "the", "chat"),
        ("{{ messages[0].content }}", f"{BOS}{BOS}the", "raw"),
    ],
)
def test_two_bos_are_refused(tmp_path: Path, template: str, text: str, form: str) -> None:
    tokenizer = tokenizer_with(tmp_path / "model", template)
    with pytest.raises(TaskError, match=r"task 'trace', prompt 'first' begins with two BOS tokens \(id \d+\)"):
        prompts(trace(tmp_path, text, form), tokenizer)


def test_a_tokenizer_without_bos(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path / "model", "{{ messages[0].content }}", bos=None)
    assert tokenizer.bos_id is None
    assert prompts(trace(tmp_path, f"{BOS}{BOS}the"), tokenizer)


def test_no_chat_template(tmp_path: Path) -> None:
    tokenizer = tokenizer_with(tmp_path / "model", None)
    with pytest.raises(TaskError, match=r"line 1: field `prompt` does not fit .* has no chat template .* plain text"):
        prompts(trace(tmp_path, "the"), tokenizer)
    assert prompts(trace(tmp_path, "the", "raw"), tokenizer)
