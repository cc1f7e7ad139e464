"""The calibrations that a run needs, found before anything else happens; and how a new one is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vcbench import registry
from vcbench.backends.bundled.identity import identify
from vcbench.calibration.base import Calibration, CalibrationNeed
from vcbench.calibration.store import (
    calibration_path,
    check_writable,
    find_calibration,
    make_calibration,
    save_calibration,
)
from vcbench.calibration.text import Samples, sample
from vcbench.config.options import build_options
from vcbench.config.paths import user_path
from vcbench.config.schema import MethodConfig, ModelConfig, RunConfig
from vcbench.errors import CalibrationError, ConfigError, Problem, UsageError
from vcbench.models.progress import Progress, silent
from vcbench.models.store import ModelFiles, resolve_model


def needed(method: MethodConfig) -> CalibrationNeed | None:
    """What calibration a configured method asks for, or None."""
    options = build_options("compressor", method.compressor, method.options)
    need: CalibrationNeed | None = registry.lookup("compressor", method.compressor).calibration_need(options)
    return need


def find_calibrations(config: RunConfig, files: ModelFiles) -> dict[str, Calibration]:
    """The calibrations of the methods that cells use, by the methods' names in the configuration.

    Raises ConfigError that names each method whose calibration is missing or of no use, with the command to run.
    """
    found, problems = {}, []
    for name in config.used_methods:
        method = config.methods[name]
        need = needed(method)
        if need is None:
            continue
        try:
            found[name] = find_calibration(
                method.compressor, need, model_id=files.id, weights_sha256=files.weights_sha256
            )
        except CalibrationError as error:
            where = config.places.get(f"methods.{name}", f"methods.{name}")
            problems.append(Problem(where=where, message=str(error)))
    if problems:
        raise ConfigError(problems)
    return found


def calibrate_model(
    model: ModelConfig,
    compressor: str,
    options: Mapping[str, Any],
    *,
    text: Sequence[Path] = (),
    samples: int | None = None,
    sample_tokens: int | None = None,
    output: Path | None = None,
    progress: Progress = silent,
) -> tuple[Calibration, Path]:
    """Fits a method to a model and stores the result; returns it and where it lies.

    Raises UsageError for a method without calibration, CalibrationError for unusable text or a file that cannot be
    written, ModelError.
    """
    from vcbench.models.tokenizer import Tokenizer

    need = needed(MethodConfig(compressor=compressor, options=options))
    if need is None:
        raise UsageError(f"{compressor} under these options uses no calibration; nothing to do")
    files, tokens = resolve_model(model), sample_tokens or need.sample_tokens
    if tokens > files.architecture.max_context:
        raise CalibrationError(
            f"{files.id} reads {files.architecture.max_context} tokens at most, and pieces of {tokens} were asked for; "
            "lower --sample-tokens"
        )
    taken = sample(Tokenizer.from_files(files).encode, text, samples or need.samples, tokens)
    return fit_model(model, compressor, options, taken, output=output, progress=progress)


def fit_model(
    model: ModelConfig,
    compressor: str,
    options: Mapping[str, Any],
    samples: Samples,
    *,
    output: Path | None = None,
    progress: Progress = silent,
) -> tuple[Calibration, Path]:
    """`calibrate_model` on token ids."""
    from vcbench.backends.bundled.load import load
    from vcbench.models.instruction import InstructionWriter
    from vcbench.models.tokenizer import Tokenizer

    cls, chosen = registry.lookup("compressor", compressor), build_options("compressor", compressor, options)
    need: CalibrationNeed = cls.calibration_need(chosen)
    files = resolve_model(model)
    reason = cls.unsupported(chosen, files.architecture)
    if reason:
        raise UsageError(f"compressor `{compressor}` cannot serve this model: {reason}")
    path = output or _place(need, compressor, files.weights_sha256)
    check_writable(path)
    identity = identify(RunConfig(name="calibrate", model=model, tasks=(), cells=()))
    decoder, _ = load(files, identity, "fast")
    instruct = InstructionWriter(Tokenizer.from_files(files))
    fit = cls.calibrate(chosen, decoder, samples.ids, instruct=instruct, progress=progress)
    facts = {
        "method": compressor,
        "version": need.version,
        "settings": dict(need.settings),
        "model": files.id,
        "weights_sha256": files.weights_sha256,
        "dtype": identity.dtype,
        "data": samples.data,
        "measured": dict(fit.measured),
    }
    calibration = make_calibration(fit.tensors, facts)
    save_calibration(calibration, path)
    return calibration, path


def _place(need: CalibrationNeed, compressor: str, weights_sha256: str) -> Path:
    """Where a run with these options looks for the fit."""
    if need.file is not None:
        return user_path(need.file)
    return calibration_path(compressor, need.settings, weights_sha256)
