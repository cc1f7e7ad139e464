"""Several caches whose keys are coded before their rotary embedding, made ready for one kernel call a layer on CPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vcbench.engine.attention.cpu_codes import check_groups, coded_spans, tail_of, value_coding
from vcbench.engine.codes.frames import Frame, GroupedHeads
from vcbench.engine.kernels.cpu.codes.coded_blocks import ValueCoding
from vcbench.engine.kernels.cpu.codes.exceptions import EXCEPTION_FIELDS, K_OUTLIERS
from vcbench.engine.kernels.cpu.codes.tiles import level_table
from vcbench.engine.kernels.cpu.exact import attention
from vcbench.engine.kernels.cpu.prerope import prerope_attention as kernel
from vcbench.engine.kernels.cpu.prerope.prerope_blocks import KeyCoding
from vcbench.engine.kernels.cpu.simd import LANES
from vcbench.engine.kv.stores import KVShape, PageBatch, Spans, pieces_of
from vcbench.engine.rope import RopeTable

if TYPE_CHECKING:
    from vcbench.engine.codes.quantised import QuantisedCache


@dataclass(frozen=True, slots=True, kw_only=True)
class UnrotatedCoding:
    """How joined caches are coded, layer by layer; `frame` is that of their values."""

    keys: Callable[[int], KeyCoding]
    values: Callable[[int], ValueCoding]
    frame: Frame
    together: int = 1


class UnrotatedBatch:
    """Requests of one coding. Valid while none of them commits."""

    def __init__(
        self, shape: KVShape, coding: UnrotatedCoding, tails: PageBatch, spans: Spans, exceptions: NDArray[np.int64]
    ) -> None:
        """spans: [S, CODED_FIELDS], a request each; exceptions: [L, S, EXCEPTION_FIELDS]."""
        self._shape, self._coding, self._tails, self._exceptions = shape, coding, tails, exceptions
        numbered = np.concatenate([spans, np.arange(len(spans))[:, None]], axis=1)
        self._pieces = pieces_of(shape, numbered)
        for piece in self._pieces:
            piece[:, attention.HEADS] //= coding.together

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Stores k, v: [n, Hk, D] in the exact tails."""
        self._tails.write(layer, k, self._coding.frame.turned(v, "values"))

    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Attention of q: [n, H, D]; returns [n, H, D]."""
        heads, rows, tails = self._shape.n_kv_heads, q.contiguous().numpy(), self._tails
        out = torch.empty((q.shape[0], heads, self._shape.n_heads // heads, self._shape.head_dim))
        width = -(-self._shape.head_dim // LANES) * LANES
        for spans in self._pieces:
            kernel.attend_unrotated(
                numba.get_num_threads(), rows, spans, tails.tables, layer, tails.layer_bytes(layer), tails.head_bytes,
                self._coding.keys(layer), self._coding.values(layer), self._exceptions[layer], width, out.numpy(),
            )  # fmt: skip
        return self._coding.frame.turned_back(out.view(q.shape), "values")


def key_coding(
    rope: RopeTable, positions: int, form: int, levels: NDArray[np.float32], *, size: int, origin: Tensor | None = None,
    together: int = 1, group: int = 1, centred: bool = True,
) -> KeyCoding:  # fmt: skip
    """The kernel's view of keys of `size` channels a head, up to `positions`; with `origin`, see `KeyCoding`."""
    cos, sin = rope.blocks.starts(positions)
    transformed = origin is not None
    cos_factor, sin_factor = ((size * together) ** -0.5, -((size * together) ** -0.5)) if transformed else (1.0, 1.0)
    return KeyCoding(
        form=form, levels=levels, transformed=transformed, centred=centred, shift=group.bit_length() - 1,
        together=together, origin=np.empty(0, np.int32) if origin is None else origin.numpy(),
        cos=(rope.blocks.cos * cos_factor).numpy(), sin=(rope.blocks.sin * sin_factor).numpy(),
        start_cos=cos.numpy(), start_sin=sin.numpy(),
    )  # fmt: skip


def grouped_batch(parts: Sequence[tuple[QuantisedCache, int]]) -> UnrotatedBatch:
    """Quantised caches of one scheme, coder and `GroupedHeads` frame, with their rows."""
    first = parts[0][0]
    frame, s, shape = first.frame, first.scheme, first.shape
    assert isinstance(frame, GroupedHeads)
    check_groups(first)
    form, levels = level_table(first.coder.levels("keys").numpy(), s.key_bits, s.symmetric)
    keys = key_coding(
        frame.rope, max(cache.tokens + rows for cache, rows in parts), form, levels, size=shape.head_dim,
        origin=frame.origin[0], together=frame.together, group=frame.group, centred=not s.symmetric,
    )  # fmt: skip
    values, origin = value_coding(first), frame.origin.numpy()
    coding = UnrotatedCoding(
        keys=lambda layer: keys._replace(origin=origin[layer]),
        values=lambda layer: values,
        frame=frame,
        together=frame.together,
    )
    tails = PageBatch(shape, [tail_of(cache).rows(cache.tail_entry(), rows) for cache, rows in parts])
    exceptions = np.zeros((shape.n_layers, len(parts), EXCEPTION_FIELDS), np.int64)
    for index, (cache, _) in enumerate(parts):
        exceptions[:, index, :K_OUTLIERS] = cache.exact.addresses()
    return UnrotatedBatch(shape, coding, tails, coded_spans(parts, tails.spans), exceptions)
