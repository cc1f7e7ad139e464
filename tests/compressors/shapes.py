"""Small models of many shapes, and what every registered method makes of their prompts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from tests.compressors import tiny
from tests.compressors.examples import ARCHITECTURE, example_options
from vcbench.calibration.base import Calibration
from vcbench.calibration.store import make_calibration
from vcbench.compressors.base import Compressor, prefill_for
from vcbench.engine.model.decoder import Decoder, Prefill
from vcbench.models.architecture import Architecture
from vcbench.registry import lookup, names

Method = tuple[str, Any]
SHAPES: dict[str, Architecture] = {
    f"{heads}x{kv_heads}x{size}": replace(ARCHITECTURE, n_heads=heads, n_kv_heads=kv_heads, head_dim=size)
    for heads, kv_heads, size in ((4, 4, 32), (4, 2, 20), (4, 1, 32), (5, 1, 20), (5, 1, 32), (40, 8, 32))
}
"""By query heads, KV heads and head size."""
METHODS: dict[str, Method] = {
    f"{name}-{number}" if number else name: (name, options)
    for name in names("compressor")
    for number, options in enumerate(example_options(name))
}
"""Every registered method, whatever shapes it takes."""
LONGEST = 200


def unsupported(method: Method, architecture: Architecture) -> str | None:
    """The plan's reason to refuse the method on a model."""
    reason: str | None = lookup("compressor", method[0]).unsupported(method[1], architecture)
    return reason


def supported(method: Method) -> list[Architecture]:
    """The shapes that a method takes."""
    return [architecture for architecture in SHAPES.values() if unsupported(method, architecture) is None]


@cache
def calibration(method: Method, architecture: Architecture) -> Calibration:
    """A fit on random tokens."""
    samples = [tiny.token_ids(64, seed=seed) for seed in range(100, 102)]
    fit = lookup("compressor", method[0]).calibrate(method[1], decoder(architecture), samples)
    return make_calibration(fit.tensors, {"method": method[0]})


def make(method: Method, architecture: Architecture) -> Compressor[Any]:
    """The method's compressor for a model."""
    name, options = method
    cls = lookup("compressor", name)
    given = () if cls.calibration_need(options) is None else (calibration(method, architecture),)
    made: Compressor[Any] = cls(options, *given)
    return made


def decoder(architecture: Architecture) -> Decoder:
    """The model of a shape."""
    return tiny.decoder(architecture)


@cache
def snapshot(method: Method, architecture: Architecture, tokens: int) -> Prefill:
    """A random prompt with all that a method asks for; whoever appends to its cache rewinds it."""
    return prefill_for([make(method, architecture)], decoder(architecture), tiny.token_ids(tokens), chunk=64)


def boundaries(method: Method) -> list[int]:
    """Prompt lengths around everything that an option counts in tokens, and around a block of 64."""

    def counts() -> Iterator[int]:
        yield 64
        for value in asdict(method[1]).values():
            if type(value) is int and 0 < value < LONGEST:
                yield value

    around = {near for count in counts() for near in (count - 1, count, count + 1, 2 * count, 2 * count + 1)}
    return sorted({1} | {tokens for tokens in around if 0 < tokens <= LONGEST})
