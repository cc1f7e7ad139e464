"""A recorded run taken up again: its model, its prompts and its cells, for decoding single requests once more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from vcbench.backends.bundled.backend import Bundled
from vcbench.backends.bundled.load import load
from vcbench.backends.bundled.methods import Methods, cell_setup
from vcbench.backends.cells import Cell, Identity
from vcbench.compressors.base import prefill_for
from vcbench.config.load import load_config
from vcbench.engine.decoding.levels import Prefilled
from vcbench.engine.decoding.progress import Committed
from vcbench.engine.decoding.session import CellSetup, MakeSession, run_cell
from vcbench.engine.environment import set_threads
from vcbench.engine.model.decoder import Decoder
from vcbench.engine.types import Generation, Request
from vcbench.errors import RecordError
from vcbench.forensics.faulty import FaultySession
from vcbench.models.instruction import InstructionWriter
from vcbench.models.store import resolve_model
from vcbench.models.tokenizer import TextStream, Tokenizer
from vcbench.records.files import CONFIG
from vcbench.records.reader import CellInfo, Run
from vcbench.records.schema import PromptLine
from vcbench.runners.plan import build_plan
from vcbench.runners.setup import Workbench
from vcbench.tasks.base import Prompt


@dataclass(slots=True)
class Decoded:
    """One request decoded again; `logits`: [V] of the output token that was asked for, if it got that far."""

    generation: Generation
    logits: Tensor | None = None


@dataclass(slots=True)
class Replay:
    """A run's engine. `sessions` have the fault that the run was made with, so that what it did comes again."""

    run: Run
    bench: Workbench
    identity: Identity
    methods: Methods
    decoder: Decoder
    sessions: FaultySession
    _snapshots: dict[tuple[str, str], Prefilled] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run) -> Replay:
        """Loads the run's model. Raises RecordError where it is not the model of the records."""
        config = load_config(run.path / CONFIG)
        files = resolve_model(config.model)
        recorded = (run.provenance.get("model") or {}).get("weights_sha256")
        if recorded != files.weights_sha256:
            raise RecordError(f"{run.path} was made with other weights of {files.id} than are here; run it again")
        backend = Bundled(config, files)
        identity, calibrations = backend.identity(), backend.calibrations()
        for method, recorded in _calibrated(run):
            here = calibrations.get(method)
            if here and recorded.get("sha256") != here.sha256:
                raise RecordError(
                    f"{run.path} was made with another calibration of {method} than is here; run it again"
                )
        bench = Workbench(
            config=config,
            files=files,
            backend=backend,
            plan=build_plan(config, architecture=files.architecture, identity=identity, calibrations=calibrations),
            tokenizer=Tokenizer.from_files(files),
            sources={},
            prompts={},
        )
        set_threads(int(run.provenance.get("decoding_threads") or 0))
        decoder, _ = load(files, identity, config.engine.exactness)
        sessions = FaultySession(run.provenance.get("injected_fault"))
        return cls(run, bench, identity, Methods(bench.plan.cells), decoder, sessions)

    def in_float32(self) -> Replay:
        """The same run with weights and caches in float32."""
        identity = replace(self.identity, dtype="float32")
        decoder, _ = load(self.bench.files, identity, self.bench.config.engine.exactness)
        return Replay(self.run, self.bench, identity, self.methods, decoder, self.sessions)

    def planned(self, cell: CellInfo, task: str) -> Cell:
        """The plan's cell behind a recorded one."""
        found = [c for c in self.bench.plan.cells if c.label == cell.label and c.task.name == task]
        if not found:
            raise RecordError(f"{self.run.path}: its configuration has no cell {cell.label!r}; the run is damaged")
        return found[0]

    def request(self, task: str, name: str) -> Request:
        """What the engine was asked."""
        line = self.run.prompts[task, name]
        assert isinstance(line, PromptLine)
        config = next(config for config in self.bench.config.tasks if config.name == task)
        return self.bench.request(
            config, Prompt(id=name, ids=tuple(line.prompt_ids), document_sha256=line.document_sha256)
        )

    def batch_of(self, task: str, name: str) -> list[str]:
        """The requests that were decoded together with one, as the runner batches them; a follow-up comes alone."""
        follow_ups = self.run.parents(task)
        if name in follow_ups:
            return [name]
        names = [key for prompt_task, key in self.run.prompts if prompt_task == task and key not in follow_ups]
        size, at = self.bench.config.engine.batch_size, names.index(name)
        return names[at // size * size :][:size]

    def snapshot(self, task: str, name: str) -> Prefilled:
        """The prompt's prefill with everything that any cell of the task asks of it, made once."""
        if (task, name) not in self._snapshots:
            cells = self.bench.plan.of_task(task)
            request = self.request(task, name)
            self._snapshots[task, name] = Prefilled(
                request,
                prefill_for(
                    self.methods.of_all(cells),
                    self.decoder,
                    request.prompt_ids,
                    chunk=self.bench.config.engine.prefill_chunk,
                    instruct=InstructionWriter(self.bench.tokenizer),
                ),
            )
        return self._snapshots[task, name]

    def forget(self, task: str, name: str) -> None:
        """Drops a snapshot, so that the next is made anew."""
        self._snapshots.pop((task, name), None)

    def setup(self, cell: Cell) -> CellSetup:
        """How the engine carries out a cell."""
        return cell_setup(cell, self.bench.config, self.methods.of)

    def decode(
        self,
        setup: CellSetup,
        task: str,
        names: Sequence[str],
        wanted: str,
        step: int,
        session: MakeSession | None = None,
    ) -> Decoded | None:
        """Decodes a batch again and returns one of its requests with the logits behind output token `step`.

        None where the engine reports no result for it.
        """
        taps: list[Tensor] = []

        def observe(committed: Committed) -> None:
            row = step - committed.first
            if committed.request_id == wanted and 0 <= row < len(committed.token_ids):
                taps.append(committed.logits[row].detach().to("cpu", torch.float32, copy=True))

        ended: dict[str, Generation] = {}
        run_cell(
            self.decoder,
            setup,
            [self.snapshot(task, name) for name in names],
            on_end=lambda generation: ended.__setitem__(generation.request_id, generation),
            stream=lambda: TextStream(self.bench.tokenizer),
            observe=observe,
            session=session or self.sessions,
        )
        return Decoded(ended[wanted], taps[0] if taps else None) if wanted in ended else None


def _calibrated(run: Run) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Methods that the run's cells used with a calibration, and what is recorded of that."""
    for cell in run.provenance.get("cells") or ():
        for entry in cell.get("levels") or [{"name": cell.get("method"), "calibration": cell.get("calibration")}]:
            if entry.get("calibration"):
                yield str(entry.get("name")), entry["calibration"]
