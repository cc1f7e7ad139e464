"""Runs every kernel once before the clock starts: compiling and first touches never enter a figure."""

from __future__ import annotations

from dataclasses import replace

from vcbench.compressors.base import prefill_for
from vcbench.engine.decoding.session import Prefilled, run_cell
from vcbench.engine.model.decoder import Decoder
from vcbench.engine.types import Request
from vcbench.runners.plan import Plan
from vcbench.runners.setup import cell_setup, make_compressor

WARM_UP_PROMPT = 200
WARM_UP_TOKENS = 6


def warm_up(decoder: Decoder, plan: Plan) -> None:
    """Decodes a few tokens in every cell of a plan, after a prompt of arbitrary ids; nothing is recorded."""
    room = decoder.architecture.max_context - WARM_UP_TOKENS
    ids = tuple(index % decoder.architecture.vocab_size for index in range(min(WARM_UP_PROMPT, room)))
    compressors = [compressor for cell in plan.cells if (compressor := make_compressor(cell))]
    prefill = prefill_for(compressors, decoder, ids, chunk=len(ids))
    for cell in plan.cells:
        sampling = replace(cell.task.sampling, min_tokens=0)
        request = Request(id="warm-up", prompt_ids=ids, max_tokens=WARM_UP_TOKENS, sampling=sampling)
        run_cell(decoder, cell_setup(cell, plan.config), [Prefilled(request, prefill)], on_end=lambda _: None)
