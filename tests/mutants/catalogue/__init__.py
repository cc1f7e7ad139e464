"""The mutations: what a change by mistake, or a tempting simplification, would do to what vcbench promises."""

from __future__ import annotations

from tests.mutants.catalogue import engine, gate, numbers, records
from tests.mutants.mutation import Mutation

MUTATIONS: tuple[Mutation, ...] = (*engine.MUTATIONS, *records.MUTATIONS, *numbers.MUTATIONS, *gate.MUTATIONS)
