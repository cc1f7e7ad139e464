"""Headers of safetensors files, read and checked without torch, so that damage is named before anything is computed.

Format: 8 bytes little-endian header length, a JSON header, then the data; `data_offsets` count from the data's start.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from vcbench.errors import ModelError
from vcbench.models.config_values import shown
from vcbench.models.files import read_json

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
LARGEST_HEADER = 100_000_000
"""The safetensors library's own limit, in bytes."""
_DTYPE_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
_REMEDY = "the file is damaged or its download was cut short: delete it and fetch the model again"


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file; its bytes begin at `offset`."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def weight_files(path: Path) -> tuple[Path, ...]:
    """The safetensors files of a model directory, sorted by name, or the one file that `path` is.

    `model.safetensors` comes before an index that names other files, as in transformers. Raises ModelError if there is
    none, or if the index names one that is absent or outside of the directory.
    """
    if path.is_file():
        return (path,)
    index, single = path / INDEX_NAME, path / SINGLE_NAME
    if index.is_file():
        indexed = _indexed(index)
        return (single,) if single.is_file() and single not in indexed else indexed
    # Mistral's repositories also hold the same weights under other tensor names in consolidated*.safetensors.
    files = sorted(file for file in path.glob("*.safetensors") if not file.name.startswith("consolidated"))
    if not files:
        raise ModelError(f"{path} holds no .safetensors weights; supported: safetensors checkpoints")
    return (single,) if single in files else tuple(files)


def weight_notes(path: Path) -> list[str]:
    """What is worth saying of a directory with two sets of weights: the single file is taken, as in transformers."""
    single, index = path / SINGLE_NAME, path / INDEX_NAME
    if not (single.is_file() and index.is_file()) or weight_files(path) != (single,):
        return []
    return [
        f"{SINGLE_NAME} stands beside {INDEX_NAME}, which names other files; as in transformers, {SINGLE_NAME} is used"
    ]


def read_header(file: Path) -> dict[str, TensorEntry]:
    """The tensors that the file holds. Raises ModelError if the header is broken or the file's size contradicts it."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > size - 8:
                raise ModelError(f"{file}: {size:,} bytes end inside the header; {_REMEDY}")
            if length > LARGEST_HEADER:
                raise ModelError(f"{file}: the header has {length:,} bytes; supported: at most {LARGEST_HEADER:,}")
            header = json.loads(stream.read(length))
    except OSError as error:
        raise ModelError(f"cannot read {file}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file}: the header is not JSON ({error}); {_REMEDY}") from error
    try:
        spans = {name: _entry(file, entry, 8 + length) for name, entry in header.items() if name != "__metadata__"}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"{file}: the header has a malformed entry ({error!r}); {_REMEDY}") from error
    expected = 8 + length + max((end for _, end in spans.values()), default=0)
    if size != expected:
        raise ModelError(f"{file}: {size:,} bytes, but the header says {expected:,}; {_REMEDY}")
    return {name: entry for name, (entry, _) in spans.items()}


def read_headers(path: Path) -> dict[str, TensorEntry]:
    """The tensors of a model directory or file. Raises ModelError on damage or a name that two files hold."""
    entries: dict[str, TensorEntry] = {}
    for file in weight_files(path):
        for name, entry in read_header(file).items():
            if name in entries:
                raise ModelError(f"{name} is in both {entries[name].file} and {file}; keep one set of weights")
            entries[name] = entry
    return entries


def _indexed(index: Path) -> tuple[Path, ...]:
    """The files that an index names. Raises ModelError if they are not all there, inside of its directory."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, Mapping) or not all(isinstance(name, str) for name in weight_map.values()):
        raise ModelError(f"{index} is not a weight index: its weight_map does not name files; {_REMEDY}")
    names = sorted(set(weight_map.values()))
    if not names:
        raise ModelError(f"{index} is not a weight index: it names no file; {_REMEDY}")
    files = tuple(index.parent / name for name in names)
    absent = [
        name for name, file in zip(names, files, strict=True) if _is_inside(index.parent, name) and not file.is_file()
    ]
    outside = [name for name in names if not _is_inside(index.parent, name)]
    if outside:
        raise ModelError(
            f"{index}: weight_map names {shown(outside[0])}, which is no file inside of {index.parent}; weights are "
            "read from the model's own directory alone"
        )
    if absent:
        listed = ", ".join(map(shown, absent[:3]))
        raise ModelError(f"{index} names {len(absent)} absent files ({listed}); fetch the model again")
    return files


def _is_inside(directory: Path, name: str) -> bool:
    """Whether the name stays within the directory, links followed; the hub's cache links to its own `blobs`."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\0" in name or "\\" in name:
        return False
    try:
        real, root = (directory / name).resolve(), directory.resolve()
    except (OSError, RuntimeError):
        return False
    if real.is_relative_to(root):
        return True
    return real.parent.name == "blobs" and real.parent.parent.name.startswith("models--")


def _entry(file: Path, entry: Mapping[str, Any], data_start: int) -> tuple[TensorEntry, int]:
    start, end = (int(offset) for offset in entry["data_offsets"])
    dtype, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
    item_bytes = _DTYPE_BYTES.get(dtype, 1 if dtype.startswith(("F8", "I8", "U8", "BOOL")) else None)
    if (
        any(size < 0 for size in shape)
        or not 0 <= start <= end
        or (item_bytes is not None and end - start != item_bytes * math.prod(shape))
    ):
        raise ValueError(f"{dtype} {shape} does not span bytes {start} to {end}")
    return TensorEntry(file, dtype, shape, data_start + start, end - start), end
