"""Lines to bytes and back: faithful, ASCII, no bare NaN, no lone surrogate; damage is named."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vcbench.errors import RecordError
from vcbench.records.codec import decode, encode, line_key, seal
from vcbench.records.schema import BatchLine, DivergenceLine, PromptLine, RequestLine

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
ids = st.lists(st.integers(0, 2**40), max_size=6)
finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | finite | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
timing = st.dictionaries(names, finite, max_size=3)
lines = st.one_of(
    st.builds(
        PromptLine,
        task=names,
        request=names,
        prompt_ids=ids,
        prompt_sha256=names,
        document_sha256=names,
        target=json_values,
        meta=st.dictionaries(names, json_values, max_size=2),
        tail=names,
        timing=timing,
    ),
    st.builds(
        RequestLine,
        cell=names,
        task=names,
        request=names,
        prompt_sha256=names,
        token_ids=ids,
        text=names,
        finish_reason=st.sampled_from(["stop", "length", "error"]),
        error=st.none() | names,
        drafted=ids,
        accepted=ids,
        committed=ids,
        kv_start=st.none() | st.dictionaries(names, json_values, max_size=2),
        cache_classes=st.dictionaries(names, st.integers(0, 99), max_size=2),
        timing=timing,
    ),
    st.builds(BatchLine, cell=names, task=names, requests=st.lists(names, max_size=3), tokens=st.integers(0, 9)),
    st.builds(
        DivergenceLine,
        cell=names,
        task=names,
        request=names,
        kl=st.lists(st.none() | finite, max_size=4),
        top1_agree=st.lists(st.booleans(), max_size=4),
    ),
)
REQUEST = RequestLine(
    cell="c", task="t", request="r", prompt_sha256="0", token_ids=[1], text="a", finish_reason="length"
)


@given(lines)
def test_round_trip(line: PromptLine | RequestLine | BatchLine | DivergenceLine) -> None:
    data = encode(line)
    assert data.count(b"\n") == 1
    assert data.endswith(b"\n")
    assert data.isascii()
    assert decode(data, "here") == line


@given(st.text(st.characters(), max_size=20))
def test_any_text_can_be_written_read_and_printed(text: str) -> None:
    line = decode(encode(replace(REQUEST, text=text)), "here")
    assert isinstance(line, RequestLine)
    line.text.encode("utf-8")
    if not any("\ud800" <= char <= "\udfff" for char in text):
        assert line.text == text


def test_surrogates_are_spelled_out() -> None:
    meta = {"k\udc80": ["\ud83d"]}
    prompt = PromptLine(task="t", request="r", prompt_ids=[], prompt_sha256="", document_sha256="", meta=meta)
    read = decode(encode(prompt), "here")
    assert isinstance(read, PromptLine)
    assert read.meta == {"k\\udc80": ["\\ud83d"]}
    foreign = seal(json.loads(encode(REQUEST)) | {"text": "\ud83d!"})
    assert decode(foreign, "here") == replace(REQUEST, text="\\ud83d!")


@pytest.mark.parametrize("name", ["cell", "task", "request"])
def test_identifiers_with_surrogates_are_refused(name: str) -> None:
    with pytest.raises(RecordError, match=name):
        encode(replace(REQUEST, **{name: "x\ud83d"}))


def test_numbers_that_are_not_finite() -> None:
    divergence = DivergenceLine(
        cell="c", task="t", request="r", kl=[math.nan, math.inf, -math.inf, 0.5], top1_agree=[True]
    )
    read = decode(encode(divergence), "here")
    assert isinstance(read, DivergenceLine)
    assert read.kl == [None, None, None, 0.5]
    timed = decode(encode(replace(REQUEST, timing={"decode_s": math.nan, "other_s": 1.0})), "here")
    assert timed.timing == {"other_s": 1.0}


def test_numpy_values_become_plain() -> None:
    line = replace(
        REQUEST, token_ids=np.array([1, 2]), kv_start={"codes": np.int64(3), "rate": np.float32(0.5), "on": np.True_}
    )
    read = decode(encode(line), "here")
    assert read == replace(REQUEST, token_ids=[1, 2], kv_start={"codes": 3, "rate": 0.5, "on": True})
    with pytest.raises(RecordError, match=r"RequestLine.kv_start: a record cannot hold a object"):
        encode(replace(REQUEST, kv_start={"x": object()}))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": 4}, "schema version 4, this vcbench reads 1, 2 and 3"),
        ({"schema": None}, "schema version None"),
        ({"schema": True}, "schema version True"),
        ({"kind": "other"}, "unknown kind 'other'"),
        ({"kind": []}, "unknown kind"),
        ({"token_ids": "abc"}, "wrong type of field token_ids"),
        ({"token_ids": [1.5]}, "wrong type of field token_ids"),
        ({"token_ids": [True]}, "wrong type of field token_ids"),
        ({"timing": {"decode_s": "1"}}, "wrong type of field timing"),
        ({"extra": 1}, "unknown field extra"),
    ],
)
def test_damage_is_named(change: dict[str, object], says: str) -> None:
    row = json.loads(encode(REQUEST)) | change
    with pytest.raises(RecordError, match=says) as caught:
        decode(json.dumps(row).encode(), "file, line 3")
    assert str(caught.value).startswith("file, line 3: ")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b'{"schema":NaN}', b"[" * 100_000])
def test_what_is_no_record(data: bytes) -> None:
    with pytest.raises(RecordError, match="line 1"):
        decode(data, "line 1")


def test_missing_field_and_infinite_number() -> None:
    row = json.loads(encode(REQUEST))
    del row["text"]
    with pytest.raises(RecordError, match="missing field text"):
        decode(json.dumps(row).encode(), "x")
    with pytest.raises(RecordError, match="timing"):
        decode(encode(replace(REQUEST, timing={"decode_s": 1.0})).replace(b"1.0", b"1e999"), "x")


def test_keys_tell_lines_apart() -> None:
    first = BatchLine(cell="c", task="t", requests=["a", "b"], tokens=1)
    assert line_key(first) != line_key(replace(first, requests=["a, b"]))
    assert line_key(first) == line_key(replace(first, tokens=2))


def test_lines_of_schema_1_are_still_read() -> None:
    kept = b'"kind":"divergence","schema":1,"cell":"c","task":"t","request":"r"'
    old = b"{" + kept + b',"kl":[0.5,null],"top1_agree":[true,false]}'
    line = decode(old, "here")
    assert isinstance(line, DivergenceLine)
    assert (line.schema, line.basis, line.top5_overlap) == (1, "teacher-forced", [])


@given(lines, st.data())
def test_a_line_with_any_bit_flipped_is_no_record(
    line: PromptLine | RequestLine | BatchLine | DivergenceLine, data: st.DataObject
) -> None:
    written = bytearray(encode(line)[:-1])
    bit = data.draw(st.integers(0, 8 * len(written) - 1))
    written[bit // 8] ^= 1 << bit % 8
    if b"\n" not in written:
        with pytest.raises(RecordError):
            decode(bytes(written), "here")


def test_a_line_has_a_checksum_of_its_own() -> None:
    written = encode(REQUEST)
    body, _, tail = written.rpartition(b',"check":')
    assert tail == b'"' + hashlib.sha256(body + b"}").hexdigest()[:16].encode() + b'"}\n'
    for changed, says in [
        (written.replace(b'"token_ids":[1]', b'"token_ids":[2]'), "checksum does not fit"),
        (written.replace(b'"text":"a"', b'"text":"b"'), "checksum does not fit"),
        (written.replace(b'"length"', b'"stop"'), "checksum does not fit"),
        (body + b"}", "checksum is missing"),
        (json.dumps(json.loads(written)).encode(), "checksum does not fit"),
        (written.replace(b'"schema":3', b'"schema":2'), "unknown field check"),
    ]:
        with pytest.raises(RecordError, match=f"line 7: .*{says}"):
            decode(changed, "line 7")


def test_lines_of_earlier_schemas_are_written_as_they_were() -> None:
    old = replace(REQUEST, schema=2)
    assert b"check" not in encode(old)
    assert decode(encode(old), "here") == old
