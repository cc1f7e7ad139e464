"""Threads that share a kernel's work: each takes parts of it by their number.

Numba translates the body of a `prange` again and again, each time with all that it calls, and every assignment to a
slice in a kernel with a `prange` becomes one more parallel loop. So kernels have none: the one loop of all kernels is
here, and calls their bodies by address.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, errors
from numba.extending import intrinsic

from vcbench.engine.kernels.cpu.separate import linked

_I64 = ir.IntType(64)
_ENTRY = (types.int64, types.int64)
"""Arguments of a body's entry: where the arguments of the body lie, and a number."""


@intrinsic
def fetch_add(typing_context: Any, address: Any, amount: Any) -> Any:
    """Adds to the int64 at an address, in one step for all threads; returns what it was before.

    What a thread wrote before its call is seen by whoever calls after it.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", target, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def _enter(typing_context: Any, entry: Any, arguments: Any, number: Any) -> Any:
    """Calls the entry at an address; False if what it entered raised an error."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = context.call_conv.get_function_type(types.none, _ENTRY)
        function = builder.inttoptr(args[0], kind.as_pointer())
        status, _ = context.call_conv.call_function(builder, function, types.none, _ENTRY, args[1:])
        return status.is_ok

    return types.boolean(types.int64, *_ENTRY), codegen


@numba.njit(parallel=True, nogil=True)
def _enter_each(count: int, entry: int, arguments: int, failures: int) -> None:
    for number in numba.prange(count):
        if not _enter(entry, arguments, np.int64(number)):
            fetch_add(failures, 1)


numba.get_num_threads()  # Starts numba's threads, without which a cached parallel loop cannot be loaded.


@linked(4)
def run_each(count: int, entry: int, arguments: int, failures: int) -> None:
    """Enters at `entry` with each number below `count`, on numba's threads; counts errors in the int64 `failures`."""
    _enter_each(count, entry, arguments, failures)


def _entry(context: Any, module: Any, body: Any, signature: Any, arguments: Any) -> Any:
    """Emits a function that takes the address of a tuple of arguments and a number, and calls `body` with both."""
    entry = ir.Function(
        module, context.call_conv.get_function_type(types.none, _ENTRY), module.get_unique_name("entry")
    )
    entry.linkage = "internal"
    build = ir.IRBuilder(entry.append_basic_block())
    at, number = context.call_conv.get_arguments(entry)
    place = build.inttoptr(at, context.get_value_type(arguments).as_pointer())
    values = cgutils.unpack_tuple(build, build.load(place), len(arguments))
    casts = zip(values, arguments.types, signature.args, strict=False)
    values = [context.cast(build, value, given, taken) for value, given, taken in casts]
    context.get_function(body, signature)(build, [*values, number])
    context.call_conv.return_value(build, context.get_dummy_value())
    return entry


@intrinsic
def _run(typing_context: Any, count: Any, body: Any, arguments: Any) -> Any:
    """`spread`, but returns how many numbers failed; the arguments are kept alive until then."""
    if not isinstance(arguments, types.BaseTuple):
        raise errors.TypingError("the arguments of a body come as a tuple")
    inner = body.get_call_type(typing_context, (*arguments.types, types.int64), {})

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        entry = _entry(context, builder.module, body, inner, arguments)
        place = cgutils.alloca_once_value(builder, args[2])
        failures = cgutils.alloca_once_value(builder, ir.Constant(_I64, 0))
        kind = ir.FunctionType(ir.VoidType(), [_I64] * 4)
        run = cgutils.get_or_insert_function(builder.module, kind, run_each.symbol)
        builder.call(run, [args[0], *(builder.ptrtoint(pointer, _I64) for pointer in (entry, place, failures))])
        return builder.load(failures)

    return types.int64(types.int64, body, arguments), codegen


@numba.njit(nogil=True, inline="always")
def spread(count: int, body: Any, arguments: Any) -> None:
    """body(*arguments, number) for each number below `count`, on numba's threads.

    Raises RuntimeError if any of them raised an error.
    """
    if _run(count, body, arguments):
        raise RuntimeError("a thread of a kernel failed")
