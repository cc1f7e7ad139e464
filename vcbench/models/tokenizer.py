"""Text to token ids and back, for one model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vcbench.errors import ModelError, RequestError
from vcbench.models.chat_template import ChatTemplate, load_template_sources
from vcbench.models.store import ModelFiles, read_json
from vcbench.models.token_bytes import TokenDecoder, Utf8Stream

if TYPE_CHECKING:
    import tokenizers

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """A model's tokenizer and chat template. Implements `PromptTokenizer` of `vcbench.tasks`."""

    def __init__(self, path: Path, *, vocab_size: int | None = None) -> None:
        """Reads a model directory. `vocab_size`: rows of the embedding, which may exceed the tokenizer's own.

        Raises ModelError if tokenizer.json is missing, damaged or of an unsupported kind.
        """
        self._path = path
        self._tokenizer = _read_tokenizer(path)
        self._config = read_json(path / "tokenizer_config.json") if (path / "tokenizer_config.json").is_file() else {}
        decoder = self._tokenizer.decoder
        self._decoder = TokenDecoder(json.loads(decoder.__getstate__()) if decoder is not None else None)
        self._special_ids = frozenset(
            index for index, token in self._tokenizer.get_added_tokens_decoder().items() if token.special
        )
        self.vocab_size = max(vocab_size or 0, self._tokenizer.get_vocab_size(with_added_tokens=True))

    @classmethod
    def from_files(cls, files: ModelFiles) -> Tokenizer:
        """The tokenizer of a resolved model."""
        return cls(files.path, vocab_size=files.architecture.vocab_size)

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text. No token is added; one that the text spells out (`<|im_end|>`) is recognised.

        Raises RequestError on a lone surrogate, with its offset.
        """
        _refuse_surrogates(text)
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """Text of token ids; undecodable bytes become U+FFFD. Equals what a `TextStream` gives piece by piece.

        Raises ModelError on an id outside the vocabulary.
        """
        stream = TextStream(self, skip_special=skip_special)
        return "".join(stream.push(token) for token in ids) + stream.finish()

    def chat(self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Token ids of a conversation under the model's chat template, ready for the assistant's turn.

        The template writes every special token itself, so none is added. Raises ModelError if there is no template
        and TaskError if it refuses the messages.
        """
        return self.encode(self.render(messages, tools=tools))

    def render(self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The conversation as the text that `chat` encodes."""
        return self._template.render(messages, tools=tools, special_tokens=self._special_tokens)

    @property
    def template_sha256(self) -> str | None:
        """Hash of the chat template, or None if the model has none."""
        return self._template.sha256 if self.has_template else None

    @cached_property
    def has_template(self) -> bool:
        """Whether `chat` can be used."""
        return bool(load_template_sources(self._path, self._config))

    @cached_property
    def bos_id(self) -> int | None:
        """The token that begins a text, or None if the tokenizer names none."""
        text = self._special_tokens.get("bos_token")
        found: int | None = self._tokenizer.token_to_id(text) if text is not None else None
        return found

    def is_special(self, token: int) -> bool:
        """Whether the id is a control token, which `decode` leaves out."""
        return token in self._special_ids

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token stands for; empty for an id of the embedding that no token uses.

        Raises ModelError on an id outside the vocabulary.
        """
        if not 0 <= token < self.vocab_size:
            raise ModelError(f"token id {token} is outside the vocabulary of {self.vocab_size} tokens")
        text = self._tokenizer.id_to_token(token)
        return b"" if text is None else self._decoder.token_bytes(text)

    @property
    def strips_first_space(self) -> bool:
        """Whether the text of a sequence leaves out the space that SentencePiece puts before it."""
        return self._decoder.strip_first_space

    @cached_property
    def _template(self) -> ChatTemplate:
        sources = load_template_sources(self._path, self._config)
        if not sources:
            raise ModelError(
                f"{self._path} has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json); "
                "use an instruct model, or a task whose prompts are plain text"
            )
        return ChatTemplate(sources)

    @cached_property
    def _special_tokens(self) -> dict[str, str]:
        mapped = read_json(file) if (file := self._path / "special_tokens_map.json").is_file() else {}
        found = {name: _token_text(self._config.get(name) or mapped.get(name)) for name in _SPECIAL}
        return {name: text for name, text in found.items() if text is not None}


class TextStream:
    """Text of tokens that arrive one by one; what may still become another character is held back."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._utf8 = Utf8Stream()
        self._at_start = tokenizer.strips_first_space

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is incomplete.

        Raises ModelError on an id outside the vocabulary.
        """
        data = self._tokenizer.token_bytes(token)
        if self._skip_special and self._tokenizer.is_special(token):
            return ""
        if self._at_start and data:
            data = data.removeprefix(b" ")
            self._at_start = False
        return self._utf8.push(data)

    def finish(self) -> str:
        """The rest, once no token follows; an incomplete character becomes U+FFFD."""
        return self._utf8.finish()


def _read_tokenizer(path: Path) -> tokenizers.Tokenizer:
    import tokenizers

    file = path / "tokenizer.json"
    if not file.is_file():
        raise ModelError(f"{path} has no tokenizer.json; supported: models with a fast tokenizer (tokenizer.json)")
    try:
        return tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # The Rust reader raises Exception itself, whatever is wrong.
        raise ModelError(f"{file} is not a tokenizer ({error}); fetch the model again") from error


def _token_text(token: Any) -> str | None:
    content = token.get("content") if isinstance(token, Mapping) else token
    return content if isinstance(content, str) else None


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text holds a lone surrogate {text[error.start]!r} at offset {error.start}, which no tokenizer can "
            "encode; read the file as UTF-8 with errors='replace', or remove it"
        ) from error
