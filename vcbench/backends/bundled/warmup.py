"""Runs every kernel once before the clock starts: compiling and first touches never enter a figure."""

from __future__ import annotations

from dataclasses import replace

from vcbench.backends.bundled.methods import Methods, cell_setup
from vcbench.backends.cells import Plan
from vcbench.compressors.base import prefill_for
from vcbench.engine.decoding.levels import Prefilled
from vcbench.engine.decoding.session import run_cell
from vcbench.engine.model.decoder import Decoder
from vcbench.engine.types import Request

WARM_UP_PROMPT = 200
WARM_UP_TOKENS = 6


def warm_up(decoder: Decoder, plan: Plan, methods: Methods) -> None:
    """Decodes a few tokens in every cell of a plan, after a prompt of arbitrary ids; nothing is recorded."""
    room = decoder.architecture.max_context - WARM_UP_TOKENS
    ids = tuple(index % decoder.architecture.vocab_size for index in range(min(WARM_UP_PROMPT, room)))
    prefill = prefill_for(methods.of_all(plan.cells), decoder, ids, chunk=len(ids))
    for cell in plan.cells:
        sampling = replace(cell.task.sampling, min_tokens=0)
        request = Request(id="warm-up", prompt_ids=ids, max_tokens=WARM_UP_TOKENS, sampling=sampling)
        setup = cell_setup(cell, plan.config, methods.of)
        run_cell(decoder, setup, [Prefilled(request, prefill)], on_end=lambda _: None)
