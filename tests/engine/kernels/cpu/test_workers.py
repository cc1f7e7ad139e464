"""What kernels call apart: functions by name or address, and bodies on several threads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from vcbench.engine import kernels
from vcbench.engine.kernels.cpu.separate import Separate, call_at, separate
from vcbench.engine.kernels.cpu.simd import address, load, store
from vcbench.engine.kernels.cpu.workers import fetch_add, spread


def adding(step: int) -> Separate:
    """Adds `step` to each of so many float32."""

    @separate(2)
    def add(numbers: int, count: int) -> None:
        for i in range(count):
            store(numbers + 4 * i, load(numbers + 4 * i) + np.float32(step))

    return add


@numba.njit(nogil=True)
def add_by(function: int, numbers: Any) -> None:
    """Calls it with a constant, too, which must come as a number of 64 bits."""
    call_at(function, (address(numbers), numbers.shape[0]))
    call_at(function, (address(numbers), 1))


@numba.njit(nogil=True)
def mark(seen: Any, offset: int, weights: Any, number: int) -> None:
    seen[number] += offset + weights[number]


@numba.njit(nogil=True)
def mark_all(seen: Any) -> None:
    """The weights are nobody's but the call's."""
    weights = np.arange(seen.shape[0])
    spread(seen.shape[0], mark, (seen, 5, weights))


@numba.njit(nogil=True)
def fail_at(bad: int, done: Any, number: int) -> None:
    if number == bad:
        raise ValueError("no")
    fetch_add(address(done), 1)


@numba.njit(nogil=True)
def fail(count: int, bad: int, done: Any) -> None:
    spread(count, fail_at, (bad, done))


@pytest.mark.parametrize("step", [1, 3])
def test_functions_of_one_source_are_called_by_their_addresses(step: int) -> None:
    numbers = np.zeros(4, np.float32)
    add_by(adding(step).address, numbers)

    assert numbers.tolist() == [2 * step, step, step, step]


def test_a_separate_function_answers_python_too() -> None:
    numbers = np.zeros(3, np.float32)
    adding(2)(numbers.ctypes.data, 2)

    assert numbers.tolist() == [2, 2, 0]


@pytest.mark.parametrize("count", [0, 1, 2, 7, 1000])
def test_each_number_is_met_once(count: int) -> None:
    seen = np.zeros(count, np.int64)
    mark_all(seen)

    np.testing.assert_array_equal(seen, 5 + np.arange(count))


def test_an_error_in_a_thread_is_an_error_of_the_call() -> None:
    done = np.zeros(1, np.int64)
    with pytest.raises(RuntimeError, match="a thread of a kernel failed"):
        fail(10, 4, done)
    assert done[0] == 9

    fail(10, 10, done)
    assert done[0] == 19


def test_no_kernel_has_a_parallel_loop_of_its_own() -> None:
    """Each would compile all that it calls three times more."""
    found = {
        path.name
        for path in Path(kernels.__file__).parent.rglob("*.py")
        if re.search(r"parallel=True|numba\.prange", path.read_text(encoding="utf-8"))
    }

    assert found == {"workers.py"}
