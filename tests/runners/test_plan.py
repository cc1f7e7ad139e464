"""Cell ids change with everything that can change an answer and with nothing else; impossible cells are refused."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from vcbench import registry
from vcbench.backends.bundled.identity import identify, with_model
from vcbench.backends.cells import UNKNOWN, Identity
from vcbench.backends.sources import plugin_sha256
from vcbench.config.sampling import Sampling
from vcbench.config.schema import (
    CellConfig,
    EngineConfig,
    MethodConfig,
    MetricsConfig,
    ModelConfig,
    RunConfig,
    TaskConfig,
)
from vcbench.errors import ConfigError
from vcbench.models.architecture import Architecture, Rope
from vcbench.models.store import ModelFiles
from vcbench.runners.plan import build_plan, cell_id

TINY = Architecture(
    family="llama",
    vocab_size=64,
    hidden_size=16,
    intermediate_size=32,
    n_layers=2,
    n_heads=2,
    n_kv_heads=1,
    head_dim=8,
    norm_eps=1e-5,
    max_context=64,
    eos_ids=frozenset({2, 1}),
)
HERE = Identity(device="cpu", dtype="float32", code_sha256="c0de", kernels={"torch": "2", "numba": "1"})
SEEN = replace(
    HERE,
    weights_sha256="77",
    tokenizer_sha256="88",
    architecture_sha256="99",
    revision="main",
    stop_ids=(1, 2),
)


@dataclass(frozen=True, kw_only=True)
class ProbeOptions:
    keep: float = field(default=0.5, metadata={"doc": "Kept part."})


class Probe:
    Options = ProbeOptions
    summary = "for tests"

    @classmethod
    def unsupported(cls, options: ProbeOptions, architecture: Architecture) -> str | None:
        return "the tiny model keeps at least a tenth" if options.keep < 0.1 else None


class ProbeTask:
    Options = ProbeOptions
    summary = "for tests"


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    for kind in registry.KINDS:
        registry.names(kind)
    entries: dict[tuple[str, str], type[Any]] = {("compressor", "half"): Probe, ("task", "ask"): ProbeTask}
    registry._entries.update(entries)
    plugin_sha256.cache_clear()
    yield
    for key in entries:
        del registry._entries[key]
    plugin_sha256.cache_clear()


TASK = TaskConfig(name="ask", limit=2, max_tokens=8, options={"keep": 0.5})
FULL = CellConfig(arm="full")
DRAFT = CellConfig(arm="vericache", method="m", draft_length=5)
RUN = RunConfig(
    name="trial",
    model=ModelConfig(id="tiny"),
    tasks=(TASK,),
    cells=(DRAFT, FULL, CellConfig(arm="lossy", method="m")),
    methods={"m": MethodConfig(compressor="half", options={"keep": 0.5})},
)


def base() -> str:
    """The id that every change is compared with."""
    return cell_id(RUN, TASK, DRAFT, SEEN)


def test_ids_are_16_hex_digits_and_stable() -> None:
    assert len(base()) == 16
    assert int(base(), 16) >= 0
    assert cell_id(RUN, TASK, DRAFT, SEEN) == base()


@pytest.mark.parametrize(
    "change",
    [
        {"weights_sha256": "78"},
        {"tokenizer_sha256": "89"},
        {"architecture_sha256": "00"},
        {"revision": "v2"},
        {"stop_ids": (2,)},
        {"device": "cuda"},
        {"dtype": "bfloat16"},
        {"code_sha256": "c0df"},
        {"kernels": {"torch": "2", "numba": "2"}},
        {"kernels": {"torch": "2.1", "numba": "1"}},
    ],
)
def test_model_machine_and_code_count(change: dict[str, Any]) -> None:
    assert cell_id(RUN, TASK, DRAFT, replace(SEEN, **change)) != base()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"engine": EngineConfig(exactness="fast")},
        {"engine": EngineConfig(prefill_chunk=512)},
        {"model": replace(RUN.model, template={"enable_thinking": False})},
        {"methods": {"m": MethodConfig(compressor="half", options={"keep": 0.501})}},
    ],
)
def test_configuration_that_counts(change: dict[str, Any]) -> None:
    assert cell_id(replace(RUN, **change), TASK, DRAFT, SEEN) != base()


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": 9},
        {"stop": ("x",)},
        {"ignore_eos": True},
        {"sampling": Sampling(temperature=1.0)},
        {"sampling": Sampling(seed=1)},
        {"sampling": Sampling(logit_bias={3: 1.0})},
        {"options": {"keep": 0.25}},
    ],
)
def test_tasks_count(change: dict[str, Any]) -> None:
    assert cell_id(RUN, replace(TASK, **change), DRAFT, SEEN) != base()


def test_arms_and_draft_lengths_count() -> None:
    cells = [DRAFT, FULL, CellConfig(arm="lossy", method="m"), replace(DRAFT, draft_length=6)]
    assert len({cell_id(RUN, TASK, cell, SEEN) for cell in cells}) == 4


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"output_dir": "elsewhere"},
        {"engine": EngineConfig(batch_size=8)},
        {"engine": EngineConfig(threads=1)},
        {"metrics": MetricsConfig(divergence=False)},
        {"places": {"cells.0": "x.yaml:3"}},
    ],
)
def test_what_cannot_change_an_answer_is_left_out(change: dict[str, Any]) -> None:
    assert cell_id(replace(RUN, **change), replace(TASK, limit=9), DRAFT, SEEN) == base()


def test_names_of_methods_are_left_out() -> None:
    renamed = replace(RUN, methods={"n": RUN.methods["m"]})
    assert cell_id(renamed, TASK, replace(DRAFT, method="n"), SEEN) == base()


def test_other_methods_leave_a_cell_as_it_is() -> None:
    more = replace(RUN, methods={**RUN.methods, "n": MethodConfig(compressor="half", options={"keep": 0.3})})
    assert cell_id(more, TASK, DRAFT, SEEN) == base()


@pytest.mark.parametrize("change", [{"batch_size": 8}, {"threads": 7}])
def test_batch_and_threads_count_without_bit_exactness(change: dict[str, Any]) -> None:
    def of(engine: EngineConfig) -> str:
        return cell_id(replace(RUN, engine=engine), TASK, DRAFT, SEEN)

    assert of(EngineConfig(exactness="fast")) != of(EngineConfig(exactness="fast", **change))


def test_the_model_completes_the_identity(tmp_path: Path) -> None:
    def files(architecture: Architecture) -> ModelFiles:
        return ModelFiles(
            id="tiny",
            path=tmp_path,
            revision="v1",
            architecture=architecture,
            weights_sha256="77",
            stop_ids=frozenset({2, 1}),
        )

    before = with_model(HERE, files(TINY))
    assert (before.weights_sha256, before.revision, before.stop_ids) == ("77", "v1", (1, 2))
    scaled = with_model(HERE, files(replace(TINY, rope=Rope(kind="linear", factor=2.0))))
    assert scaled.architecture_sha256 != before.architecture_sha256
    (tmp_path / "notes.txt").write_text("no part of the tokenizer")
    assert with_model(HERE, files(TINY)) == before
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    templated = with_model(HERE, files(TINY))
    assert templated.tokenizer_sha256 != before.tokenizer_sha256
    (tmp_path / "tokenizer.json").write_text("{}")
    assert with_model(HERE, files(TINY)).tokenizer_sha256 != templated.tokenizer_sha256


def test_the_source_of_a_plug_in_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Elsewhere(Probe):
        pass

    Elsewhere.__module__ = "plug_in_for_tests"
    module = types.ModuleType("plug_in_for_tests")
    module.__file__ = str(tmp_path / "plug_in.py")
    Path(module.__file__).write_text("one")
    monkeypatch.setitem(sys.modules, "plug_in_for_tests", module)
    monkeypatch.setitem(registry._entries, ("compressor", "half"), Elsewhere)
    plugin_sha256.cache_clear()
    before = cell_id(RUN, TASK, DRAFT, SEEN)
    Path(module.__file__).write_text("two")
    plugin_sha256.cache_clear()
    assert cell_id(RUN, TASK, DRAFT, SEEN) != before
    plugin_sha256.cache_clear()


def test_plan_lists_tasks_then_cells() -> None:
    second = replace(TASK, name="ask", max_tokens=9)
    plan = build_plan(replace(RUN, tasks=(TASK,)), architecture=TINY, identity=SEEN)
    assert [cell.label for cell in plan.cells] == ["vericache m k=5", "full", "lossy m"]
    assert plan.cells[0].id == base()
    assert [level.method for level in plan.cells[0].levels] == [RUN.methods["m"]]
    assert plan.cells[1].levels == ()
    assert [cell.config.arm for cell in plan.of_task("ask")] == ["full", "vericache", "lossy"]
    assert plan.final
    both = build_plan(replace(RUN, tasks=(TASK, replace(second, name="ask"))), architecture=TINY, identity=SEEN)
    assert len({cell.id for cell in both.cells}) == 6


def test_a_plan_before_the_weights_are_there_says_so() -> None:
    plan = build_plan(RUN, architecture=TINY, identity=HERE)
    assert not plan.final
    assert plan.cells[0].id != base()
    assert HERE.weights_sha256 == UNKNOWN


def test_every_impossible_cell_is_named() -> None:
    config = replace(
        RUN,
        tasks=(replace(TASK, max_tokens=64),),
        cells=(FULL, replace(DRAFT, draft_length=64), CellConfig(arm="lossy", method="tenth")),
        methods={**RUN.methods, "tenth": MethodConfig(compressor="half", options={"keep": 0.05})},
        places={"cells.1": "run.yaml:9"},
    )
    with pytest.raises(ConfigError) as caught:
        build_plan(config, architecture=TINY, identity=SEEN)
    assert [problem.where for problem in caught.value.problems] == ["tasks.0", "run.yaml:9", "cells.2"]
    assert "keeps at least a tenth" in caught.value.problems[2].message


def test_identity_of_this_machine() -> None:
    identity = identify(replace(RUN, model=ModelConfig(id="tiny", device="cpu")))
    assert (identity.device, identity.dtype) == ("cpu", "float32")
    assert {"torch", "numba", "llvmlite", "cpu", "core"} == set(identity.kernels)
    assert len(identity.code_sha256) == 64
    half = identify(replace(RUN, model=ModelConfig(id="tiny", device="cpu", dtype="bfloat16")))
    assert half.dtype == "bfloat16"


def test_missing_device_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="no CUDA device is usable"):
        identify(replace(RUN, model=ModelConfig(id="tiny", device="cuda")))


def test_a_missing_device_can_be_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    identity = identify(replace(RUN, model=ModelConfig(id="tiny", device="cuda")), planning=True)
    assert (identity.device, identity.dtype, identity.kernels["gpu"]) == ("cuda", "bfloat16", UNKNOWN)
    seen = replace(identity, weights_sha256="77", tokenizer_sha256="88")
    assert not build_plan(RUN, architecture=TINY, identity=seen).final
