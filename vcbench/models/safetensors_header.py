"""Headers of safetensors files, read and checked without torch, so that damage is named before anything is computed.

Format: 8 bytes little-endian header length, a JSON header, then the data; `data_offsets` count from the data's start.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vcbench.errors import ModelError

INDEX_NAME = "model.safetensors.index.json"
_DTYPE_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
_REMEDY = "the file is damaged or its download was cut short: delete it and fetch the model again"


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of a file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]


def weight_files(path: Path) -> tuple[Path, ...]:
    """The safetensors files of a model directory, sorted by name, or the one file that `path` is.

    Raises ModelError if there is none, or if the index names one that is absent.
    """
    if path.is_file():
        return (path,)
    index = path / INDEX_NAME
    if index.is_file():
        return _indexed(index)
    # Mistral's repositories also hold the same weights under other tensor names in consolidated*.safetensors.
    files = sorted(file for file in path.glob("*.safetensors") if not file.name.startswith("consolidated"))
    if not files:
        raise ModelError(f"{path} holds no .safetensors weights; supported: safetensors checkpoints")
    single = path / "model.safetensors"
    return (single,) if single in files else tuple(files)


def read_header(file: Path) -> dict[str, TensorEntry]:
    """The tensors that the file holds. Raises ModelError if the header is broken or the file's size contradicts it."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > size - 8:
                raise ModelError(f"{file}: {size:,} bytes end inside the header; {_REMEDY}")
            header = json.loads(stream.read(length))
    except OSError as error:
        raise ModelError(f"cannot read {file}: {error.strerror or error}") from error
    except ValueError as error:
        raise ModelError(f"{file}: the header is not JSON ({error}); {_REMEDY}") from error
    try:
        spans = {name: _entry(file, entry) for name, entry in header.items() if name != "__metadata__"}
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
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is not a weight index ({error!r}); {_REMEDY}") from error
    files = tuple(index.parent / name for name in names)
    absent = [file.name for file in files if not file.is_file()]
    if absent:
        raise ModelError(f"{index} names {len(absent)} absent files ({', '.join(absent[:3])}); fetch the model again")
    return files


def _entry(file: Path, entry: Mapping[str, Any]) -> tuple[TensorEntry, int]:
    start, end = entry["data_offsets"]
    dtype, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
    item_bytes = _DTYPE_BYTES.get(dtype, 1 if dtype.startswith(("F8", "I8", "U8", "BOOL")) else None)
    if not 0 <= start <= end or (item_bytes is not None and end - start != item_bytes * math.prod(shape)):
        raise ValueError(f"{dtype} {shape} does not span bytes {start} to {end}")
    return TensorEntry(file, dtype, shape), end
