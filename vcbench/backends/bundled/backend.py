"""The bundled engine as a backend: loads the model, prefills prompts, decodes cells, measures divergence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from typing import Any, get_args

from vcbench.backends.base import Admission, Asked, Backend, Capabilities, Pair, Serving
from vcbench.backends.bundled.calibrations import find_calibrations
from vcbench.backends.bundled.compiling import announced
from vcbench.backends.bundled.divergences import Divergences
from vcbench.backends.bundled.drafts import Drafts, SharedCompressor
from vcbench.backends.bundled.identity import identify, with_model
from vcbench.backends.bundled.load import load
from vcbench.backends.bundled.methods import Methods, cell_setup
from vcbench.backends.bundled.warmup import warm_up
from vcbench.backends.cells import Cell, Identity, Plan
from vcbench.calibration.base import Calibration
from vcbench.compressors.base import Wants, prefill_for
from vcbench.config.schema import Arm, RunConfig
from vcbench.engine.decoding.levels import Prefilled
from vcbench.engine.decoding.session import CellSetup, MakeSession, Session, decode_cell, refill
from vcbench.engine.decoding.stopping import check_request
from vcbench.engine.decoding.teacher_forced import Divergence
from vcbench.engine.environment import set_threads
from vcbench.engine.model.decoder import Prefill
from vcbench.engine.model.draft_weights import bytes_beside
from vcbench.engine.model.linear import PROBE_ROWS, PROBE_TILES
from vcbench.engine.types import BatchTiming, Generation, Request
from vcbench.errors import RequestError
from vcbench.models.instruction import InstructionWriter
from vcbench.models.store import ModelFiles
from vcbench.models.tokenizer import TextStream, Tokenizer


def batched(pairs: Sequence[Pair], size: int) -> Iterator[Sequence[Pair]]:
    """The pairs, so many at a time."""
    for start in range(0, len(pairs), size):
        yield pairs[start : start + size]


class Bundled(Backend):
    """vcbench's own engine on a model's weights."""

    name = "bundled"

    def __init__(
        self, config: RunConfig, files: ModelFiles, *, session: MakeSession = Session, fault: str | None = None
    ) -> None:
        """`fault` names what is wrong with a `session` that the lossless gate has broken on purpose.

        Raises ConfigError where the device or a calibration is missing.
        """
        self.config, self.files, self.session, self.fault = config, files, session, fault
        self._identity = with_model(identify(config, fault=fault), files)
        self._calibrations = find_calibrations(config, files)
        self._tokenizer = Tokenizer.from_files(files)
        self._threads = set_threads(config.engine.threads)
        self._batch: dict[str, Prefilled] = {}
        self._drafts = Drafts()

    def identity(self) -> Identity:
        return self._identity

    def capabilities(self) -> Capabilities:
        return Capabilities(
            arms=get_args(Arm),
            logit_hashes=True,
            kv_bytes=True,
            divergence=True,
            phases=True,
            prefill=True,
            refill=True,
        )

    def calibrations(self) -> Mapping[str, Calibration]:
        return self._calibrations

    def facts(self) -> Mapping[str, Any]:
        return {
            "decoding_threads": self._threads,
            **({"injected_fault": self.fault} if self.fault is not None else {}),
        }

    def cell_facts(self, cell: Cell) -> Mapping[str, Any]:
        made = Methods([cell])
        classes = {level.name: made.of(level.name).cache_class.__name__ for level in cell.compressing}
        uppermost = classes.get(cell.levels[-1].name) if cell.levels else "FullCache"
        return {"cache_class": uppermost, "level_classes": classes}

    def at_work(self, say: Callable[[str], None]) -> AbstractContextManager[None]:
        return announced(say)

    def open(self, plan: Plan, stage: Callable[[str], None]) -> Mapping[str, Any]:
        stage("loading the model")
        self._decoder, tiles = load(self.files, self._identity, self.config.engine.exactness)
        self._methods = Methods(plan.cells)
        stage("warming up")
        warm_up(self._decoder, plan, self._methods)
        return {
            "row_tiles": tiles,
            "probe": {"rows": list(PROBE_ROWS), "tiles": list(PROBE_TILES)} if tiles else None,
            "draft_weight_bytes": bytes_beside(self._decoder),
        }

    def admit(self, batch: Sequence[Asked]) -> Iterator[Admission]:
        for asked in batch:
            name = asked.request.id
            try:
                self._check(asked.request)
            except RequestError as error:
                yield Admission(name, error=str(error))
                continue
            if self.config.engine.refill:
                yield Admission(name)
                continue
            prefilled = self._batch[name] = self._prefill(asked.request, asked.cells)
            self._expect(prefilled, asked.cells)
            spent = prefilled.prefill.time
            yield Admission(name, prefill_s=spent.total_s if spent is not None else 0.0)

    def serve(self, cell: Cell, requests: Sequence[Request]) -> Serving:
        timing = BatchTiming()
        decode = self._decode_queue if self.config.engine.refill else self._decode
        return Serving(decode(cell, requests, timing), timing)

    def measure(
        self, cell: Cell, full: Cell, pairs: Sequence[Pair], beside: Sequence[Request]
    ) -> Mapping[str, Divergence]:
        measuring = Divergences(self._decoder, self.session, self._setup, self._text)
        if not self.config.engine.refill:
            return measuring.of(cell, full, pairs, [self._batch[request.id] for request in beside])
        found, asked = dict[str, Divergence](), {request.id: request for request in beside}
        for some in batched(pairs, self.config.engine.batch_size):
            found |= measuring.of(
                cell, full, some, [self._prefill(asked[pair.full.request], (full, cell)) for pair in some]
            )
        return found

    def release(self) -> None:
        self._batch, self._drafts = {}, Drafts()

    def _check(self, request: Request) -> None:
        architecture = self.files.architecture
        check_request(request, vocab_size=architecture.vocab_size, max_context=architecture.max_context)

    def _prefill(self, request: Request, cells: Sequence[Cell]) -> Prefilled:
        prefill = prefill_for(
            self._methods.of_all(cells),
            self._decoder,
            request.prompt_ids,
            chunk=self.config.engine.prefill_chunk,
            instruct=InstructionWriter(self._tokenizer),
        )
        return Prefilled(request, prefill)

    def _expect(self, prefilled: Prefilled, cells: Sequence[Cell]) -> None:
        """Every cell decodes once, and lossy ones are measured once more."""
        for cell in cells:
            measured = self.config.metrics.divergence and cell.config.arm == "lossy"
            for level in cell.compressing:
                self._drafts.expect(prefilled.prefill, level.name, 1 + measured)

    def _decode(self, cell: Cell, requests: Sequence[Request], timing: BatchTiming) -> Iterator[Generation]:
        """What the session gives, with each request charged what the cell would have needed by itself."""
        setup = self._setup(cell)
        batch = [self._batch[request.id] for request in requests]
        shared = [level.drafts_by for level in setup.levels if isinstance(level.drafts_by, SharedCompressor)]
        decoding = decode_cell(self._decoder, setup, batch, stream=self._text, session=self.session)
        while True:
            try:
                generation = next(decoding)
            except StopIteration as end:
                spent: BatchTiming = end.value
                break
            prefill = self._batch[generation.request_id].prefill
            generation.prefill_s = prefill_alone(prefill, shared)
            generation.compress_s += sum(compressor.uncharged_s(prefill) for compressor in shared)
            yield generation
        for name in BatchTiming.__slots__:
            setattr(timing, name, getattr(spent, name))
        timing.compress_s += sum(compressor.uncharged_s(item.prefill) for compressor in shared for item in batch)
        timing.compressed_before = sum(compressor.copied for compressor in shared)

    def _decode_queue(self, cell: Cell, requests: Sequence[Request], timing: BatchTiming) -> Iterator[Generation]:
        """The same with every prompt prefilled for this cell alone, when there is room for it in the batch."""
        seconds: dict[str, float] = {}

        def queue() -> Iterator[Prefilled]:
            for request in requests:
                item = self._prefill(request, (cell,))
                seconds[request.id] = item.prefill.time.total_s if item.prefill.time is not None else 0.0
                yield item
                del item

        setup = cell_setup(cell, self.config, self._methods.of)
        with closing(self.session(self._decoder, setup, stream=self._text)) as opened:
            for generation in refill(opened, queue(), self.config.engine.batch_size):
                generation.prefill_s = seconds[generation.request_id]
                yield generation
            spent = opened.take_timing()
        for name in BatchTiming.__slots__:
            setattr(timing, name, getattr(spent, name))

    def _setup(self, cell: Cell) -> CellSetup:
        return cell_setup(cell, self.config, lambda name: SharedCompressor(name, self._methods.of(name), self._drafts))

    def _text(self) -> TextStream:
        return TextStream(self._tokenizer)


def prefill_alone(prefill: Prefill, wanted: Sequence[Wants]) -> float | None:
    """Seconds of a shared prefill that a cell with these compressors would have needed by itself, where known."""
    if prefill.time is None:
        return None
    window = max((compressor.query_window for compressor in wanted), default=0)
    statistics = [statistic for compressor in wanted for statistic in compressor.statistics]
    return prefill.time.alone(query_window=window, statistics=statistics)
