"""The log of queries holds what has not been judged yet, and no more."""

from __future__ import annotations

import torch

from vcbench.engine.kv.query_log import QueryLog


def test_it_is_trimmed_to_what_is_kept() -> None:
    log, row = QueryLog(), torch.zeros(1, 4, 8)
    for position in range(1000):
        for layer in range(2):
            log.note(layer, position, row + position)
        log.keep(position, position + 1)
        assert log.nbytes() == 2 * row.nbytes
        assert log.row(position - 1) is None
        found = log.row(position)
        assert found is not None
        assert all(bool((each == position).all()) for each in found)
    log.keep(1000, 1000)
    assert log.nbytes() == 0
