"""Whether embeddings that config.json calls tied are tied in the weights: a head of its own is used, not dropped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from vcbench.models.architecture import Architecture
from vcbench.models.safetensors_header import TensorEntry

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
CHUNK_BYTES = 2**24


def untied(entries: Mapping[str, TensorEntry], architecture: Architecture) -> tuple[Architecture, list[str]]:
    """The architecture as the weights have it, and what is worth saying. `entries`: all tensors by name.

    As in transformers 5: a head beside tied embeddings is tied where all its values are the same, and stands for itself
    where they are not. Cost: reads both tensors, where there are two.
    """
    if not architecture.tied_embeddings:
        return architecture, []
    embedding, head = entries.get(EMBEDDING), entries.get(HEAD)
    if embedding is None or head is None or _same_values(embedding, head):
        return architecture, []
    return replace(architecture, tied_embeddings=False), [
        f"tie_word_embeddings is true in config.json, but {HEAD} has other values than {EMBEDDING}; as in transformers "
        "5, the head is used as it is"
    ]


def _same_values(one: TensorEntry, other: TensorEntry) -> bool:
    """Whether two tensors are the same bytes; shapes and dtypes count."""
    if (one.dtype, one.shape, one.nbytes) != (other.dtype, other.shape, other.nbytes):
        return False
    with one.file.open("rb") as first, other.file.open("rb") as second:
        first.seek(one.offset)
        second.seek(other.offset)
        left = one.nbytes
        while left > 0:
            size = min(left, CHUNK_BYTES)
            a, b = first.read(size), second.read(size)
            if a != b or not a:
                return False
            left -= size
    return True
