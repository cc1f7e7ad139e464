"""A dumped configuration loads back to an equal one, whatever it holds."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.config.conftest import GOOD
from vcbench.config.load import dump_config, load_config
from vcbench.config.sampling import Sampling
from vcbench.config.schema import (
    AdaptiveDraft,
    CellConfig,
    EngineConfig,
    LevelConfig,
    MethodConfig,
    MetricsConfig,
    ModelConfig,
    RunConfig,
    TaskConfig,
)

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,12}", fullmatch=True).filter(
    lambda name: name not in ("ngram", "full")
)
ADAPTIVE = st.builds(AdaptiveDraft, min=st.integers(1, 9), max=st.integers(9, 99), verify_cost=st.floats(0.1, 50))
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
COUNTS = st.integers(1, 2**63 - 1)
FINITE = st.floats(min_value=1.001, allow_nan=False, allow_infinity=False)


def _method(**options: Any) -> MethodConfig:
    return MethodConfig(compressor="probe", options=options)


METHODS = st.builds(
    _method,
    factor=FINITE,
    budget_tokens=st.none() | COUNTS,
    mode=st.sampled_from(["max", "mean"]),
    layers=st.lists(st.integers(-5, 5)).map(tuple),
    exact=st.booleans(),
    note=TEXT,
)
SAMPLING = st.builds(
    Sampling,
    temperature=st.floats(0, 1e9),
    top_k=st.integers(0, 2**63 - 1),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.01, 100),
    presence_penalty=st.floats(-2, 2),
    frequency_penalty=st.floats(-2, 2),
    logit_bias=st.dictionaries(st.integers(0, 10**18 - 1), st.floats(-100, 100), max_size=3),
    seed=st.none() | st.integers(0, 2**63 - 1),
)
TASKS = st.builds(
    TaskConfig,
    name=st.just("probe-task"),
    limit=st.none() | COUNTS,
    max_tokens=COUNTS,
    stop=st.lists(TEXT.filter(bool), max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    sampling=SAMPLING,
    options=st.builds(dict, words=COUNTS),
)


@st.composite
def configs(draw: st.DrawFn) -> RunConfig:
    methods = draw(st.dictionaries(NAMES, METHODS, max_size=3))
    used = {str(method): name for name, method in methods.items()}
    cells = [CellConfig(arm="full")]
    for name in used.values():
        cells.append(CellConfig(arm="lossy", method=name))
        for draft_length in draw(st.sets(COUNTS | ADAPTIVE, max_size=2)):
            cells.append(CellConfig(arm="vericache", method=name, draft_length=draft_length))
    upper = [LevelConfig(name=name, draft_length=draw(COUNTS | ADAPTIVE)) for name in used.values()]
    ngram = LevelConfig(name="ngram", draft_length=draw(COUNTS | ADAPTIVE), min_match=draw(COUNTS))
    for levels in ([ngram], [ngram, *upper], upper):
        cell = CellConfig(arm="vericache", levels=(*levels, LevelConfig(name="full")))
        if cell not in cells and (len(levels) > 1 or levels == [ngram]):
            cells.append(cell)
    return RunConfig(
        name=draw(NAMES),
        model=ModelConfig(
            id=draw(TEXT.filter(lambda text: text.strip() != "")),
            revision=draw(st.none() | TEXT),
            dtype=draw(st.sampled_from(["auto", "float32", "bfloat16", "float16"])),
            device=draw(st.sampled_from(["auto", "cpu", "cuda"])),
        ),
        tasks=(draw(TASKS),),
        cells=tuple(draw(st.permutations(cells))),
        methods=methods,
        engine=draw(
            st.builds(
                EngineConfig,
                exactness=st.sampled_from(["bitwise", "fast"]),
                batch_size=COUNTS,
                threads=COUNTS,
                prefill_chunk=COUNTS,
            )
        ),
        metrics=MetricsConfig(divergence=draw(st.booleans())),
        seed=draw(st.integers(0, 2**63 - 1)),
        output_dir=draw(TEXT.filter(lambda text: text.strip() != "")),
    )


@given(configs())
@settings(max_examples=60, deadline=None)
def test_round_trip(config: RunConfig) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "run.yaml"
        path.write_bytes(dump_config(config).encode())
        assert load_config(path) == config


@pytest.mark.parametrize("text", ["a\x85", "a\u2028b", "\ufeff", "emoji \U0001f600", " lead", "yes", "1e3", "a\nb\n\n"])
def test_awkward_texts(load: Callable[..., RunConfig], text: str) -> None:
    config = replace(load(GOOD), output_dir=text)
    assert load(dump_config(config)) == config


def test_every_default_is_written(load: Callable[..., RunConfig]) -> None:
    config = load(GOOD)
    written = yaml.safe_load(dump_config(config))
    assert written["engine"] == {
        "exactness": "bitwise", "batch_size": 1, "refill": False, "threads": 0, "prefill_chunk": 2048,
        "disk_directory": None,
    }  # fmt: skip
    assert written["methods"]["small"]["budget_tokens"] is None
    assert written["tasks"][0]["words"] == 10
    assert written["cells"][3]["draft_length"] == 25
    assert "places" not in written
    assert dump_config(config) == dump_config(config)
