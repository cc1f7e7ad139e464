"""What a plan would take, before anything runs: bytes of the caches and a rough time. Every figure is an estimate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from vcbench import registry
from vcbench.backends.cells import Cell, Level, Plan
from vcbench.config.options import build_options
from vcbench.config.schema import longest
from vcbench.models.architecture import Architecture
from vcbench.models.shapes import active_parameter_count, parameter_count

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
ASSUMED_ACCEPTANCE = 0.5
"""Share of each draft that verification is taken to keep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What one pass over memory and one matrix product achieve here."""

    bytes_per_s: float
    flop_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEstimate:
    """One cell. Bytes are for the largest batch with all its new tokens; None where the method gives no estimate.

    `draft_bytes`: the compressed cache, new tokens counted whole. `full_bytes`: the full cache of the same tokens.
    `compress_s`: of all prompts, with a method's further passes over them; 0 of full KV.
    """

    cell: Cell
    prompts: int
    prompt_tokens: int
    full_bytes: int
    draft_bytes: int | None
    compress_s: float | None
    decode_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEstimate:
    """A whole plan; `prefill_s` is spent once per prompt, whatever the number of cells. No machine, no times."""

    machine: Machine | None
    weights_bytes: int
    prefill_s: float | None
    cells: tuple[CellEstimate, ...]

    @property
    def total_s(self) -> float | None:
        """Prefill and all cells; None if a part is unknown."""
        times = [self.prefill_s, *(each for cell in self.cells for each in (cell.compress_s, cell.decode_s))]
        return None if None in times else sum(filter(None, times))


def measure_machine(device: str) -> Machine:
    """Memory bandwidth and rate of matrix products, best of three. Cost: under half a second once torch is there."""
    import torch

    on_gpu = device == "cuda"
    dtype = torch.bfloat16 if on_gpu else torch.float32
    stream = torch.ones(2**25, dtype=torch.float32, device=device)
    size = 4096 if on_gpu else 768
    matrix = torch.full((size, size), 0.5, dtype=dtype, device=device)
    wait = torch.cuda.synchronize if on_gpu else _nothing
    return Machine(
        bytes_per_s=stream.nbytes / _best(lambda: stream.sum(), wait),
        flop_per_s=2 * size**3 / _best(lambda: matrix @ matrix, wait),
    )


def _nothing() -> None:
    """What there is to wait for where calls return when they are done."""


def _best(call: Callable[[], object], wait: Callable[[], None]) -> float:
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        call()
        wait()
        times.append(time.perf_counter() - begin)
    return min(times)


def estimate(
    plan: Plan, prompt_tokens: Mapping[str, Sequence[int]], *, dtype: str, machine: Machine | None
) -> PlanEstimate:
    """The estimate for prompts of the given lengths, by task; without a machine it has bytes and no times."""
    element_bytes = ELEMENT_BYTES[dtype]
    costs = _Costs(
        architecture=plan.architecture,
        element_bytes=element_bytes,
        batch_size=plan.config.engine.batch_size,
        machine=machine,
    )
    return PlanEstimate(
        machine=machine,
        weights_bytes=parameter_count(plan.architecture) * element_bytes,
        prefill_s=costs.prefill_s(prompt_tokens.values()),
        cells=tuple(costs.cell(cell, prompt_tokens[cell.task.name]) for cell in plan.cells),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Costs:
    """Rooflines: a decoding step takes as long as reading its weights and caches once, or as computing it."""

    architecture: Architecture
    element_bytes: int
    batch_size: int
    machine: Machine | None

    def cell(self, cell: Cell, lengths: Sequence[int]) -> CellEstimate:
        largest = sorted(lengths, reverse=True)[: self.batch_size]
        new = cell.task.max_tokens
        draft = [self.draft_bytes(cell, length) if cell.compressing else None for length in largest]
        known = [value for value in draft if value is not None]
        return CellEstimate(
            cell=cell,
            prompts=len(lengths),
            prompt_tokens=sum(lengths),
            full_bytes=sum(self.kv_bytes(length + new) for length in largest),
            draft_bytes=sum(known) + len(known) * self.kv_bytes(new) if known else None,
            compress_s=self.compress_s(self.machine, cell, lengths) if self.machine else None,
            decode_s=self.decode_s(self.machine, cell, lengths) if self.machine else None,
        )

    def kv_bytes(self, tokens: int) -> int:
        return tokens * self.architecture.kv_bytes_per_token(self.element_bytes)

    def draft_bytes(self, cell: Cell, tokens: int) -> int | None:
        """Compressed bytes of a prompt on all levels together; None where one of them is not known."""
        parts = [self.level_bytes(level, tokens) for level in cell.levels]
        return None if None in parts else sum(filter(None, parts))

    def level_bytes(self, level: Level, tokens: int) -> int | None:
        """Compressed bytes of a prompt by the method's own account, 0 for `ngram`; None without an account."""
        if level.method is None:
            return 0
        compressor = registry.lookup("compressor", level.method.compressor)
        account = getattr(compressor, "estimate_bytes", None)
        if account is None:
            return None
        options = build_options("compressor", level.method.compressor, level.method.options)
        return int(account(options, self.architecture, tokens, self.element_bytes))

    def prefill_s(self, prompts: Iterable[Sequence[int]]) -> float | None:
        if self.machine is None:
            return None
        lengths = [length for task in prompts for length in task]
        return sum(self.flop(length, length**2 // 2) for length in lengths) / self.machine.flop_per_s

    def flop(self, rows: int, pairs: int) -> int:
        """Operations of rows through the model that attend to so many pairs of a row and an entry."""
        shape = self.architecture
        return 2 * active_parameter_count(shape) * rows + 4 * shape.n_heads * shape.head_dim * shape.n_layers * pairs

    def compress_s(self, machine: Machine, cell: Cell, lengths: Sequence[int]) -> float | None:
        """All levels, one after the other."""
        seconds = [self.level_compress_s(machine, level, lengths) for level in cell.levels]
        return None if None in seconds else sum(filter(None, seconds))

    def level_compress_s(self, machine: Machine, level: Level, lengths: Sequence[int]) -> float | None:
        """Reading the full cache once and writing the draft, and whatever the method reads again."""
        if level.method is None:
            return 0.0
        compressor = registry.lookup("compressor", level.method.compressor)
        drafts = [self.level_bytes(level, length) for length in lengths]
        reread = getattr(compressor, "estimate_rereading", None)
        if None in drafts or reread is None:
            return None
        options = build_options("compressor", level.method.compressor, level.method.options)
        moved = sum(map(self.kv_bytes, lengths)) + sum(filter(None, drafts))
        computed = sum(self.flop(*reread(options, length)) for length in lengths)
        return moved / machine.bytes_per_s + computed / machine.flop_per_s

    def decode_s(self, machine: Machine, cell: Cell, lengths: Sequence[int]) -> float | None:
        batches = [lengths[start : start + self.batch_size] for start in range(0, len(lengths), self.batch_size)]
        seconds = [self.batch_s(machine, cell, batch) for batch in batches]
        return None if None in seconds else sum(filter(None, seconds))

    def batch_s(self, machine: Machine, cell: Cell, lengths: Sequence[int]) -> float | None:
        """One batch to its last token, at the caches' mean length."""
        new, rows = cell.task.max_tokens, len(lengths)
        tail = rows * self.kv_bytes(new // 2)
        full = sum(self.kv_bytes(length) for length in lengths) + tail
        if cell.config.arm == "full":
            return new * self.step_s(machine, rows, full)
        token_s, width = 0.0, 0
        for level in cell.levels:
            parts = [self.level_bytes(level, length) for length in lengths]
            if None in parts:
                return None
            if level.method is not None:
                token_s = self.token_s(machine, rows, sum(filter(None, parts)) + tail, token_s, width)
            width = longest(level.config.draft_length)
        if cell.config.arm == "lossy":
            return new * token_s
        return new * self.token_s(machine, rows, full, token_s, width)

    def token_s(self, machine: Machine, rows: int, kv_bytes: int, draft_s: float, width: int) -> float:
        """Seconds for a token of each request on a level with so many bytes and `width` drafts of `draft_s` each."""
        round_s = width * draft_s + self.step_s(machine, rows * (width + 1), kv_bytes)
        return round_s / (1 + ASSUMED_ACCEPTANCE * width)

    def step_s(self, machine: Machine, rows: int, kv_bytes: int) -> float:
        """One pass of `rows` tokens over the weights that they need and `kv_bytes` of cache."""
        total, active = parameter_count(self.architecture), active_parameter_count(self.architecture)
        experts = self.architecture.experts
        share = 1.0 if experts is None else min(1.0, rows * experts.per_token / experts.count)
        least = 0.0 if experts is None else experts.per_token / experts.count
        weights = active + (total - active) * (share - least) / (1 - least) if least < 1 else total
        reading = (weights * self.element_bytes + kv_bytes) / machine.bytes_per_s
        return max(reading, 2 * active * rows / machine.flop_per_s)
