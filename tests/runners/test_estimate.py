"""Estimates: bytes by arithmetic, times that order cells as they would run, and unknowns that stay unknown."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from vcbench import registry
from vcbench.backends.sources import plugin_sha256
from vcbench.config.schema import CellConfig, EngineConfig, MethodConfig, ModelConfig, RunConfig, TaskConfig
from vcbench.models.architecture import Architecture
from vcbench.models.catalog import known_architecture
from vcbench.models.shapes import parameter_count
from vcbench.runners.estimate import Machine, PlanEstimate, estimate, measure_machine
from vcbench.runners.plan import Identity, build_plan

HERE = Identity(device="cpu", dtype="float32", code_sha256="c0de", kernels={})
MACHINE = Machine(bytes_per_s=10e9, flop_per_s=50e9)


@dataclass(frozen=True, kw_only=True)
class KeepOptions:
    factor: float = field(default=4.0, metadata={"doc": "Full bytes over kept bytes."})


class Accounted:
    """A compressor that says what it would hold."""

    Options = KeepOptions
    summary = "for tests"

    @classmethod
    def unsupported(cls, options: KeepOptions, architecture: Architecture) -> str | None:
        return None

    @classmethod
    def estimate_bytes(cls, options: KeepOptions, architecture: Architecture, tokens: int, element_bytes: int) -> int:
        return int(architecture.kv_bytes_per_token(element_bytes) * tokens / options.factor)


class Silent:
    """One that does not."""

    Options = KeepOptions
    summary = "for tests"

    @classmethod
    def unsupported(cls, options: KeepOptions, architecture: Architecture) -> str | None:
        return None


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    for kind in registry.KINDS:
        registry.names(kind)
    entries = {("compressor", "accounted"): Accounted, ("compressor", "silent"): Silent, ("task", "ask"): Silent}
    registry._entries.update(entries)
    yield
    for key in entries:
        del registry._entries[key]
    plugin_sha256.cache_clear()


def _estimate(
    batch_size: int = 1,
    lengths: tuple[int, ...] = (1000, 3000),
    model: str = "smollm2-135m",
    machine: Machine | None = MACHINE,
) -> PlanEstimate:
    config = RunConfig(
        name="trial",
        model=ModelConfig(id=model),
        tasks=(TaskConfig(name="ask", max_tokens=128),),
        cells=(
            CellConfig(arm="full"),
            CellConfig(arm="lossy", method="a"),
            CellConfig(arm="vericache", method="a", draft_length=25),
            CellConfig(arm="lossy", method="s"),
        ),
        methods={
            "a": MethodConfig(compressor="accounted", options={"factor": 4.0}),
            "s": MethodConfig(compressor="silent", options={"factor": 4.0}),
        },
        engine=EngineConfig(batch_size=batch_size),
    )
    architecture = known_architecture(model)
    assert architecture is not None
    plan = build_plan(config, architecture=architecture, identity=HERE)
    return estimate(plan, {"ask": lengths}, dtype="float32", machine=machine)


def test_bytes_are_those_of_the_largest_batch() -> None:
    per_token = 2 * 30 * 3 * 64 * 4
    full, lossy, *_ = _estimate().cells
    assert full.full_bytes == per_token * (3000 + 128)
    assert full.draft_bytes is None
    assert lossy.draft_bytes == per_token * (3000 // 4 + 128)
    assert (lossy.prompts, lossy.prompt_tokens) == (2, 4000)
    assert _estimate(batch_size=2).cells[0].full_bytes == per_token * (1000 + 3000 + 2 * 128)


def test_weights_are_counted_once() -> None:
    architecture = known_architecture("smollm2-135m")
    assert architecture is not None
    assert _estimate().weights_bytes == 4 * parameter_count(architecture)


def test_times_order_the_cells() -> None:
    full, lossy, vericache, _ = (cell.decode_s for cell in _estimate(lengths=(6000, 6000)).cells)
    assert full is not None
    assert lossy is not None
    assert vericache is not None
    assert 0 < lossy < full
    assert lossy < vericache
    weights_alone = 2 * 128 * _estimate().weights_bytes / MACHINE.bytes_per_s
    assert full > weights_alone


def test_batching_reads_the_weights_once_for_all() -> None:
    alone, together = _estimate(), _estimate(batch_size=2)
    assert (together.cells[0].decode_s or 0) < (alone.cells[0].decode_s or 0)


def test_longer_prompts_take_longer_to_prefill_than_in_proportion() -> None:
    short, long = _estimate(lengths=(3000,)).prefill_s, _estimate(lengths=(6000,)).prefill_s
    assert short is not None
    assert long is not None
    assert long > 2 * short


def test_a_method_without_an_account_is_unknown() -> None:
    figures = _estimate()
    assert figures.cells[3].draft_bytes is None
    assert figures.cells[3].decode_s is None
    assert figures.total_s is None
    known = replace(figures, cells=figures.cells[:3])
    parts = [figures.prefill_s or 0, *(cell.decode_s or 0 for cell in known.cells)]
    assert known.total_s == pytest.approx(sum(parts))


def test_without_the_device_there_are_bytes_and_no_times() -> None:
    figures = _estimate(machine=None)
    assert figures.cells[0].full_bytes == _estimate().cells[0].full_bytes
    assert figures.prefill_s is None
    assert figures.total_s is None
    assert figures.cells[0].decode_s is None


def test_experts_are_read_as_far_as_they_are_used() -> None:
    name = "Qwen/Qwen3-Coder-30B-A3B-Instruct"
    one, many = _estimate(model=name, lengths=(1000,)), _estimate(model=name, lengths=(1000,) * 16, batch_size=16)
    seconds = one.cells[0].decode_s, many.cells[0].decode_s
    assert seconds[0] is not None
    assert seconds[1] is not None
    assert seconds[0] < 128 * one.weights_bytes / MACHINE.bytes_per_s / 5
    assert seconds[0] < seconds[1]


def test_the_machine_is_measured_quickly() -> None:
    measure_machine("cpu")
    begin = time.perf_counter()
    machine = measure_machine("cpu")
    assert time.perf_counter() - begin < 5
    assert machine.bytes_per_s > 1e8
    assert machine.flop_per_s > 1e8
