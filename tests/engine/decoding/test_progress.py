"""What an observer of commits is shown is what the records say."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch

from tests.compressors.examples import make
from tests.engine import tiny
from tests.engine.cells import METHODS, prefilled, request
from vcbench.config.schema import Arm
from vcbench.engine.decoding.progress import Committed
from vcbench.engine.decoding.session import CellSetup, run_cell
from vcbench.engine.types import Generation
from vcbench.forensics.faulty import Engine


@pytest.mark.parametrize("arm", ["full", "lossy", "vericache"])
@pytest.mark.parametrize(
    "run", [run_cell, Engine("eos_only_checked_at_block_end"), Engine("cap_before_stop")], ids=["sound", "end", "cap"]
)
def test_an_observer_sees_every_token_once_and_the_logits_that_chose_it(arm: Arm, run: Any) -> None:
    ids = [tiny.token_ids(n, seed=n) for n in (30, 9)]
    free: list[Generation] = []
    run_cell(tiny.decoder(), CellSetup(arm="full"), [prefilled(request(ids[0]))], on_end=free.append)
    stops = frozenset({free[0].token_ids[6]})
    batch = [prefilled(request(each, str(n), 11 + n, stop_ids=stops)) for n, each in enumerate(ids)]
    compressor = None if arm == "full" else make(METHODS["snapkv"])
    seen: dict[str, list[Committed]] = {"0": [], "1": []}

    def observe(committed: Committed) -> None:
        seen[committed.request_id].append(committed)

    ended: list[Generation] = []
    setup = CellSetup(arm=arm, compressor=compressor, draft_length=4 if arm == "vericache" else 0)
    run(tiny.decoder(), setup, batch, on_end=ended.append, observe=observe)

    for done in ended:
        commits = seen[done.request_id]
        assert [token for each in commits for token in each.token_ids] == done.token_ids
        assert [each.first for each in commits] == [
            sum(len(before.token_ids) for before in commits[:n]) for n in range(len(commits))
        ]
        assert all(len(each.logits) == len(each.token_ids) for each in commits)
        rows = torch.cat([each.logits for each in commits])
        assert hashlib.sha256(rows.numpy().tobytes()).hexdigest() == done.logits_sha256
        if arm == "vericache":
            assert [len(each.token_ids) for each in commits] == [1, *(each.committed for each in done.rounds)]
