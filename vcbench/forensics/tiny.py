"""The gate's own small run: a tiny model, prompts of random tokens, greedy and drawn, every kind of cache."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from vcbench.config.options import build_options
from vcbench.config.sampling import Sampling
from vcbench.config.schema import (
    FULL,
    NGRAM,
    CellConfig,
    EngineConfig,
    LevelConfig,
    MethodConfig,
    MetricsConfig,
    ModelConfig,
    RunConfig,
    TaskConfig,
)
from vcbench.models.tiny import SPECIAL, tiny_model, words
from vcbench.records.files import replace_file

TINY = "tiny"
"""What stands for this run where a configuration is asked for."""
SEED = 3
"""Its outputs end early, late, and in the block that reaches the cap, so that every fault finds something."""
REQUESTS = 16
MAX_TOKENS = 46
DRAWN_REQUESTS = 8
"""How many of them are also answered with drawn tokens, penalties and stop strings."""
DRAWN_MAX_TOKENS = 40
"""One of these answers stops in the block that would reach the cap."""
GREEDY = Sampling()
PENALISED = Sampling(repetition_penalty=1.5)
DRAWN = Sampling(temperature=0.7, repetition_penalty=1.2, frequency_penalty=0.2)
STOP_STRINGS = ("ma", "zo")
PROMPT_TOKENS = (150, 250)
METHODS = {
    "snapkv-2x": MethodConfig(compressor="snapkv", options={"factor": 2.0, "window": 8}),
    "kivi-2bit": MethodConfig(compressor="kivi", options={"bits": 2, "residual": 32}),
}
CELLS = (
    CellConfig(arm="full"),
    CellConfig(arm="vericache", method="snapkv-2x", draft_length=6),
    CellConfig(arm="vericache", method="kivi-2bit", draft_length=9),
)

CASCADE = (
    CELLS[0],
    CellConfig(
        arm="vericache",
        levels=(
            LevelConfig(name=NGRAM, draft_length=3, min_match=1),
            LevelConfig(name="snapkv-2x", draft_length=6),
            LevelConfig(name=FULL),
        ),
    ),
)
"""Two levels that draft, one above the other."""
GATE_METHODS = {**METHODS, "none": MethodConfig(compressor="none")}
GATE_CELLS = (
    *CELLS,
    CellConfig(arm="vericache", method="none", draft_length=5),
    CellConfig(arm="vericache", method="snapkv-2x", draft_length=4, full_cache="disk"),
    CASCADE[1],
)
"""With `none`, whose drafts must all be right, what goes wrong in drafting alone is noticed too."""


def gate_config(name: str) -> RunConfig:
    """What `vcbench check tiny` runs: greedy answers, and under another task's name drawn ones."""
    made = tiny_config(name, methods=GATE_METHODS, cells=GATE_CELLS)
    (greedy,) = made.tasks
    drawn = replace(
        greedy, name="jsonl", limit=DRAWN_REQUESTS, max_tokens=DRAWN_MAX_TOKENS, sampling=DRAWN, stop=STOP_STRINGS
    )
    return replace(made, tasks=(greedy, drawn))


def tiny_config(
    name: str,
    *,
    seed: int = SEED,
    requests: int = REQUESTS,
    batch_size: int = 4,
    sampling: Sampling = GREEDY,
    methods: Mapping[str, MethodConfig] = METHODS,
    cells: Sequence[CellConfig] = CELLS,
) -> RunConfig:
    """The run as a configuration; its model and its prompts are written under vcbench's cache directory."""
    directory = tiny_model(seed)
    path = directory / f"prompts-{requests}.jsonl"
    if not path.is_file():
        replace_file(path, tiny_prompts(requests, seed).encode())
    return RunConfig(
        name=name,
        model=ModelConfig(id=str(directory), dtype="float32", device="cpu"),
        tasks=(TaskConfig(name="trace", max_tokens=MAX_TOKENS, sampling=sampling, options=_trace(path)),),
        cells=tuple(cells),
        methods={key: _complete(method) for key, method in methods.items()},
        engine=EngineConfig(batch_size=batch_size, threads=1),
        metrics=MetricsConfig(divergence=False),
    )


def tiny_prompts(requests: int, seed: int) -> str:
    """A JSONL file of prompts of random syllables."""
    draw = random.Random(seed)
    lines = []
    for number in range(requests):
        ids = draw.choices(range(len(SPECIAL), len(words())), k=draw.randint(*PROMPT_TOKENS))
        lines.append(json.dumps({"id": f"r{number:03}", "prompt_ids": ids}))
    return "\n".join(lines) + "\n"


def _trace(path: Path) -> dict[str, object]:
    options = build_options("task", "trace", {"path": str(path)})
    return {key: getattr(options, key) for key in options.__dataclass_fields__}


def _complete(method: MethodConfig) -> MethodConfig:
    """The method with every default written out, as a configuration that was read has it."""
    options = build_options("compressor", method.compressor, method.options)
    return MethodConfig(
        compressor=method.compressor, options={key: getattr(options, key) for key in options.__dataclass_fields__}
    )
