"""Bytes of single tokens and text that grows token by token.

A token is a run of bytes that may end inside a character. Text is therefore decoded from bytes: a whole sequence at
once and token by token give the same string, undecodable bytes becoming U+FFFD.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vcbench.errors import ModelError

_HEX_BYTE = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")
_SUPPORTED = "ByteLevel, or Replace + ByteFallback + Fuse + Strip"


class TokenDecoder:
    """How a tokenizer's `decoder` (as `tokenizer.json` writes it) turns tokens into bytes.

    Two kinds exist in the supported families: byte-level BPE, where each character of a token stands for a byte, and
    SentencePiece-like BPE, where a mark stands for a space and `<0xNN>` for a byte.
    """

    def __init__(self, decoder: Mapping[str, Any] | None) -> None:
        """Raises ModelError for a decoder of another kind."""
        self.strip_first_space = False
        steps = _steps(decoder)
        kinds = [step.get("type") for step in steps]
        if "ByteLevel" in kinds:
            table = byte_level_alphabet()
            self._convert: Callable[[str], bytes] = lambda token: _byte_level(token, table)
            return
        unknown = [str(kind) for kind in kinds if kind not in ("Replace", "ByteFallback", "Fuse", "Strip")]
        if not kinds or unknown:
            raise ModelError(f"tokenizer decoder {' + '.join(unknown) or 'none'} is not supported; {_SUPPORTED} is")
        marks = [(str(step["pattern"]["String"]), str(step["content"])) for step in steps if step["type"] == "Replace"]
        self.strip_first_space = any(step["type"] == "Strip" and step.get("start") for step in steps)
        self._convert = lambda token: _sentencepiece(token, marks)

    def token_bytes(self, token: str) -> bytes:
        """The bytes that the token, as the vocabulary spells it, stands for."""
        return self._convert(token)


class Utf8Stream:
    """Text of bytes that arrive in pieces; holds back a character that is not complete yet."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, data: bytes) -> str:
        """The text that is certain after these bytes and was not before."""
        return self._decoder.decode(data)

    def finish(self) -> str:
        """The rest; an incomplete character becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)


def byte_level_alphabet() -> dict[str, int]:
    """Character to byte, as GPT-2 chose them: printable bytes stand for themselves, the others come after U+0100."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    table = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    return table | {chr(256 + index): byte for index, byte in enumerate(others)}


def _steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    return list(_flatten(decoder)) if decoder else []


def _flatten(decoder: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if decoder.get("type") == "Sequence":
        for step in decoder["decoders"]:
            yield from _flatten(step)
    else:
        yield decoder


def _byte_level(token: str, table: Mapping[str, int]) -> bytes:
    try:
        return bytes(table[character] for character in token)
    except KeyError:
        # Added tokens are spelled as they are, not in the alphabet.
        return token.encode("utf-8")


def _sentencepiece(token: str, marks: list[tuple[str, str]]) -> bytes:
    if match := _HEX_BYTE.match(token):
        return bytes([int(match.group(1), 16)])
    for mark, content in marks:
        token = token.replace(mark, content)
    return token.encode("utf-8")
