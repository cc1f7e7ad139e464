"""The model of a run, ready to decode."""

from __future__ import annotations

import torch

from vcbench.backends.cells import Identity
from vcbench.config.schema import Exactness
from vcbench.engine.model.decoder import Decoder
from vcbench.engine.model.load import load_decoder
from vcbench.models.store import ModelFiles
from vcbench.models.weights import WeightReader


def load(files: ModelFiles, identity: Identity, exactness: Exactness) -> tuple[Decoder, dict[str, int]]:
    """The decoder and the row tiles chosen by the exactness probe.

    Raises ModelError if the weights are not those whose hash is recorded, before they were read or after.
    """
    files.check_unchanged()
    with WeightReader(files.path) as reader:
        reader.check_complete(files.architecture)
        loaded = load_decoder(
            files.architecture,
            reader,
            device=torch.device(identity.device),
            dtype=getattr(torch, identity.dtype),
            exactness=exactness,
        )
    files.check_unchanged()
    return loaded
