"""Linear layers whose rows do not depend on how many rows share the call.

On CPU float32 that holds by construction (`kernels.cpu.matmul`). Elsewhere calls are made in row tiles of one fixed
size, so that one and the same library kernel serves every call, and a probe at start-up checks it on the shapes in use.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vcbench.engine.kernels.cpu import matmul as kernel
from vcbench.errors import InexactError

PROBE_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 25, 31, 33, 41, 64, 65)
PROBE_TILES = (8, 16, 32, 64)
Product = Callable[[Tensor], Tensor]


@dataclass(slots=True)
class RowMode:
    """Shared by all layers of a model: `bulk` suspends row tiles while a prompt is prefilled."""

    bulk: bool = False


class Linear(ABC):
    """y = x W^T + b. Call with x: [n, in] to get [n, out]."""

    @abstractmethod
    def __call__(self, x: Tensor) -> Tensor:
        """The product."""

    @abstractmethod
    def weight(self) -> Tensor:
        """W: [out, in]; a copy where the layer keeps it in another form."""


class BlockedLinear(Linear):
    """CPU float32; weights in blocks of 64 outputs, [blocks, in, 64]."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Takes weight: [out, in] and bias: [out]; keeps the blocked copy alone."""
        self.outputs, inputs = weight.shape
        missing = -self.outputs % kernel.OUTPUTS
        padded = torch.nn.functional.pad(weight, (0, 0, 0, missing)) if missing else weight
        self._weight = padded.view(-1, kernel.OUTPUTS, inputs).transpose(1, 2).contiguous().numpy()
        self.bias = (torch.nn.functional.pad(bias, (0, missing)) if bias is not None else torch.empty(0)).numpy()

    def __call__(self, x: Tensor) -> Tensor:
        out = torch.empty((x.shape[0], self.outputs))
        kernel.linear(x.contiguous().numpy(), self._weight, self.bias, out.numpy())
        return out

    def weight(self) -> Tensor:
        return torch.from_numpy(self._weight).transpose(1, 2).flatten(0, 1)[: self.outputs]


class TiledLinear(Linear):
    """Any device and precision, in torch operations; `tile` rows a call, or all of them where it is 0."""

    def __init__(self, weight: Tensor, bias: Tensor | None, mode: RowMode) -> None:
        """Takes weight: [out, in] and bias: [out]."""
        self._weight, self._bias, self.mode, self.tile = weight.contiguous(), bias, mode, 0

    def __call__(self, x: Tensor) -> Tensor:
        return self.product(x) if self.mode.bulk else in_tiles(self.product, self.tile, x)

    def weight(self) -> Tensor:
        return self._weight

    def product(self, x: Tensor) -> Tensor:
        """The bare product of all rows at once."""
        return torch.nn.functional.linear(x, self._weight, self._bias)

    def probe(self) -> int:
        """The smallest tile under which rows agree; see `smallest_tile`."""
        return smallest_tile(self.product, self._weight.shape[1], self._weight.dtype, self._weight.device)

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs; layers of equal shape run the same kernel."""
        return (self._weight.shape[0], self._weight.shape[1])


def in_tiles(product: Product, tile: int, x: Tensor) -> Tensor:
    """`product(x)` in calls of exactly `tile` rows, the last one padded with zeros; one call of all rows if 0."""
    rows = x.shape[0]
    if tile == 0:
        return product(x)
    pieces = [product(_padded(x[start : start + tile], tile)) for start in range(0, rows, tile)]
    return (torch.cat(pieces) if len(pieces) > 1 else pieces[0])[:rows]


def _padded(x: Tensor, rows: int) -> Tensor:
    if x.shape[0] == rows:
        return x.contiguous()
    padded = x.new_zeros((rows, x.shape[1]))
    padded[: x.shape[0]] = x
    return padded


def smallest_tile(product: Product, inputs: int, dtype: torch.dtype, device: torch.device) -> int:
    """The smallest row tile under which rows agree bit for bit at every row count and position tried.

    Raises InexactError when no tile does. Cost: some hundred products of up to 64 rows.
    """
    generator = torch.Generator().manual_seed(20260517)
    x = torch.randn((max(PROBE_ROWS), inputs), generator=generator).to(device=device, dtype=dtype)
    for tile in PROBE_TILES:
        if rows_agree(product, tile, x):
            return tile
    raise InexactError(
        f"no row tile makes a product over {inputs} features on {device} ({dtype}) independent of its batch; "
        "set engine.exactness: fast to go on without bit-exactness"
    )


def rows_agree(product: Product, tile: int, x: Tensor) -> bool:
    """Whether the rows of `in_tiles(product, tile, x)` are the same bits in shorter calls, wherever they stand."""
    reference = in_tiles(product, tile, x)
    for rows in PROBE_ROWS:
        for start in {0, x.shape[0] - rows, (x.shape[0] - rows) // 2}:
            if not torch.equal(in_tiles(product, tile, x[start : start + rows]), reference[start : start + rows]):
                return False
    return True


def set_tiles(layers: Sequence[Linear]) -> dict[str, int]:
    """Probes one tiled layer of each shape, sets every such layer's tile and returns the tiles by shape."""
    chosen: dict[tuple[int, int], int] = {}
    for layer in layers:
        if isinstance(layer, TiledLinear):
            if layer.shape not in chosen:
                chosen[layer.shape] = layer.probe()
            layer.tile = chosen[layer.shape]
    return {f"{outputs}x{inputs}": tile for (outputs, inputs), tile in chosen.items()}
