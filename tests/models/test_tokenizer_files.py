"""What the files of a tokenizer say is read as transformers reads it: it is the referee for every case here."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.models import tiny
from vcbench.errors import ModelError, RequestError
from vcbench.models.gguf_convert import build_tokenizer
from vcbench.models.tokenizer import Tokenizer

TEXTS = (
    "the é 12",
    "<|spare|> the <|spare|>the  <|spare|>  <|tool|>\n<|eot|> the <pad><|image|><x> THE",
    "the " * 400,
    "a<|spare|>b <|im_end|> <|im_start|>user\n<|eot|>",
    "un<x>der <x>e <|TOOL|> <|tool|>s",
    "",
    " ",
)


def transformers_tokenizer(directory: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast.from_pretrained(str(directory))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def made(change: Callable[[Any], None] | None = None, special: Sequence[str] = tiny.SPECIAL, **files: Any) -> Path:
        """A directory with a tiny tokenizer.json, changed by `change`, and JSON files by their stems."""
        fast = build_tokenizer(tiny.TOKENS, tiny.MERGES, list(special))
        if change is not None:
            change(fast)
        fast.save(str(tmp_path / "tokenizer.json"))
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return tmp_path

    return made


def check_alike(directory: Path) -> Tokenizer:
    ours, theirs = Tokenizer(directory), transformers_tokenizer(directory)
    for text in TEXTS:
        ids = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text) == ids, text
        assert ours.decode(ids) == theirs.decode(ids), text
    added = ours._tokenizer.get_added_tokens_decoder()
    assert {index: repr(token) for index, token in added.items()} == {
        index: repr(token) for index, token in theirs.added_tokens_decoder.items()
    }
    return ours


@pytest.mark.parametrize("direction", ["left", "right"])
def test_saved_truncation_is_off(write: Any, direction: str) -> None:
    ours = check_alike(write(lambda fast: fast.enable_truncation(64, stride=3, direction=direction)))

    assert len(ours.encode("the " * 400)) > 64


@pytest.mark.parametrize(
    "how", [{"length": 400}, {"length": 400, "direction": "left"}, {"pad_to_multiple_of": 64}, {"length": None}]
)
def test_saved_padding_is_off(write: Any, how: dict[str, Any]) -> None:
    ours = check_alike(write(lambda fast: fast.enable_padding(pad_id=0, pad_token="<|endoftext|>", **how)))

    assert len(ours.encode("the")) == 2


def test_saved_truncation_and_padding_together_are_off(write: Any) -> None:
    def both(fast: Any) -> None:
        fast.enable_truncation(64)
        fast.enable_padding(length=400)

    check_alike(write(both))


def test_random_dropout_of_merges_is_off_and_said(write: Any) -> None:
    def drop(fast: Any) -> None:
        fast.model.dropout = 0.5

    directory = write(drop)
    ours = Tokenizer(directory)

    assert {tuple(ours.encode("the the")) for _ in range(20)} == {tuple(ours.encode("the the"))}
    assert ours.encode(" the the") == Tokenizer(write()).encode(" the the")
    write(drop)
    assert Tokenizer(directory).notes == (
        "tokenizer.json: the model's `dropout` of 0.5, which is for training, is switched off",
    )


def token(content: str, **flags: bool) -> dict[str, Any]:
    usual = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    return {"content": content} | usual | flags


N = len(tiny.TOKENS)
DECODER = {
    "plain": {str(N): token("<|spare|>")},
    "strips": {str(N): token("<|spare|>", lstrip=True, rstrip=True)},
    "left": {str(N): token("<|spare|>", lstrip=True)},
    "single word": {str(N): token("<x>", single_word=True)},
    "not special": {str(N): token("<|spare|>", special=False)},
    "normalised": {str(N): token("<|tool|>", normalized=True, special=False)},
    "several, out of order": {str(N + 1): token("<|tool|>"), str(N): token("<|spare|>"), str(N + 2): token("<|eot|>")},
    "other flags than tokenizer.json": {"2": token("<|im_end|>", lstrip=True)},
}


@pytest.mark.parametrize("name", DECODER)
def test_added_tokens_decoder(write: Any, name: str) -> None:
    check_alike(write(tokenizer_config={"added_tokens_decoder": DECODER[name]}))


@pytest.mark.parametrize(
    "config",
    [
        {"additional_special_tokens": ["<|spare|>", "<|tool|>"]},
        {"extra_special_tokens": ["<|spare|>", "<|tool|>"]},
        {"extra_special_tokens": {"image_token": "<|image|>"}},
        {"eos_token": "<|eot|>"},
        {"eos_token": {"__type": "AddedToken", **token("<|eot|>", lstrip=True)}},
        {"pad_token": "<pad>", "eos_token": "<|eot|>", "additional_special_tokens": ["<x>"]},
        {"image_token": "<|image|>", "bos_token": None},
        {"eos_token": "the"},
        {"added_tokens_decoder": {str(N): token("<|eot|>", special=False)}, "eos_token": "<|eot|>"},
        {"added_tokens_decoder": {}, "additional_special_tokens": ["<|spare|>"]},
        {"split_special_tokens": True},
        {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "clean_up_tokenization_spaces": True},
    ],
)
def test_tokens_named_in_the_configuration(write: Any, config: dict[str, Any]) -> None:
    check_alike(write(tokenizer_config=config))


@pytest.mark.parametrize(
    "files",
    [
        {"added_tokens": {"<|spare|>": N, "<|tool|>": N + 1}},
        {"added_tokens": {"<|tool|>": N + 1, "<|spare|>": N}, "tokenizer_config": {"eos_token": "<|tool|>"}},
        {"added_tokens": {"<|im_end|>": 2}},
        {"special_tokens_map": {"eos_token": "<|eot|>"}},
        {"special_tokens_map": {"eos_token": token("<|eot|>", rstrip=True)}},
        {"special_tokens_map": {"additional_special_tokens": ["<|spare|>", "<|tool|>"]}},
        {"special_tokens_map": {"eos_token": "<|eot|>"}, "tokenizer_config": {"eos_token": "<|tool|>"}},
        {
            "special_tokens_map": {"eos_token": "<|eot|>"},
            "tokenizer_config": {"eos_token": "<|tool|>", "added_tokens_decoder": {}},
        },
    ],
)
def test_tokens_named_in_the_older_files(write: Any, files: dict[str, Any]) -> None:
    check_alike(write(**files))


def test_chatml_markers_that_only_the_configuration_names(write: Any) -> None:
    markers = {"1": token("<|im_start|>"), "2": token("<|im_end|>")}
    config = {"added_tokens_decoder": markers, "chat_template": tiny.TEMPLATE, "eos_token": "<|im_end|>"}
    ours = check_alike(write(special=["<|endoftext|>"], tokenizer_config=config))

    ids = ours.chat([{"role": "user", "content": "the"}])

    assert ids.count(1) == 2
    assert ids.count(2) == 1
    assert ours.eos_id == 2


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"tokenizer_config": {"added_tokens_decoder": {"7": token("<|spare|>")}}},
            rf"'<\|spare\|>' has the id 7 there and {N} by tokenizer.json",
        ),
        (
            {"tokenizer_config": {"added_tokens_decoder": {"1": token("<|im_end|>")}}},
            r"tokenizer_config.json: added_tokens_decoder: 1: '<\|im_end\|>' has the id 1 there and 2",
        ),
        ({"added_tokens": {"<|spare|>": N + 5}}, rf"added_tokens.json: '<\|spare\|>' has the id {N + 5} there and {N}"),
        ({"added_tokens": {"<|spare|>": "7"}}, "added_tokens.json: .* is '7'; expected a token id"),
        ({"tokenizer_config": {"added_tokens_decoder": []}}, "added_tokens_decoder is list; expected a mapping"),
        ({"tokenizer_config": {"added_tokens_decoder": {"x": {}}}}, "has the key 'x'; expected a token id"),
        ({"tokenizer_config": {"added_tokens_decoder": {"7": "x"}}}, "7 is 'x'; expected an object"),
        ({"tokenizer_config": {"added_tokens_decoder": {"7": token("x", lstrip=1)}}}, "`lstrip` is 1; expected true"),  # type: ignore[arg-type]
        ({"tokenizer_config": {"eos_token": 7}}, "tokenizer_config.json: eos_token is 7; expected a token's text"),
        (
            {"tokenizer_config": {"additional_special_tokens": "<x>"}},
            "additional_special_tokens is '<x>'; expected a li",
        ),
        ({"special_tokens_map": {"eos_token": {"content": ""}}}, "special_tokens_map.json: eos_token is"),
        ({"tokenizer_config": {"split_special_tokens": "no"}}, "split_special_tokens is 'no'"),
        (
            {"tokenizer_config": {"add_prefix_space": True}},
            "add_prefix_space is true in tokenizer_config.json and false",
        ),
    ],
)
def test_contradictions_and_malformed_entries(write: Any, files: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Tokenizer(write(**files))


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"])
@pytest.mark.parametrize("content", ["[" * 100_000, "{", '{"a": ' * 50_000, "\xff"])
def test_damaged_files_are_one_line(write: Any, name: str, content: str) -> None:
    directory = write()
    (directory / name).write_bytes(content.encode("latin-1"))

    with pytest.raises(ModelError, match=name) as caught:
        Tokenizer(directory)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_file(write: Any, tmp_path: Path) -> None:
    directory = write()
    (directory / "tokenizer_config.json").symlink_to("/dev/zero")

    with pytest.raises(ModelError, match=r"tokenizer_config.json is not a regular file"):
        Tokenizer(directory)


@pytest.mark.parametrize(
    "content", ['{"model":' * 5000, '{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": -1}}}']
)
def test_hostile_tokenizer_json(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)

    with pytest.raises(ModelError, match=r"tokenizer.json is not a tokenizer") as caught:
        Tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_arguments_of_the_template_are_part_of_what_is_asked(write: Any) -> None:
    template = tiny.TEMPLATE + "{% if enable_thinking is defined and not enable_thinking %}the{% endif %}"
    directory = write(tokenizer_config={"chat_template": template})
    messages = [{"role": "user", "content": "12"}]
    theirs = transformers_tokenizer(directory)

    for arguments in ({}, {"enable_thinking": False}, {"enable_thinking": True}):
        ids = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=True, **arguments)[
            "input_ids"
        ]
        assert Tokenizer(directory, template_arguments=arguments).chat(messages) == ids
    with pytest.raises(ModelError, match=r"model.template: .* does not read `enable_thinkng`.*did you mean"):
        Tokenizer(directory, template_arguments={"enable_thinkng": False})


def test_a_token_beyond_the_embedding_is_named(write: Any) -> None:
    directory = write(tokenizer_config={"pad_token": "<pad>"})

    assert Tokenizer(directory, vocab_size=N + 1).encode("<pad>") == [N]
    ours = Tokenizer(directory, vocab_size=N)
    assert ours.encode("the") == Tokenizer(directory).encode("the")
    with pytest.raises(
        RequestError, match=rf"holds the token '<pad>' of id {N}, for which the model's embedding of {N}"
    ):
        ours.encode("the<pad>")


def test_arguments_without_a_template(write: Any) -> None:
    with pytest.raises(ModelError, match="has no chat template"):
        Tokenizer(write(), template_arguments={"enable_thinking": False})
