"""TurboQuant: random rotation, then the best scalar quantiser for a random direction (Zandieh et al., 2504.19874)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from vcbench.calibration.base import Calibration
from vcbench.compressors.base import Compressor, CompressorOptions
from vcbench.engine.codes.coders import DirectionCoder
from vcbench.engine.codes.frames import Turned
from vcbench.engine.codes.quantised import QuantisedCache
from vcbench.engine.codes.rotation import is_power_of_two, random_rotation
from vcbench.engine.codes.scheme import Scheme
from vcbench.engine.codes.sketch import SIGN_BITS, SketchedCache, SketchingCoder
from vcbench.engine.kv.cache import KVCache
from vcbench.engine.model.decoder import Prefill
from vcbench.models.architecture import Architecture
from vcbench.registry import register

_SKETCH_STREAM = 0x514A4C
"""Sets the sketch's random numbers apart from the rotation's."""
_BITS = re.compile("k([2348])v([2348])")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurboQuantOptions(CompressorOptions):
    """k4v3 is the setting that VeriCache shows."""

    bits: str = field(default="k4v3", metadata={"doc": "Bits of key and value codes, kXvY with X, Y in 2, 3, 4, 8."})
    scale: Literal["plain", "norm", "unbiased"] = field(
        default="unbiased",
        metadata={"doc": "The stored scale: the norm, corrected for the levels' norm, or free of bias."},
    )
    rotation: Literal["hadamard", "qr"] = field(
        default="hadamard",
        metadata={"doc": "Two rounds of random signs and a Hadamard transform, or a Haar-random matrix."},
    )
    rotation_seed: int = field(default=0, metadata={"doc": "Seed of the rotation, which all layers and heads share."})
    qjl: bool = field(
        default=False,
        metadata={"doc": "Ablation: one of each key's X bits goes to a sign sketch of what the others miss."},
    )

    def __post_init__(self) -> None:
        if not _BITS.fullmatch(self.bits):
            raise ValueError(f"bits is {self.bits!r}; write kXvY with X and Y among 2, 3, 4 and 8")
        if self.rotation_seed < 0:
            raise ValueError(f"rotation_seed is {self.rotation_seed}; give 0 or more")
        if self.qjl and self.scale != "plain":
            raise ValueError(f"scale is {self.scale}, but qjl corrects the plain one; set scale: plain beside qjl")
        if self.qjl and self.key_and_value_bits[0] == 8:
            raise ValueError("qjl leaves 7 of 8 bits to the key codes, which are not packed; give 2, 3 or 4 bits")

    @property
    def key_and_value_bits(self) -> tuple[int, int]:
        """X and Y of kXvY; X counts the bit of a sketch."""
        key, value = _BITS.fullmatch(self.bits).groups()  # type: ignore[union-attr]
        return int(key), int(value)


@register("compressor", "turboquant")
class TurboQuant(Compressor[TurboQuantOptions]):
    """A head of a token becomes a float16 scale and the Lloyd-Max codes of its rotated direction: b + 16 / D bits.

    Post-RoPE keys; values are coded in the same way. Queries are rotated once a step and the result is rotated back,
    codes never are. `plain` is the paper's: its inner products shrink by the quantiser's error (3.4 % at 3 bits), which
    the other scales make up for at the same bytes. All tokens and layers are coded, none is left out.

    With `qjl` keys are the paper's inner-product variant: X - 1 bits of code and one bit a channel of the sign of a
    Gaussian projection of the residual, with a second float16 norm. Unbiased, but at the same bits its scores vary 5 to
    25 times as much as those of the unbiased scale, and reading costs a D x D product a token.
    """

    Options = TurboQuantOptions
    summary = "codes of rotated directions, kXvY bits for keys and values"
    kind = "quantise"

    def __init__(self, options: TurboQuantOptions, calibration: Calibration | None = None) -> None:
        super().__init__(options, calibration)
        self.cache_class = SketchedCache if options.qjl else QuantisedCache

    @classmethod
    def unsupported(cls, options: Any, architecture: Architecture) -> str | None:
        if options.rotation == "hadamard" and not is_power_of_two(architecture.head_dim):
            return f"a Hadamard rotation needs a head size that is a power of two, not {architecture.head_dim}; use qr"
        return None

    def compress(self, prefill: Prefill, *, seed: int) -> KVCache:
        o, shape = self.options, prefill.cache.shape
        key_bits, value_bits = o.key_and_value_bits
        size = shape.head_dim
        frame = Turned(random_rotation(o.rotation, size, o.rotation_seed).to(shape.device))
        key_bits -= SIGN_BITS * o.qjl
        scheme = Scheme.per_token(size, key_bits=key_bits, value_bits=value_bits, symmetric=True)
        if not o.qjl:
            coder = DirectionCoder(key_bits, value_bits, o.scale, size, shape.device)
            return QuantisedCache.of_prompt(prefill.cache, scheme, coder, frame)
        seed = o.rotation_seed ^ _SKETCH_STREAM
        sketching = SketchingCoder(key_bits, value_bits, o.scale, size, shape.device, seed)
        return SketchedCache.of_prompt(prefill.cache, scheme, sketching, frame)

    @classmethod
    def estimate_bytes(cls, options: Any, architecture: Architecture, tokens: int, element_bytes: int) -> int:
        elements = architecture.kv_bytes_per_token(1) // 2
        norms = 2 * (3 if options.qjl else 2)
        return int(tokens * elements * (sum(options.key_and_value_bits) / 8 + norms / architecture.head_dim))
