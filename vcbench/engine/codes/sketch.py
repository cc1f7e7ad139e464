"""QJL (Zandieh et al., arXiv 2406.03482), as TurboQuant uses it: one bit a channel of what key codes have missed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vcbench.engine.codes.coded_cache import by_token, grown, half_bits, put_by_channel
from vcbench.engine.codes.coders import DirectionCoder, ScaleRule
from vcbench.engine.codes.frames import blocked, product
from vcbench.engine.codes.packing import BYTE, HALF_MAX
from vcbench.engine.codes.quantised import QuantisedCache
from vcbench.engine.kernels.cpu.codes import tiled_attention as framed
from vcbench.engine.kernels.cpu.codes.tiles import level_table
from vcbench.engine.kernels.cpu.exact.attention import BLOCK

SIGN_BITS = 1


class SignSketch:
    """sign(S r) and |r| of a residual r, for a Gaussian S: [D, D]; what they stand for is unbiased over S.

    To a query y they are worth |r| sqrt(pi / 2) / D <S y, sign(S r)>, so they stand for the vector
    |r| sqrt(pi / 2) / D S^T sign(S r).
    """

    def __init__(self, size: int, seed: int, device: torch.device) -> None:
        drawn = torch.randn((size, size), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self._forth = blocked(drawn.float().to(device))
        self.back = (drawn.mT * math.sqrt(math.pi / 2) / size).float().contiguous().to(device)
        """S^T sqrt(pi / 2) / D."""
        self.levels = torch.tensor([-1.0, 1.0], device=device)

    def of(self, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Bits (int32, the shape of `residual`: [..., D]) and norms (float16, without the last dimension)."""
        norms = residual.double().square().sum(-1).sqrt()
        return (product(residual, self._forth) >= 0).int(), norms.clamp(max=HALF_MAX).half()

    def restored(self, bits: Tensor, norms: Tensor) -> Tensor:
        """The vectors [..., D] that bits and norms stand for, float32."""
        return product(self.levels[bits] * norms.float()[..., None], blocked(self.back))

    def tensors(self) -> list[Tensor]:
        """Every tensor held."""
        return [self._forth, self.back, self.levels]


class SketchingCoder(DirectionCoder):
    """A direction coder with a sketch of what its key codes miss."""

    def __init__(
        self, key_bits: int, value_bits: int, rule: ScaleRule, size: int, device: torch.device, seed: int
    ) -> None:
        super().__init__(key_bits, value_bits, rule, size, device)
        self.sketch = SignSketch(size, seed, device)

    def tensors(self) -> list[Tensor]:
        return [*super().tensors(), *self.sketch.tensors()]


class SketchedCache(QuantisedCache):
    """Keys are codes and a sketch: k_signs: [L, Hk, blocks, D, 8], k_norms: [L, Hk, blocks, 64].

    Groups are whole heads of a token; the coder is a SketchingCoder.
    """

    coder: SketchingCoder

    def _allocate_codes(self) -> None:
        super()._allocate_codes()
        self.k_signs = self.k_codes.new_zeros((*self.k_codes.shape[:4], BLOCK // BYTE))
        self.k_norms = torch.zeros_like(self.k_steps)

    def _reserve_codes(self, keys: int, values: int) -> None:
        super()._reserve_codes(keys, values)
        self.k_signs = grown(self.k_signs, self.k_codes.shape[2])
        self.k_norms = grown(self.k_norms, self.k_codes.shape[2])

    def _encode_keys(self, layers: slice, start: int, k: Tensor) -> None:
        super()._encode_keys(layers, start, k)
        coded = self.frame.coded(k, layers, start)
        missed = coded - self.coder.decode(*self.coder.encode(coded, "keys"), "keys")
        bits, norms = self.coder.sketch.of(missed)
        put_by_channel(self.k_signs, layers, start, bits.transpose(2, 3), SIGN_BITS)
        self.k_norms.flatten(2)[layers, :, start : start + k.shape[2]] = norms

    def _decoded_coded(self, layer: int, start: int, stop: int) -> Tensor:
        bits = by_token(self.k_signs[layer], start, stop, SIGN_BITS)
        norms = self.k_norms[layer].flatten(1)[:, start:stop]
        return super()._decoded_coded(layer, start, stop) + self.coder.sketch.restored(bits, norms)

    def _codes_alone(self) -> bool:
        return False

    def _sketch(self, layer: int) -> framed.Sketch:
        sketch = self.coder.sketch
        _, levels = level_table(sketch.levels.numpy(), SIGN_BITS, False)
        return framed.Sketch(self.k_signs[layer].numpy(), half_bits(self.k_norms[layer]), levels, sketch.back.numpy())

    def nbytes(self) -> dict[str, int]:
        held = super().nbytes()
        held["codes"] += self.k_signs.nbytes
        held["steps"] += self.k_norms.nbytes
        return held
