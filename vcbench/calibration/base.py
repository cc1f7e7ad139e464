"""What a method's calibration is: what it depends on, what a fit gives, and what a run gets to use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

Setting = bool | int | float | str
FILE_DOC = "File written by `vcbench calibrate --output`; the one kept for the model if not given."
"""The doc of the option `calibration`, which every calibrated method has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationNeed:
    """What a method asks for under its options.

    version: raised whenever the method's fit or the meaning of its tensors changes; files of another are stale.
    settings: the options that the fit depends on; a file of others does not serve.
    file: where the user says that it lies; None for the place kept for the model.
    samples, sample_tokens: how much text the fit takes where the user does not say.
    """

    version: int
    settings: Mapping[str, Setting] = field(default_factory=dict)
    file: str | None = None
    samples: int = 16
    sample_tokens: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What `Compressor.calibrate` returns. `measured`: figures of the fit's quality, kept in the file and shown."""

    tensors: Mapping[str, Tensor]
    measured: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A fit as it was stored.

    facts: method, version, settings, weights_sha256, data (what text, its hash, how much), measured.
    sha256: over facts and tensors; part of the id of every cell that uses it.
    """

    tensors: Mapping[str, Tensor] = field(compare=False, repr=False)
    facts: Mapping[str, Any] = field(compare=False)
    sha256: str

    @property
    def method(self) -> str:
        """The compressor that it was fitted for."""
        return str(self.facts["method"])
