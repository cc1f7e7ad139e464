"""`vcbench calibrate`: fits a method to a model, once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vcbench.cli.completion import complete_fitted, complete_model
from vcbench.cli.output import begin, results, table, write_json

if TYPE_CHECKING:
    from vcbench.calibration.base import Calibration


def calibrate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A catalogue name, a hub id or a local directory.",
            autocompletion=complete_model,
        ),
    ],
    method: Annotated[
        str,
        typer.Argument(metavar="METHOD", help="A compressor that is fitted per model.", autocompletion=complete_fitted),
    ],
    text: Annotated[
        list[Path] | None,
        typer.Option("--text", metavar="FILE", help="Text to fit on; several times for several files."),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the method.")
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Pieces of text; the method's own number if none.")] = None,
    sample_tokens: Annotated[int | None, typer.Option(min=2, help="Tokens of a piece.")] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write here instead of into the cache.")] = None,
    revision: Annotated[str | None, typer.Option(help="Commit, branch or tag on the hub.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> None:
    """Fit a compressor to a model, on the text of Python's standard library or on yours."""
    from vcbench.backends.bundled.calibrations import calibrate_model
    from vcbench.cli.model import Bar
    from vcbench.config.options import options_from
    from vcbench.config.schema import ModelConfig

    options = options_from("compressor", method, overrides or ())
    if device not in ("auto", "cpu", "cuda"):
        raise typer.BadParameter(f"{device!r} is none of auto, cpu, cuda", param_hint="--device")
    config = ModelConfig(id=model, revision=revision, device=device)  # type: ignore[arg-type]
    with Bar() as bar:
        calibration, path = calibrate_model(
            config,
            method,
            options,
            text=text or (),
            samples=samples,
            sample_tokens=sample_tokens,
            output=output,
            progress=bar.update,
        )
    document = _document(calibration, path)
    if as_json:
        write_json(document)
        return
    rows = [[name, _text(value)] for name, value in document.items()]
    results().print(table(f"{method} for {model}", ["fact", "value"], rows, wrap=(1,)))
    begin()


def _document(calibration: Calibration, path: Path) -> dict[str, Any]:
    facts = calibration.facts
    held = sum(tensor.nbytes for tensor in calibration.tensors.values())
    return {
        "path": str(path),
        "sha256": calibration.sha256,
        **{key: facts[key] for key in ("method", "version", "settings", "model", "weights_sha256", "dtype", "data")},
        "bytes": held,
        **facts["measured"],
    }


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items()) or "none"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
