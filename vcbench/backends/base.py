"""What a run needs of whatever answers its requests. The runner knows backends by this interface alone.

Life of a backend: `identity` and `capabilities` before anything is loaded; `open` once there is something to do; then
for each batch `admit`, `serve` for each cell, `measure` for each cell whose divergence is wanted, and `release`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vcbench.backends.cells import Cell, Identity, Plan
from vcbench.config.schema import Arm, RunConfig
from vcbench.engine.types import BatchTiming, Generation, Request
from vcbench.models.store import ModelFiles
from vcbench.records.schema import RequestLine

if TYPE_CHECKING:
    from vcbench.calibration.base import Calibration
    from vcbench.engine.decoding.teacher_forced import Divergence


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can serve and give. What it cannot is missing in the records, and tables and guards say so.

    arms: those that it can decode in. logit_hashes: a hash over the logits of every answer's tokens. kv_bytes: what its
    caches hold, counted from the caches themselves. divergence: `measure`. phases: seconds of drafting and of
    verification apart. prefill: seconds of each prompt's prefill. refill: `engine.refill`, taking the next request in
    as one ends.
    """

    arms: tuple[Arm, ...]
    logit_hashes: bool = False
    kv_bytes: bool = False
    divergence: bool = False
    phases: bool = False
    prefill: bool = False
    refill: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """A request and the cells that it is asked of."""

    request: Request
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a request can be served. prefill_s: seconds of its prefill, 0 where unknown; error: why it cannot be."""

    request_id: str
    prefill_s: float = 0.0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Serving:
    """A batch in one cell. `timing` is complete once the generations, which come as they end, are exhausted."""

    generations: Iterator[Generation]
    timing: BatchTiming

    def __iter__(self) -> Iterator[Generation]:
        return self.generations


@dataclass(frozen=True, slots=True)
class Pair:
    """A request's recorded answers of full KV and of the cell that is compared with it."""

    full: RequestLine
    cell: RequestLine


class Backend(ABC):
    """Something that answers the requests of a plan's cells."""

    name: ClassVar[str]

    @abstractmethod
    def identity(self) -> Identity:
        """What the answers depend on besides the configuration; part of every cell's id. Nothing is loaded for it."""

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What the backend can give."""

    def calibrations(self) -> Mapping[str, Calibration]:
        """What was fitted to the model for the configured methods, by their names."""
        return {}

    def facts(self) -> Mapping[str, Any]:
        """What of it is worth recording and known before it is opened, as JSON."""
        return {}

    def cell_facts(self, cell: Cell) -> Mapping[str, Any]:
        """The same of a cell, such as `cache_class`, which the gate holds the answers' own against."""
        return {}

    def at_work(self, say: Callable[[str], None]) -> AbstractContextManager[None]:
        """Goes around everything from `open` on; `say` tells the user of what takes long."""
        return nullcontext()

    @abstractmethod
    def open(self, plan: Plan, stage: Callable[[str], None]) -> Mapping[str, Any]:
        """Gets ready to serve a plan's cells; returns what was found out on the way, as JSON, which is recorded.

        `stage` is told what is being done. The same run resumed must find the same. Raises ModelError, or InexactError
        where exactness cannot be had.
        """

    @abstractmethod
    def admit(self, batch: Sequence[Asked]) -> Iterator[Admission]:
        """Makes a batch of requests ready for all their cells, one after the other, in their order."""

    @abstractmethod
    def serve(self, cell: Cell, requests: Sequence[Request]) -> Serving:
        """Answers requests that were admitted, in one cell; what failed on the way is a generation with an error."""

    def measure(
        self, cell: Cell, full: Cell, pairs: Sequence[Pair], beside: Sequence[Request]
    ) -> Mapping[str, Divergence]:
        """The divergence of each pair by request, of requests still admitted; asked where `divergence` is given.

        beside: all that the cell decoded together, the pairs' requests among them.
        """
        raise NotImplementedError(f"backend {self.name} measures no divergence")

    @abstractmethod
    def release(self) -> None:
        """Forgets the batch."""


MakeBackend = Callable[[RunConfig, ModelFiles], Backend]
"""A backend for a configuration and the model that it names; raises ConfigError before anything is loaded."""
