"""`tokenizer.json`, read as transformers uses it: settings of one call or of training that were saved in it are off."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vcbench.errors import ModelError
from vcbench.models.added_tokens import CONFIG

if TYPE_CHECKING:
    import tokenizers


def load_tokenizer(path: Path, config: Mapping[str, Any]) -> tuple[tokenizers.Tokenizer, str | None, tuple[str, ...]]:
    """The tokenizer without the settings of a call or of training that its file may hold; the token of a padding that
    was saved; what is worth saying.

    `truncation` and `padding` are off, as in every call of transformers that does not ask for them; so is the random
    `dropout` of BPE, with which one text would have other tokens each time.
    """
    tokenizer = _read_tokenizer(path)
    notes: list[str] = []
    padding = (tokenizer.padding or {}).get("pad_token")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    dropout = getattr(tokenizer.model, "dropout", None)
    if dropout:
        tokenizer.model.dropout = None
        notes.append(f"tokenizer.json: the model's `dropout` of {dropout:g}, which is for training, is switched off")
    split = config.get("split_special_tokens", False)
    if not isinstance(split, bool):
        raise ModelError(f"{path / CONFIG}: split_special_tokens is {split!r}; expected true or false")
    if split:
        notes.append("tokenizer_config.json: split_special_tokens is true, so special tokens in a text are spelled out")
    tokenizer.encode_special_tokens = split
    _refuse_other_prefix_space(path, config, tokenizer)
    return tokenizer, padding, tuple(notes)


def _refuse_other_prefix_space(path: Path, config: Mapping[str, Any], tokenizer: tokenizers.Tokenizer) -> None:
    """Raises ModelError where the two files disagree on a space before the text: loaders then differ in the tokens."""
    wanted = config.get("add_prefix_space")
    if not isinstance(wanted, bool) or tokenizer.pre_tokenizer is None:
        return
    for key, value in _prefix_spaces(json.loads(tokenizer.pre_tokenizer.__getstate__()), "pre_tokenizer"):
        if value != wanted:
            raise ModelError(
                f"{path}: add_prefix_space is {str(wanted).lower()} in tokenizer_config.json and {str(value).lower()} "
                f"in tokenizer.json ({key}); loaders differ in which they follow: make them agree"
            )


def _prefix_spaces(step: Any, name: str) -> Iterator[tuple[str, bool]]:
    """What each step of a pre-tokenizer says of a space before the text."""
    if not isinstance(step, Mapping):
        return
    for inner in step.get("pretokenizers") or ():
        yield from _prefix_spaces(inner, name)
    if step.get("type") == "ByteLevel" and isinstance(step.get("add_prefix_space"), bool):
        yield f"{name} ByteLevel", step["add_prefix_space"]
    if step.get("type") == "Metaspace" and "prepend_scheme" in step:
        yield f"{name} Metaspace", step["prepend_scheme"] != "never"


def _read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    import tokenizers

    file = path / "tokenizer.json"
    if not file.is_file():
        raise ModelError(f"{path} has no tokenizer.json; supported: models with a fast tokenizer (tokenizer.json)")
    read: tokenizers.Tokenizer = guarded(path, lambda: tokenizers.Tokenizer.from_file(str(file)))
    return read


def guarded(path: Path, call: Callable[[], Any]) -> Any:
    """The call's result. The Rust library raises Exception itself, and a panic that is not even one."""
    try:
        return call()
    except ModelError:
        raise
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        reason = " ".join(str(error).split())[:500]
        raise ModelError(f"{path / 'tokenizer.json'} is not a tokenizer ({reason}); fetch the model again") from error
