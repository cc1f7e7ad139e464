"""Work that threads take one by one: whoever is free takes the next task, so that nobody waits for a late thread."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic
def fetch_add(typing_context: Any, address: Any, amount: Any) -> Any:
    """Adds to the int64 at an address, in one step for all threads; returns what it was before.

    What a thread wrote before its call is seen by whoever calls after it.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        target = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", target, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen
