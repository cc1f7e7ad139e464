"""Fits a method to a model, which is loaded for it, and stores what was fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vcbench import registry
from vcbench.backends.bundled.load import load
from vcbench.calibration.base import Calibration, CalibrationNeed
from vcbench.calibration.store import calibration_path, check_writable, make_calibration, save_calibration
from vcbench.calibration.text import Samples, sample
from vcbench.config.options import build_options
from vcbench.config.paths import user_path
from vcbench.config.schema import MethodConfig, ModelConfig, RunConfig
from vcbench.errors import CalibrationError, UsageError
from vcbench.models.instruction import InstructionWriter
from vcbench.models.progress import Progress, silent
from vcbench.models.store import resolve_model
from vcbench.models.tokenizer import Tokenizer
from vcbench.runners.calibrations import needed
from vcbench.runners.plan import identify


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
