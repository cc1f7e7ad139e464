"""A recorded run taken up again: its model, its prompts and its cells, for decoding single requests once more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from vcbench.compressors.base import prefill_for
from vcbench.config.load import load_config
from vcbench.engine.decoding.progress import Committed
from vcbench.engine.decoding.session import CellSetup, Prefilled
from vcbench.engine.environment import set_threads
from vcbench.engine.model.decoder import Decoder
from vcbench.engine.types import Generation, Request
from vcbench.errors import RecordError
from vcbench.forensics.faulty import Engine
from vcbench.models.instruction import InstructionWriter
from vcbench.models.store import resolve_model
from vcbench.models.tokenizer import TextStream, Tokenizer
from vcbench.records.files import CONFIG
from vcbench.records.reader import CellInfo, Run
from vcbench.records.schema import PromptLine
from vcbench.runners.calibrations import find_calibrations
from vcbench.runners.plan import Cell, build_plan, identify, with_model
from vcbench.runners.setup import Workbench, cell_setup, load, make_compressor
from vcbench.tasks.base import Prompt


@dataclass(slots=True)
class Decoded:
    """One request decoded again; `logits`: [V] of the output token that was asked for, if it got that far."""

    generation: Generation
    logits: Tensor | None = None


@dataclass(slots=True)
class Replay:
    """A run's engine. `engine` has the fault that the run was made with, so that what it did comes again."""

    run: Run
    bench: Workbench
    decoder: Decoder
    engine: Engine
    _snapshots: dict[tuple[str, str], Prefilled] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run) -> Replay:
        """Loads the run's model. Raises RecordError where it is not the model of the records."""
        config = load_config(run.path / CONFIG)
        files = resolve_model(config.model)
        recorded = (run.provenance.get("model") or {}).get("weights_sha256")
        if recorded != files.weights_sha256:
            raise RecordError(f"{run.path} was made with other weights of {files.id} than are here; run it again")
        identity = with_model(identify(config), files)
        calibrations = find_calibrations(config, files)
        for cell in run.provenance.get("cells") or ():
            recorded, here = cell.get("calibration"), calibrations.get(cell.get("method") or "")
            if recorded and here and recorded.get("sha256") != here.sha256:
                raise RecordError(
                    f"{run.path} was made with another calibration of {cell['method']} than is here; run it again"
                )
        bench = Workbench(
            config=config,
            files=files,
            identity=identity,
            plan=build_plan(config, architecture=files.architecture, identity=identity, calibrations=calibrations),
            tokenizer=Tokenizer.from_files(files),
            sources={},
            prompts={},
        )
        set_threads(int(run.provenance.get("decoding_threads") or 0))
        decoder, _ = load(files, identity, config.engine.exactness)
        return cls(run, bench, decoder, Engine(run.provenance.get("injected_fault")))

    def in_float32(self) -> Replay:
        """The same run with weights and caches in float32."""
        identity = replace(self.bench.identity, dtype="float32")
        bench = replace(self.bench, identity=identity)
        decoder, _ = load(bench.files, identity, bench.config.engine.exactness)
        return Replay(self.run, bench, decoder, self.engine)

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
            compressors = [compressor for cell in cells if (compressor := make_compressor(cell)) is not None]
            request = self.request(task, name)
            self._snapshots[task, name] = Prefilled(
                request,
                prefill_for(
                    compressors,
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
        return cell_setup(cell, self.bench.config)

    def decode(
        self, setup: CellSetup, task: str, names: Sequence[str], wanted: str, step: int, engine: Engine | None = None
    ) -> Decoded | None:
        """Decodes a batch again and returns one of its requests with the logits behind output token `step`.

        None where the engine reports no result for it.
        """
        used, taps = engine or self.engine, list[Tensor]()

        def observe(committed: Committed) -> None:
            row = step - committed.first
            if committed.request_id == wanted and 0 <= row < len(committed.token_ids):
                taps.append(committed.logits[row].detach().to("cpu", torch.float32, copy=True))

        ended: dict[str, Generation] = {}
        used(
            self.decoder,
            setup,
            [self.snapshot(task, name) for name in names],
            on_end=lambda generation: ended.__setitem__(generation.request_id, generation),
            stream=lambda: TextStream(self.bench.tokenizer),
            observe=observe,
        )
        return Decoded(ended[wanted], taps[0] if taps else None) if wanted in ended else None
