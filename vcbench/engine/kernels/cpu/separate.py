"""Functions that are compiled once, apart from the kernels that call them.

Numba copies what a function calls into the function's own module, and all of that again into every caller's: a product
of tiles was optimised and translated dozens of times on its way into the kernels. A separate function has one fixed
signature and is translated once; kernels know its name or are handed its address, and no constant of theirs makes
another version of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, typeof_impl

_I64 = ir.IntType(64)


class Separate:
    """A function of int64 numbers, most of them addresses, that returns nothing and raises nothing.

    Python may call it too.
    """

    def __init__(self, function: Callable[..., None], arguments: int) -> None:
        self.function, self.arguments = function, arguments

    @cached_property
    def compiled(self) -> Any:
        """Compiled now, in an earlier process, or before."""
        return numba.cfunc(types.void(*[types.int64] * self.arguments), cache=True)(self.function)

    @property
    def address(self) -> int:
        """What `call_at` takes; compiles the function if that has not been done."""
        address: int = self.compiled.address
        return address

    def __call__(self, *arguments: int) -> None:
        self.compiled.ctypes(*arguments)


class Linked(Separate):
    """A separate function that kernels call by its name. It is compiled as soon as it is defined."""

    def __init__(self, function: Callable[..., None], arguments: int) -> None:
        super().__init__(function, arguments)
        self.symbol = f"{function.__module__}.{function.__qualname__}"
        llvm.add_symbol(self.symbol, self.address)


@typeof_impl.register(Linked)
def _type_of_linked(value: Linked, _context: Any) -> Any:
    return types.ExternalFunction(value.symbol, types.void(*[types.int64] * value.arguments))


def separate(arguments: int) -> Callable[[Callable[..., None]], Separate]:
    """Decorates a function of so many int64; it is compiled when its address is asked for."""
    return lambda function: Separate(function, arguments)


def linked(arguments: int) -> Callable[[Callable[..., None]], Linked]:
    """Decorates a function of so many int64 that kernels call by name."""
    return lambda function: Linked(function, arguments)


@intrinsic
def call_at(typing_context: Any, address: Any, arguments: Any) -> Any:
    """Calls the separate function at an address with a tuple of int64."""
    count = len(arguments)

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_I64] * count)
        function = builder.inttoptr(args[0], kind.as_pointer())
        builder.call(function, [builder.extract_value(args[1], index) for index in range(count)])
        return context.get_dummy_value()

    return types.void(types.int64, types.UniTuple(types.int64, count)), codegen
