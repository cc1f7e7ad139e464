"""Linear layers whose rows do not depend on how many rows share the call.

On CPU float32 the weights are packed once by oneDNN; on other devices, and where that packing is not available, calls
are made in row tiles of one fixed size. A probe decides how far a call must be padded; it runs at start-up on the very
shapes and threads in use.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vcbench.errors import InexactError

PROBE_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 25, 31, 33, 41, 64, 65)
_PACK_HINT_ROWS = 8
_FIXED_TILES = (8, 16, 32, 64)
Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class RowPlan:
    """How a product must be called: padded up to `minimum` rows, or (fixed) in tiles of exactly `minimum` rows."""

    minimum: int
    fixed: bool = False


FREE = RowPlan(1)


@dataclass(slots=True)
class RowMode:
    """Shared by all layers of a model: `bulk` suspends row plans while a prompt is prefilled."""

    bulk: bool = False


class Linear:
    """y = x W^T + b. Call with x: [n, in] to get [n, out]."""

    def __init__(self, weight: Tensor, bias: Tensor | None, mode: RowMode) -> None:
        """Takes weight: [out, in] and bias: [out]; keeps the packed form alone where packing is possible."""
        self.mode = mode
        self.out_features, self.in_features = weight.shape
        self.dtype, self.device = weight.dtype, weight.device
        self.plan = FREE
        self.packed = can_pack(weight)
        if self.packed:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _PACK_HINT_ROWS)
        else:
            self._weight = weight.contiguous()
        self._bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        return self.product(x) if self.mode.bulk else run_planned(self.product, self.plan, x)

    def product(self, x: Tensor) -> Tensor:
        """The bare product, with neither padding nor tiles."""
        if self.packed:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
            return y
        return torch.nn.functional.linear(x, self._weight, self._bias)

    @property
    def shape_key(self) -> tuple[int, int, bool, bool]:
        """Layers with equal keys run the same kernel."""
        return (self.out_features, self.in_features, self.packed, self._bias is not None)


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN's packed weights serve this tensor."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and torch.backends.mkldnn.is_available()


def run_planned(product: Product, plan: RowPlan, x: Tensor) -> Tensor:
    """`product(x)` under a row plan; rows that pad are zeros and are cut off again."""
    rows = x.shape[0]
    if plan.fixed:
        tiles = [product(_pad(x[i : i + plan.minimum], plan.minimum)) for i in range(0, rows, plan.minimum)]
        return torch.cat(tiles)[:rows] if len(tiles) > 1 else tiles[0][:rows]
    if rows < plan.minimum:
        return product(_pad(x, plan.minimum))[:rows]
    return product(x)


def _pad(x: Tensor, rows: int) -> Tensor:
    if x.shape[0] == rows:
        return x.contiguous()
    padded = x.new_zeros((rows, x.shape[1]))
    padded[: x.shape[0]] = x
    return padded


def probe(product: Product, in_features: int, dtype: torch.dtype, device: torch.device) -> RowPlan:
    """The cheapest plan under which rows agree bit for bit at every row count and row position tried.

    Below float32 only fixed tiles are tried: the output is rounded so far that another order of summation shows in one
    of some ten thousand elements, too few for a probe to find.
    Raises InexactError when no plan does. Cost: about fifty products of up to 65 rows.
    """
    generator = torch.Generator().manual_seed(20260517)
    x = torch.randn((max(PROBE_ROWS), in_features), generator=generator).to(device=device, dtype=dtype)
    visible = device.type == "cpu" and dtype.itemsize >= torch.float32.itemsize
    plans = [RowPlan(minimum) for minimum in (1, 2, 3, 4, 8)] if visible else []
    plans += [RowPlan(tile, fixed=True) for tile in _FIXED_TILES]
    for plan in plans:
        if _agrees(product, plan, x):
            return plan
    raise InexactError(
        f"no row tile makes a product over {in_features} features on {device} ({dtype}) independent of its batch; "
        "set engine.exactness: fast to go on without bit-exactness"
    )


def _agrees(product: Product, plan: RowPlan, x: Tensor) -> bool:
    reference = run_planned(product, plan, x)
    for rows in PROBE_ROWS:
        for start in {0, x.shape[0] - rows, (x.shape[0] - rows) // 2}:
            if not torch.equal(run_planned(product, plan, x[start : start + rows]), reference[start : start + rows]):
                return False
    return True


def plan_layers(layers: list[Linear]) -> dict[str, int]:
    """Probes one layer of each shape, sets every layer's plan and returns the padding by shape, for the record."""
    chosen: dict[tuple[int, int, bool, bool], RowPlan] = {}
    for layer in layers:
        if layer.shape_key not in chosen:
            chosen[layer.shape_key] = probe(layer.product, layer.in_features, layer.dtype, layer.device)
        layer.plan = chosen[layer.shape_key]
    return {f"{key[0]}x{key[1]}": plan.minimum for key, plan in chosen.items()}
