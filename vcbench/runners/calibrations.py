"""The calibrations that a run needs, found before anything else happens."""

from __future__ import annotations

from vcbench import registry
from vcbench.calibration.base import Calibration, CalibrationNeed
from vcbench.calibration.store import (
    find_calibration,
)
from vcbench.config.options import build_options
from vcbench.config.schema import MethodConfig, RunConfig
from vcbench.errors import CalibrationError, ConfigError, Problem
from vcbench.models.store import ModelFiles


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
    for name in dict.fromkeys(cell.method for cell in config.cells if cell.method is not None):
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
