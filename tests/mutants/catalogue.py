"""The mutations: what a change by mistake, or a tempting simplification, would do to what vcbench promises."""

from __future__ import annotations

from tests.mutants.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="stop check misses one token after a stop id",
        file="vcbench/engine/progress.py",
        before="[:-1]",
        after="[:-2]",
        tests=("tests/engine/test_rounds.py",),
    ),
)
