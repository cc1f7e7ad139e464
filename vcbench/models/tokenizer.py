"""Text to token ids and back, for one model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from vcbench.errors import ModelError, RequestError
from vcbench.models.added_tokens import CONFIG, add_tokens, read_special_tokens
from vcbench.models.chat_template import ChatTemplate, load_template_sources
from vcbench.models.files import optional_json
from vcbench.models.store import ModelFiles
from vcbench.models.token_bytes import TokenDecoder, Utf8Stream
from vcbench.models.tokenizer_file import guarded, load_tokenizer


class Tokenizer:
    """A model's tokenizer and chat template. Implements `PromptTokenizer` of `vcbench.tasks`."""

    def __init__(
        self, path: Path, *, vocab_size: int | None = None, template_arguments: Mapping[str, Any] | None = None
    ) -> None:
        """Reads a model directory.

        Args:
            vocab_size: rows of the embedding, which may exceed the tokenizer's own.
            template_arguments: what the chat template is given beside the conversation, such as `enable_thinking`.

        Raises ModelError if tokenizer.json is missing, damaged or of an unsupported kind, if its files contradict each
        other, or if the template has no use for an argument.
        """
        self._path = path
        self._config = optional_json(path / CONFIG)
        self._tokenizer, padding, self.notes = load_tokenizer(path, self._config)
        self._special = read_special_tokens(path, self._config, padding)
        guarded(path, lambda: add_tokens(self._tokenizer, self._special))
        decoder = self._tokenizer.decoder
        self._decoder = TokenDecoder(json.loads(decoder.__getstate__()) if decoder is not None else None)
        self._embedded = vocab_size
        self.vocab_size = max(vocab_size or 0, self._tokenizer.get_vocab_size(with_added_tokens=True))
        self._template_arguments = dict(template_arguments or {})
        if self._template_arguments:
            self._template.check_arguments(self._template_arguments)

    @classmethod
    def from_files(cls, files: ModelFiles) -> Tokenizer:
        """The tokenizer of a resolved model."""
        return cls(files.path, vocab_size=files.architecture.vocab_size, template_arguments=files.template)

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text. No token is added; one that the text spells out (`<|im_end|>`) is recognised.

        Raises RequestError on a lone surrogate, with its offset, and on a token that the model's embedding lacks.
        """
        _refuse_surrogates(text)
        ids: list[int] = guarded(self._path, lambda: self._tokenizer.encode(text, add_special_tokens=False).ids)
        if self._embedded is not None and ids and max(ids) >= self._embedded:
            token = max(ids)
            raise RequestError(
                f"the text holds the token {self._tokenizer.id_to_token(token)!r} of id {token}, for which the model's "
                f"embedding of {self._embedded} rows has none; take it out of the text"
            )
        return list(ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens spelled out; undecodable bytes become U+FFFD.

        It is the text of records and the one in which stop strings are looked for (`TextStream`). Raises ModelError on
        an id outside the vocabulary.
        """
        stream = TextStream(self)
        return "".join(stream.push(token) for token in ids) + stream.finish()

    def chat(self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """Token ids of a conversation under the model's chat template, ready for the assistant's turn.

        The template writes every special token itself, so none is added. Raises ModelError if there is no template
        and TaskError if it refuses the messages.
        """
        return self.encode(self.render(messages, tools=tools))

    def render(self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """The conversation as the text that `chat` encodes."""
        variables = self._special.texts() | self._template_arguments
        return self._template.render(messages, tools=tools, variables=variables)

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
        return self._role_id("bos_token")

    @cached_property
    def eos_id(self) -> int | None:
        """The token that the tokenizer calls the end of a text, or None if it names none."""
        return self._role_id("eos_token")

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

    def _role_id(self, role: str) -> int | None:
        token = self._special.named.get(role)
        found: int | None = self._tokenizer.token_to_id(token.content) if token is not None else None
        return found

    @cached_property
    def _template(self) -> ChatTemplate:
        sources = load_template_sources(self._path, self._config)
        if not sources:
            raise ModelError(
                f"{self._path} has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json); "
                "use an instruct model, or a task whose prompts are plain text"
            )
        return ChatTemplate(sources)


class TextStream:
    """Text of tokens that arrive one by one; what may still become another character is held back.

    Joined, it is what `Tokenizer.decode` gives and what records hold.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = Utf8Stream()
        self._at_start = tokenizer.strips_first_space

    def push(self, token: int) -> str:
        """The text that this token completes; empty while a character is incomplete.

        Raises ModelError on an id outside the vocabulary.
        """
        data = self._tokenizer.token_bytes(token)
        if self._at_start and data:
            data = data.removeprefix(b" ")
            self._at_start = False
        return self._utf8.push(data)

    def finish(self) -> str:
        """The rest, once no token follows; an incomplete character becomes U+FFFD."""
        return self._utf8.finish()


def _refuse_surrogates(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text holds a lone surrogate {text[error.start]!r} at offset {error.start}, which no tokenizer can "
            "encode; read the file as UTF-8 with errors='replace', or remove it"
        ) from error
