"""Where a run is written: a new directory, the one to be resumed, or a new one after an older run was moved away."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from vcbench.config.load import dump_config
from vcbench.errors import RecordError
from vcbench.records.head import head_problem
from vcbench.records.printable import printable
from vcbench.records.reader import load_run
from vcbench.records.store import RunDirectory, archive
from vcbench.runners import recording
from vcbench.runners.setup import Workbench


def open_run(bench: Workbench, threads: int, console: Console) -> RunDirectory:
    """The run's directory, locked. A run of the same name with other cells or prompts is archived, and that is said."""
    path = Path(bench.config.output_dir) / bench.config.name
    if RunDirectory.exists(path):
        difference = what_differs(bench, threads, path)
        if difference is None:
            return RunDirectory.open(path)
        moved = archive(path)
        console.print(printable(f"{path} holds another run ({difference}); it is now {moved}"), markup=False)
    return RunDirectory.create(path, dump_config(bench.config), recording.provenance(bench, threads))


def what_differs(bench: Workbench, threads: int, path: Path) -> str | None:
    """Why a run on disk is not this one, or None if it can be resumed."""
    try:
        run = load_run(path, strict=False)
    except RecordError as error:
        return f"one that cannot be read: {error}"
    if problem := head_problem(path, run.provenance):
        return problem
    now = {(cell.task.name, cell.label): cell.id for cell in bench.plan.cells}
    then = {(cell.task or "", cell.label): cell.id for cell in run.cells}
    if now.keys() != then.keys():
        return "other cells"
    if now != then:
        changed = [label for (task, label), cell in now.items() if then[task, label] != cell]
        return f"what its answers depend on has changed: {_why(bench, run.provenance)}; cells: {', '.join(changed)}"
    if run.provenance.get("decoding_threads") != threads:
        return f"prefilled with {run.provenance.get('decoding_threads')} threads, now {threads}"
    prompts = {(task, prompt.id): prompt for task, prompts in bench.prompts.items() for prompt in prompts}
    follow_ups = {(turn.task, turn.follow_up) for turn in run.turns.values()}
    followed = {(turn.task, turn.request) for turn in run.turns.values()}
    for key, line in run.prompts.items():
        if key in follow_ups:
            continue
        prompt = prompts.get(key)
        if prompt is None or prompt.sha256 != line.prompt_sha256:
            return f"prompt {key[1]} of task {key[0]} has changed"
        if key in followed and prompt.document_sha256 != line.document_sha256:
            return f"what follows prompt {key[1]} of task {key[0]} has changed"
        if line.target_sha256 and prompt.target_sha256 != line.target_sha256:
            return f"the target of prompt {key[1]} of task {key[0]} has changed"
    return None


def _why(bench: Workbench, provenance: dict[str, object]) -> str:
    """The first of the recorded dependencies that differs, in words."""
    entry = recording.provenance(bench, 0)
    for key, name in (("model", "the model"), ("code_sha256", "vcbench's code"), ("kernels", "the kernels' versions")):
        if entry.get(key) != provenance.get(key):
            return name
    return "the configuration"
