"""Where a run is written: a new directory, the one to be resumed, or a new one after an older run was moved away."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from vcbench.config.load import dump_config
from vcbench.records.reader import load_run
from vcbench.records.store import RunDirectory, archive
from vcbench.runners import recording
from vcbench.runners.setup import Workbench


def open_run(bench: Workbench, console: Console) -> RunDirectory:
    """The run's directory, locked. A run of the same name with other cells or prompts is archived, and that is said."""
    path = Path(bench.config.output_dir) / bench.config.name
    if RunDirectory.exists(path):
        difference = what_differs(bench, path)
        if difference is None:
            return RunDirectory.open(path)
        console.print(f"{path} holds another run ({difference}); it is now {archive(path)}", markup=False)
    return RunDirectory.create(path, dump_config(bench.config), recording.provenance(bench))


def what_differs(bench: Workbench, path: Path) -> str | None:
    """Why a run on disk is not this one, or None if it can be resumed."""
    run = load_run(path)
    now = {(cell.task.name, cell.label): cell.id for cell in bench.plan.cells}
    then = {(cell.task or "", cell.label): cell.id for cell in run.cells}
    if now.keys() != then.keys():
        return "other cells"
    if now != then:
        changed = [label for (task, label), cell in now.items() if then[task, label] != cell]
        return f"what its answers depend on has changed: {_why(bench, run.provenance)}; cells: {', '.join(changed)}"
    threads = bench.backend.facts().get("decoding_threads")
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
    entry = recording.provenance(bench)
    for key, name in (("model", "the model"), ("code_sha256", "vcbench's code"), ("kernels", "the kernels' versions")):
        if entry.get(key) != provenance.get(key):
            return name
    return "the configuration"
