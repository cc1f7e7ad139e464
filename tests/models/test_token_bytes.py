from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vcbench.errors import ModelError
from vcbench.models.token_bytes import TokenDecoder, Utf8Stream, byte_level_alphabet

SENTENCEPIECE = {
    "type": "Sequence",
    "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ],
}


def test_alphabet_is_that_of_tokenizers() -> None:
    from tokenizers import pre_tokenizers

    table = byte_level_alphabet()
    assert set(table) == set(pre_tokenizers.ByteLevel.alphabet())
    assert sorted(table.values()) == list(range(256))
    assert (table["Ġ"], table["a"], table["Ċ"]) == (ord(" "), ord("a"), ord("\n"))


def test_byte_level() -> None:
    decoder = TokenDecoder({"type": "ByteLevel"})

    assert decoder.token_bytes("Ġthe") == b" the"
    assert decoder.token_bytes("Ã©") == "é".encode()
    assert decoder.token_bytes("<|im_end|>") == b"<|im_end|>"
    assert decoder.token_bytes("<an added 日>") == "<an added 日>".encode()
    assert not decoder.strip_first_space


def test_sentencepiece() -> None:
    decoder = TokenDecoder(SENTENCEPIECE)

    assert decoder.token_bytes("▁the▁") == b" the "
    assert decoder.token_bytes("<0x0A>") == b"\n"
    assert decoder.token_bytes("<0xZZ>") == b"<0xZZ>"
    assert decoder.strip_first_space


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece"}, {"type": "Sequence", "decoders": []}])
def test_other_decoders_are_refused(decoder: dict[str, Any] | None) -> None:
    with pytest.raises(ModelError, match="is not supported; ByteLevel, or Replace"):
        TokenDecoder(decoder)


@given(st.binary(max_size=64), st.lists(st.integers(1, 5), max_size=64))
def test_stream_is_the_whole_decoded_in_pieces(data: bytes, cuts: list[int]) -> None:
    stream, text, start = Utf8Stream(), "", 0
    for cut in cuts:
        text += stream.push(data[start : start + cut])
        assert data[: start + cut].decode("utf-8", "replace").startswith(text)
        start += cut
    text += stream.push(data[start:]) + stream.finish()

    assert text == data.decode("utf-8", "replace")
