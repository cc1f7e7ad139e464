"""Says that kernels are being compiled, which happens once for each machine and version and takes a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from numba.core.event import Event, Listener, install_listener
from rich.console import Console

NOTICE = "compiling kernels for this machine, once; this may take a minute or two"


class _FirstCompilation(Listener):  # type: ignore[misc]
    """Prints the notice when numba begins to compile; what comes from its cache is not compiled."""

    def __init__(self, console: Console) -> None:
        self.console, self.said = console, False

    def on_start(self, event: Event) -> None:
        if not self.said:
            self.said = True
            self.console.print(NOTICE)

    def on_end(self, event: Event) -> None:
        pass


@contextmanager
def announced(console: Console) -> Iterator[None]:
    """Prints one line if any kernel has to be compiled inside."""
    with install_listener("numba:compile", _FirstCompilation(console)):
        yield
