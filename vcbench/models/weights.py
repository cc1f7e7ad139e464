"""Tensors of a checkpoint, memory-mapped one by one, with every kind of damage named."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open

from vcbench.errors import ModelError
from vcbench.models.architecture import Architecture
from vcbench.models.safetensors_header import TensorEntry, read_headers
from vcbench.models.shapes import Shape, expected_shapes, is_sparse

__all__ = ["WeightReader", "expected_shapes"]

_FLOATS = ("F32", "BF16", "F16")
# Buffers that old exports wrote beside the parameters.
_IGNORED = re.compile(r"rotary_emb\.inv_freq$")
_EXPERT = re.compile(r"^(model\.layers\.\d+\.mlp\.experts)\.\d+\.(gate|up|down)_proj\.weight$")


class WeightReader:
    """The tensors of a model directory or of one safetensors file.

    A context manager. Tensors map the file and are read when touched; they stay valid after the reader is closed.
    """

    def __init__(self, path: Path) -> None:
        """Reads the headers only. Raises ModelError if a file is missing, truncated or corrupt."""
        self.path = path
        self._entries = read_headers(path)
        self._stack = ExitStack()
        self._open_files: dict[Path, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Releases the files; tensors already given out stay valid."""
        self._open_files.clear()
        self._stack.close()

    def names(self) -> list[str]:
        """Names of all tensors, sorted."""
        return sorted(self._entries)

    def shape(self, name: str) -> Shape:
        """Shape of a tensor, from the header."""
        return self._entry(name).shape

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor in its stored dtype. Raises ModelError if it is missing or is not of a float dtype."""
        entry = self._entry(name)
        if entry.dtype not in _FLOATS:
            raise ModelError(f"{name} in {entry.file} is {entry.dtype}; supported: {', '.join(_FLOATS)}")
        try:
            return self._file(entry.file).get_tensor(name)  # type: ignore[no-any-return]
        except (SafetensorError, OSError) as error:
            raise ModelError(f"cannot read {name} from {entry.file}: {error}; fetch the model again") from error

    def expert(self, layer: int, expert: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(gate, up, down) of one expert, whether the checkpoint stores experts one by one or fused.

        Shapes: gate, up: [I, hidden]; down: [hidden, I]. Fused: `gate_up_proj` [E, 2 I, hidden], `down_proj`
        [E, hidden, I], as transformers 5 writes with `save_original_format=False`.
        """
        prefix = f"model.layers.{layer}.mlp.experts"
        if f"{prefix}.gate_up_proj" not in self._entries:
            names = (f"{prefix}.{expert}.{part}_proj.weight" for part in ("gate", "up", "down"))
            gate, up, down = (self.tensor(name) for name in names)
            return gate, up, down
        fused, down = self.tensor(f"{prefix}.gate_up_proj"), self.tensor(f"{prefix}.down_proj")
        if not 0 <= expert < fused.shape[0]:
            raise ModelError(f"{prefix} has {fused.shape[0]} experts; asked for number {expert}")
        gate, up = fused[expert].chunk(2, dim=0)
        return gate, up, down[expert]

    def check_complete(self, architecture: Architecture) -> None:
        """Raises ModelError unless the checkpoint holds what the architecture needs, in these shapes, and no more.

        A tensor that the decoder would not use (a bias that the configuration denies, a quantisation scale) means
        that the result would be wrong, so it is an error too.
        """
        expected = self._in_stored_layout(expected_shapes(architecture), architecture)
        missing = [name for name in expected if name not in self._entries]
        if missing:
            raise ModelError(
                f"{self.path} lacks {len(missing)} of {len(expected)} tensors ({', '.join(missing[:3])}); config.json "
                "describes another model, or files are missing: fetch the model again"
            )
        for name, shape in expected.items():
            _check_shape(name, self._entries[name], shape)
        unknown = [name for name in self.names() if name not in expected and not _IGNORED.search(name)]
        if architecture.tied_embeddings and "lm_head.weight" in unknown:
            unknown.remove("lm_head.weight")
        if unknown:
            raise ModelError(
                f"{self.path} holds {len(unknown)} tensors that a {architecture.family} model does not use "
                f"({', '.join(unknown[:3])}), so its output would be wrong; check config.json against the weights"
            )

    def _in_stored_layout(self, shapes: dict[str, Shape], architecture: Architecture) -> dict[str, Shape]:
        """`shapes` with the experts of fused layers replaced by the two fused tensors."""
        fused = {name.removesuffix(".gate_up_proj") for name in self._entries if name.endswith(".gate_up_proj")}
        if not fused:
            return shapes
        kept = {
            name: shape
            for name, shape in shapes.items()
            if not ((match := _EXPERT.match(name)) and match.group(1) in fused)
        }
        experts = architecture.experts
        for layer in range(architecture.n_layers):
            prefix = f"model.layers.{layer}.mlp.experts"
            if experts is not None and is_sparse(architecture, layer) and prefix in fused:
                inner, hidden = experts.intermediate_size, architecture.hidden_size
                kept[f"{prefix}.gate_up_proj"] = (experts.count, 2 * inner, hidden)
                kept[f"{prefix}.down_proj"] = (experts.count, hidden, inner)
        return kept

    def _entry(self, name: str) -> TensorEntry:
        try:
            return self._entries[name]
        except KeyError:
            raise ModelError(
                f"{self.path} has no tensor {name}; config.json describes another model, or files are missing: fetch "
                "the model again"
            ) from None

    def _file(self, file: Path) -> Any:
        if file not in self._open_files:
            self._open_files[file] = self._stack.enter_context(safe_open(file, framework="pt"))
        return self._open_files[file]


def _check_shape(name: str, entry: TensorEntry, shape: Shape) -> None:
    if entry.shape != shape:
        raise ModelError(
            f"{name} in {entry.file} has shape {list(entry.shape)}, expected {list(shape)}; config.json and weights do "
            "not belong together: fetch the model again"
        )
