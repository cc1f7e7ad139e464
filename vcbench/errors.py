"""The exceptions that vcbench raises on purpose; each message says what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class VcbenchError(Exception):
    """Base of every expected failure; the command line prints it without a traceback and exits with `exit_code`.

    64: what was asked for cannot be done as things are; the message says what to change. Never 1, which is the gate's.
    """

    exit_code = 64


class UsageError(VcbenchError):
    """The command or its arguments cannot be acted on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong with a configuration, and where."""

    where: str
    message: str
    suggestion: str = ""

    def __str__(self) -> str:
        tail = f" ({self.suggestion})" if self.suggestion else ""
        return f"{self.where}: {self.message}{tail}"


class ConfigError(UsageError):
    """A configuration with one or more problems, all of them listed."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        head = f"{count} problem{'s' if count != 1 else ''} in the configuration:"
        super().__init__("\n".join([head, *(f"  {problem}" for problem in self.problems)]))


class ModelError(VcbenchError):
    """A model is missing, unsupported or damaged."""


class TaskError(VcbenchError):
    """A task's data is missing or malformed."""


class RowError(TaskError):
    """One row of a task's data cannot be asked; it is excluded with this reason, and the others are asked."""


class CalibrationError(VcbenchError):
    """A calibration is missing, damaged or made for something else."""


class RecordError(VcbenchError):
    """Records cannot be read or written."""


class SchemaVersionError(RecordError):
    """Records of a schema version that this vcbench does not read: nothing can be compared with them."""

    exit_code = 3


class MethodError(VcbenchError):
    """A compression method gave something that no draft cache can be made of."""


class StorageError(VcbenchError):
    """A cache cannot be kept where it was asked for."""


class RequestError(VcbenchError):
    """One request cannot be served; the run goes on and the record says why."""


class NumericError(RequestError):
    """NaN or infinity in logits or hidden states, with the step and layer where it was first seen."""


class InexactError(VcbenchError):
    """Bit-exactness was asked for and the start-up probe shows that this device cannot give it."""
