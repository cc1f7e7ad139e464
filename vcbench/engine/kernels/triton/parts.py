"""What all Triton attention kernels share: spans, rows, packed codes, the softmax step, and how parts are joined.

A span is one request's rows over some KV heads of one layer, a line of int64 fields: counts, addresses and strides. A
program takes one span, one KV head (or those that are rotated together), `ROWS` of its query rows and one split of its
tokens, so that a single launch serves a ragged batch and a long context of one request alike. Rows are the query heads
of token 0, then those of token 1, and so on. Splits begin at multiples of a span's own split length and are joined in
ascending order: no row's bits depend on the other requests.

Kernels are compiled once for any number of tiles and splits (`do_not_specialize`), which change from pass to pass.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 16
"""Query rows of one program, the least that tensor cores take."""

LEAST_SPLIT, MOST_SPLITS = 256, 64
"""Tokens of the shortest split; splits become longer where there would be more of them."""

FIRST_ROW, TOKENS, FIRST_HEAD, HEADS, VISIBLE = map(tl.constexpr, range(5))
SPLIT, TAIL_START, KEYS, VALUES, HEAD_STRIDE = map(tl.constexpr, range(5, 10))
"""Rows in the batch: the first one, and how many tokens; KV heads: the first and how many. Token i sees positions below
VISIBLE + i. SPLIT: tokens of one. The exact tail: its first position, addresses of its keys and values, elements from
head to head."""

COMMON = 10
"""Fields of every span; a kernel's own come after them."""


def split_tokens(committed: int) -> int:
    """The split length for so many committed tokens: a power of two."""
    length = LEAST_SPLIT
    while length * MOST_SPLITS < committed:
        length *= 2
    return length


