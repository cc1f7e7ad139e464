"""Special and added tokens of a model, from every file that may name them, put into its tokenizer as transformers does.

`tokenizer.json` alone does not say all: `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json` add
tokens and change flags. A token that is missing would be spelled out in characters and could never stop an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vcbench.errors import ModelError
from vcbench.models.files import optional_json

if TYPE_CHECKING:
    import tokenizers

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
CONFIG, MAP, LEGACY = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token as a file describes it: its text, its flags where they are given, its id where it has one."""

    content: str
    flags: Mapping[str, bool] = field(default_factory=dict)
    id: int | None = None
    where: str

    def added(self) -> tokenizers.AddedToken:
        """As the tokenizers library wants it; without flags it is special."""
        import tokenizers

        flags = dict(self.flags) or {"special": True}
        return tokenizers.AddedToken(self.content, **flags)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """`named`: by role (`bos_token`, a model's own such as `image_token`); `extra`: without one; `listed`: with ids."""

    named: Mapping[str, Token]
    extra: tuple[Token, ...]
    listed: tuple[Token, ...]

    def texts(self) -> dict[str, str]:
        """The named ones as chat templates see them."""
        return {name: token.content for name, token in self.named.items()}


def read_special_tokens(directory: Path, config: Mapping[str, Any], pad_token: str | None = None) -> SpecialTokens:
    """The tokens that the files beside `tokenizer.json` name. `config`: tokenizer_config.json.

    `pad_token`: that of the padding saved in tokenizer.json, which is the model's unless one is named.

    A table `added_tokens_decoder` there replaces the two older files; without it `special_tokens_map.json` comes before
    the configuration, as in transformers. Raises ModelError on a malformed entry.
    """
    names: dict[str, Any] = ({"pad_token": pad_token} if pad_token else {}) | dict(config)
    places = dict.fromkeys(names, CONFIG)
    if "added_tokens_decoder" in config:
        listed = tuple(_table(config["added_tokens_decoder"]))
    else:
        mapped = optional_json(directory / MAP)
        names |= mapped
        places |= dict.fromkeys(mapped, MAP)
        listed = tuple(_legacy(optional_json(directory / LEGACY), names))
    known = {token.content: token for token in listed}
    named: dict[str, Token] = {}
    # Roles in this order, whatever the file's: tokens that are new get their ids by it.
    for key in [*(key for key in NAMED if key in names), *(key for key in names if key not in NAMED)]:
        value = names[key]
        if key in NAMED and value is not None:
            token = _token(value, f"{places[key]}: {key}")
            named[key] = known.get(token.content, token)
        elif key not in NAMED and key.endswith("_token") and isinstance(value, str):
            named[key] = _token(value, f"{places[key]}: {key}")
    key = "extra_special_tokens" if names.get("extra_special_tokens") else "additional_special_tokens"
    given = names.get(key)
    where = f"{places.get(key, CONFIG)}: {key}"
    if isinstance(given, Mapping):
        named |= {str(name): _token(value, where) for name, value in given.items()}
        given = None
    if given is not None and not isinstance(given, list):
        raise ModelError(f"{where} is {given!r}; expected a list of tokens")
    extra = tuple(_token(value, where) for value in given or ())
    return SpecialTokens(named=named, extra=extra, listed=listed)


def add_tokens(tokenizer: tokenizers.Tokenizer, special: SpecialTokens) -> None:
    """Adds what the tokenizer lacks, in the order of transformers: listed tokens by id, then named ones, then the rest.

    A listed token that the tokenizer has with other flags gets the listed ones. Raises ModelError where the tokenizer
    gives a listed token another id than its file does.
    """
    have = tokenizer.get_added_tokens_decoder()
    as_written = {repr(token) for token in have.values()}
    by_role = set(special.texts().values())
    texts = {token.content for token in have.values()}
    # Flags in tokenizer.json come before those that the old list implies.
    missing = [
        token
        for token in special.listed
        if repr(token.added()) not in as_written and not (token.where == LEGACY and token.content in texts)
    ]
    texts |= {token.content for token in missing}
    for token in (*special.named.values(), *special.extra):
        if token.content not in texts:
            texts.add(token.content)
            missing.append(token)
    for token in missing:
        added = token.added()
        added.special = added.special or token.content in by_role
        tokenizer.add_tokens([added])
    for token in special.listed:
        found = tokenizer.token_to_id(token.content)
        if found != token.id:
            raise ModelError(
                f"{token.where}: {token.content!r} has the id {token.id} there and {found} by tokenizer.json; the "
                "files do not belong together: fetch the model again"
            )


def _table(value: Any) -> Iterator[Token]:
    where = f"{CONFIG}: added_tokens_decoder"
    if not isinstance(value, Mapping):
        raise ModelError(f"{where} is {type(value).__name__}; expected a mapping of ids")
    entries = []
    for key, token in value.items():
        if not (isinstance(key, str) and key.isascii() and key.isdigit() and len(key) < 10):
            raise ModelError(f"{where} has the key {key!r}; expected a token id")
        if not isinstance(token, Mapping):
            raise ModelError(f"{where}: {key} is {token!r}; expected an object with `content`")
        entries.append(_token(token, f"{where}: {key}", int(key)))
    yield from sorted(entries, key=lambda token: token.id or 0)


def _legacy(table: Mapping[str, Any], names: Mapping[str, Any]) -> Iterator[Token]:
    """Tokens of added_tokens.json; those that have a role are special and others are matched in normalised text."""
    listed = names.get("additional_special_tokens") or names.get("extra_special_tokens") or ()
    roles = [names.get(key) for key in NAMED] + (list(listed) if isinstance(listed, list) else [])
    special = {_content(value) for value in roles}
    for content, index in sorted(table.items(), key=lambda item: str(item[1])):
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < 2**31:
            raise ModelError(f"{LEGACY}: {content!r} is {index!r}; expected a token id")
    for content, index in sorted(table.items(), key=lambda item: item[1]):
        flags = dict.fromkeys(FLAGS, False) | {"special": content in special, "normalized": content not in special}
        yield Token(content=content, flags=flags, id=index, where=LEGACY)


def _token(value: Any, where: str, index: int | None = None) -> Token:
    """A token written as its text, or as an object with flags; an object without an id names a special token."""
    content = _content(value)
    if not content:
        raise ModelError(f"{where} is {value!r}; expected a token's text, or an object with it as `content`")
    if not isinstance(value, Mapping):
        return Token(content=content, id=index, where=where)
    given = {flag: value[flag] for flag in FLAGS if flag in value}
    for flag, state in given.items():
        if not isinstance(state, bool):
            raise ModelError(f"{where}: `{flag}` is {state!r}; expected true or false")
    defaults = {"special": index is None}
    return Token(content=content, flags=defaults | given, id=index, where=where)


def _content(value: Any) -> str | None:
    content = value.get("content") if isinstance(value, Mapping) else value
    return content if isinstance(content, str) else None