class Launch:
    """Grids and buffers for the spans of one layer, which need not be the same number of heads or tokens.

    spans: [S, fields] int64 on the CPU, and the same on the device.
    """

    def __init__(self, spans: Any, on_device: Tensor, group: int, together: int = 1) -> None:
        """group: query heads of one KV head. together: KV heads of one program."""
        self.spans, self.group, self.together = on_device, group, together
        self.fields = spans.shape[1]
        last = spans[:, VISIBLE.value] + spans[:, TOKENS.value] - 1
        self.heads = int(spans[:, HEADS.value].max()) // together
        self.tiles = triton.cdiv(int(spans[:, TOKENS.value].max()) * group * together, ROWS)
        self.splits = int((-(-last // spans[:, SPLIT.value])).max())

    def grid(self) -> tuple[int, int, int]:
        """Spans, heads times row tiles, splits."""
        return len(self.spans), self.heads * self.tiles, self.splits

    def parts(self, depth: int) -> tuple[Tensor, Tensor, Tensor]:
        """For each program and row a weighted sum, the highest score and the sum of the weights."""
        programs = len(self.spans) * self.heads * self.tiles * self.splits
        device = self.spans.device
        mixed = torch.empty((programs, ROWS, depth), dtype=torch.float32, device=device)
        peaks = torch.empty((programs, ROWS), dtype=torch.float32, device=device)
        return mixed, peaks, torch.empty_like(peaks)

    def joined(self, parts: tuple[Tensor, Tensor, Tensor], like: Tensor) -> Tensor:
        """The attention of all rows, as `like`: [n, H, D]."""
        out = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        depth = like.shape[2]
        _join[self.grid()[:2]](
            *parts, out, self.spans, self.fields, self.tiles, self.splits, out.stride(0), DEPTH=depth,
            WIDE=padded(depth), GROUP=self.group, TOGETHER=self.together, ROWS=ROWS, num_warps=4,
        )  # fmt: skip
        return out


def padded(size: int) -> int:
    """The power of two, 16 at least, that a head size or half of it is filled up to."""
    return max(16, int(triton.next_power_of_2(size)))


def rows_of(x: Tensor) -> Tensor:
    """x: [n, heads, D] with channels next to each other."""
    return x if x.stride(2) == 1 else x.contiguous()


def write_rows(launch: Launch, k: Tensor, v: Tensor) -> None:
    """Stores k, v: [n, Hk, D] in the exact tails, each row at the last position that it sees."""
    k, v = rows_of(k), rows_of(v)
    most = int(launch.tiles * ROWS // (launch.group * launch.together))
    _write[(len(launch.spans), launch.heads * launch.together, max(1, most))](
        k, v, launch.spans, launch.fields, k.stride(0), k.stride(1), v.stride(0), v.stride(1), DEPTH=k.shape[2],
        WIDE=padded(k.shape[2]), num_warps=1,
    )  # fmt: skip


@triton.jit
def count(span, FIELD: tl.constexpr):  # type: ignore[no-untyped-def]
    """A field that is a number of tokens or rows."""
    return tl.load(span + FIELD).to(tl.int32)


@triton.jit
def address(span, FIELD: tl.constexpr, TYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """A field that is the address of elements of a type."""
    return tl.load(span + FIELD).to(tl.pointer_type(TYPE))


@triton.jit
def aligned(pointer):  # type: ignore[no-untyped-def]
    """A pointer of which `gpu_exact.put_tensor` has made sure that it is a multiple of 16 bytes: loads may be wide."""
    return tl.multiple_of(pointer, 16)


@triton.jit
def head_of(span, head, FIELD: tl.constexpr, TYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where one head's elements begin: FIELD is their address, FIELD + 1 the elements from head to head."""
    return address(span, FIELD, TYPE) + head * tl.load(span + FIELD + 1)


@triton.jit
def tokens_of(span, head, TOGETHER: tl.constexpr):  # type: ignore[no-untyped-def]
    """Tokens whose rows a span has for these heads: none where there are fewer heads."""
    return tl.where(head * TOGETHER < count(span, HEADS), count(span, TOKENS), 0)


@triton.jit
def query_rows(  # type: ignore[no-untyped-def]
    q, span, head, row, channel, deep, row_stride, head_stride, GROUP: tl.constexpr, TOGETHER: tl.constexpr
):
    """Rows [R, channels] of the KV heads from `head` * TOGETHER on of a span."""
    token, part = row // (GROUP * TOGETHER), row % (GROUP * TOGETHER)
    first = tl.load(span + FIRST_ROW)
    query_head = (count(span, FIRST_HEAD) + head * TOGETHER) * GROUP + part
    at = (first + token) * row_stride + query_head * head_stride
    here = (token < tokens_of(span, head, TOGETHER))[:, None] & deep[None, :]
    return tl.load(q + at[:, None] + channel[None, :], mask=here, other=0.0)


@triton.jit
def split_of(span, head, tile, GROUP: tl.constexpr, TOGETHER: tl.constexpr, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """A program's first position and the one after its last, equal where it has nothing to do; and the end of all."""
    length, end = count(span, SPLIT), count(span, VISIBLE) + count(span, TOKENS) - 1
    first = tl.program_id(2) * length
    busy = tile * ROWS < tokens_of(span, head, TOGETHER) * GROUP * TOGETHER
    return first, tl.where(busy, tl.minimum(first + length, end), first), end


@triton.jit
def codes(line, index, mask, BITS: tl.constexpr, BYTES: tl.constexpr):  # type: ignore[no-untyped-def]
    """Code `index` of the packed line at `line`; see `packing.pack` for the layout."""
    if BITS == 3:
        low_bytes: tl.constexpr = BYTES // 3 * 2
        high_bytes: tl.constexpr = BYTES - low_bytes
        low = tl.load(line + index % low_bytes, mask=mask, other=0).to(tl.int32) >> (2 * (index // low_bytes))
        high = tl.load(line + low_bytes + index % high_bytes, mask=mask, other=0).to(tl.int32) >> (index // high_bytes)
        code = (low & 3) | ((high & 1) << 2)
    else:
        word = tl.load(line + index % BYTES, mask=mask, other=0).to(tl.int32)
        code = (word >> (BITS * (index // BYTES))) & ((1 << BITS) - 1)
    return code


@triton.jit
def weigh(scores, seen, highest):  # type: ignore[no-untyped-def]
    """The new highest score of each row, the weights under it, and what earlier sums shrink by."""
    scores = tl.where(seen, scores, -float("inf"))
    peak = tl.maximum(highest, tl.max(scores, 1))
    return peak, tl.exp(scores - peak[:, None]), tl.exp(highest - peak)


@triton.jit
def keep_part(  # type: ignore[no-untyped-def]
    mixed, highest, total, parts, peaks, totals, inside, channel, deep, splits, DEPTH: tl.constexpr, ROWS: tl.constexpr
):
    """Stores what a program found of its split; `inside`: its rows, counted from 0."""
    program = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * splits + tl.program_id(2)
    place = program.to(tl.int64) * ROWS + inside
    every = (inside >= 0)[:, None] & deep[None, :]
    tl.store(parts + place[:, None] * DEPTH + channel[None, :], mixed, mask=every)
    tl.store(peaks + place, highest)
    tl.store(totals + place, total)


@triton.jit(do_not_specialize=["tiles", "splits"])
def _join(  # type: ignore[no-untyped-def]
    parts, peaks, totals, out, spans, fields, tiles, splits, row_stride,
    DEPTH: tl.constexpr, WIDE: tl.constexpr, GROUP: tl.constexpr, TOGETHER: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One span, head and tile of rows: the parts of its splits in ascending order."""
    span = spans + tl.program_id(0) * fields
    head, tile = tl.program_id(1) // tiles, tl.program_id(1) % tiles
    inside, channel = tl.arange(0, ROWS), tl.arange(0, WIDE)
    row, deep = tile * ROWS + inside, channel < DEPTH
    held = tl.cdiv(count(span, VISIBLE) + count(span, TOKENS) - 1, count(span, SPLIT))
    first = (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)).to(tl.int64) * splits
    highest = tl.full((ROWS,), -3.0e38, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, WIDE), tl.float32)
    for split in range(0, held):
        place = (first + split) * ROWS + inside
        peak = tl.load(peaks + place)
        above = tl.maximum(highest, peak)
        shrink, weight = tl.exp(highest - above), tl.exp(peak - above)
        part = tl.load(parts + place[:, None] * DEPTH + channel[None, :], mask=deep[None, :], other=0.0)
        mixed = mixed * shrink[:, None] + part * weight[:, None]
        total = total * shrink + tl.load(totals + place) * weight
        highest = above
    token, part_head = row // (GROUP * TOGETHER), row % (GROUP * TOGETHER)
    query_head = (count(span, FIRST_HEAD) + head * TOGETHER) * GROUP + part_head
    at = (tl.load(span + FIRST_ROW) + token) * row_stride + query_head * DEPTH
    here = (token < tokens_of(span, head, TOGETHER))[:, None] & deep[None, :]
    total = tl.where(total == 0, 1.0, total)
    tl.store(out + at[:, None] + channel[None, :], mixed / total[:, None], mask=here)


@triton.jit
def _write(  # type: ignore[no-untyped-def]
    k, v, spans, fields, k_row, k_head, v_row, v_head, DEPTH: tl.constexpr, WIDE: tl.constexpr
):
    """One token of one span and head."""
    span = spans + tl.program_id(0) * fields
    head, token, channel = tl.program_id(1), tl.program_id(2), tl.arange(0, WIDE)
    here = channel < tl.where(token < tokens_of(span, head, 1), DEPTH, 0)
    row, first = tl.load(span + FIRST_ROW) + token, count(span, FIRST_HEAD)
    entry = count(span, VISIBLE) - 1 + token - count(span, TAIL_START)
    at = head * tl.load(span + HEAD_STRIDE) + entry * DEPTH + channel
    key = tl.load(k + row * k_row + (first + head) * k_head + channel, mask=here, other=0.0)
    value = tl.load(v + row * v_row + (first + head) * v_head + channel, mask=here, other=0.0)
    tl.store(address(span, KEYS, k.dtype.element_ty) + at, key, mask=here)
    tl.store(address(span, VALUES, k.dtype.element_ty) + at, value, mask=here)
