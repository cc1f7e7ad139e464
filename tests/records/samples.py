"""Runs as the runner would write them, small enough to reckon by hand; each part can be replaced."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vcbench.records.schema import BatchLine, DivergenceLine, Line, PromptLine, RequestLine
from vcbench.records.store import RunDirectory

TASK = "stdlib"
FULL = {"id": "f0", "label": "full", "arm": "full", "method": None, "compressor": None, "task": TASK}
LOSSY = {"id": "l0", "label": "lossy snapkv", "arm": "lossy", "method": "snapkv", "compressor": "snapkv", "task": TASK}
VERI = {
    "id": "v0",
    "label": "vericache snapkv k=4",
    "arm": "vericache",
    "method": "snapkv",
    "compressor": "snapkv",
    "draft_length": 4,
    "task": TASK,
}
NAMES = ("one", "two", "three", "four")
OUTPUT = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19]
"""What full KV answers to every prompt: the first token from prefill and nine decoded ones."""


def prompt(name: str, ids: Sequence[int] | None = None) -> PromptLine:
    """A prompt of four tokens, other ones for another name."""
    ids = (1, 2, 3, 100 + sum(name.encode("utf-8", "replace"))) if ids is None else ids
    return PromptLine(
        task=TASK,
        request=name,
        prompt_ids=list(ids),
        prompt_sha256=hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest(),
        document_sha256="d",
        tail=f"...the end of prompt {name}",
        timing={"prefill_s": 0.5},
    )


def kv(stored: int, full: int, copy: int = 0) -> dict[str, Any]:
    """Bytes of a cell that holds a full copy of `copy` bytes in memory beside."""
    found = {"codes": stored // 2, "stored": stored, "full": full, "resident": stored + copy, "parts": {}}
    return found | {"full_copy": {"memory": copy} if copy else {}}


def answer(cell: dict[str, Any], name: str, **changes: Any) -> RequestLine:
    """A good answer of the cell; a lossy one leaves full KV's output after six tokens."""
    line = RequestLine(
        cell=cell["id"],
        task=TASK,
        request=name,
        prompt_sha256=prompt(name).prompt_sha256,
        token_ids=list(OUTPUT),
        text="".join(f" w{token}" for token in OUTPUT),
        finish_reason="length",
        kv_start=kv(1000, 1000),
        kv_end=kv(1200, 1200),
        cache_classes={"FullCache": 2},
        logits_sha256=hashlib.sha256(name.encode("utf-8", "replace")).hexdigest(),
        timing={"prefill_s": 0.5, "compress_s": 0.0, "offload_s": 0.0, "ttft_s": 0.5, "decode_s": 1.0},
    )
    if cell["arm"] != "full":
        line = replace(line, kv_start=kv(250, 1000), kv_end=kv(450, 1200), cache_classes={"SnapKVCache": 2})
        line = replace(line, timing=line.timing | {"compress_s": 0.1, "ttft_s": 0.6})
    if cell["arm"] == "lossy":
        line = replace(
            line, token_ids=[*OUTPUT[:6], 90, 91, 92, 93], text=" w10 w11 w12 w13 w14 w15 lost again and again"
        )
    if cell["arm"] == "vericache":
        line = replace(line, drafted=[4, 4, 0], accepted=[4, 2, 0], committed=[5, 3, 1])
        line = replace(line, kv_start=kv(250, 1000, 1000), kv_end=kv(450, 1200, 1200))
    return replace(line, **changes)


def batch(cell: dict[str, Any], name: str, **changes: Any) -> BatchLine:
    compress_s = 0.0 if cell["arm"] == "full" else 0.1
    timing = {
        "compress_s": compress_s,
        "offload_s": 0.0,
        "decode_s": {"full": 1.0, "lossy": 0.5, "vericache": 0.75}[cell["arm"]],
        "steps": 9.0,
    }
    timing |= {"draft_s": 0.3, "verify_s": 0.3, "other_s": 0.15, "peak_rss_bytes": 2.0**30}
    timing |= {"wall_s": 1.2, "cpus": 2.0, "other_cpu_s": 0.0, "load_1m": 1.0}
    return replace(BatchLine(cell=cell["id"], task=TASK, requests=[name], tokens=9, timing=timing), **changes)


def divergence(cell: dict[str, Any], name: str, **changes: Any) -> DivergenceLine:
    kl: list[float | None] = [0.0, 0.1, 0.0, 0.2, 0.0, 0.0, 0.3, 0.1, 0.1, 0.2]
    line = DivergenceLine(cell=cell["id"], task=TASK, request=name, kl=kl, top1_agree=[True] * 9 + [False])
    return replace(line, **changes)


@dataclass
class Sample:
    """The parts of a run; `write` puts them on disk."""

    cells: list[dict[str, Any]] = field(default_factory=lambda: [FULL, LOSSY, VERI])
    names: Sequence[str] = NAMES
    exactness: str = "bitwise"
    model: str = "tiny"
    prompts: list[PromptLine] = field(init=False)
    requests: list[RequestLine] = field(init=False)
    others: list[Line] = field(init=False)

    def __post_init__(self) -> None:
        self.prompts = [prompt(name) for name in self.names]
        self.requests = [answer(cell, name) for cell in self.cells for name in self.names]
        self.others = [batch(cell, name) for cell in self.cells for name in self.names]
        self.others += [divergence(cell, name) for cell in self.cells if cell["arm"] == "lossy" for name in self.names]

    def change(self, cell: dict[str, Any], name: str | None = None, **changes: Any) -> Sample:
        """Replaces fields of one answer, or of all answers of a cell."""
        self.requests = [
            replace(line, **changes) if line.cell == cell["id"] and name in (None, line.request) else line
            for line in self.requests
        ]
        return self

    def drop(self, cell: dict[str, Any], name: str) -> Sample:
        """Takes one answer away, and its batch."""
        self.requests = [line for line in self.requests if (line.cell, line.request) != (cell["id"], name)]
        self.others = [
            line
            for line in self.others
            if not (isinstance(line, BatchLine) and line.cell == cell["id"] and line.requests == [name])
        ]
        return self

    def write(self, path: Path, *, finish: bool = True) -> Path:
        config = f"name: {path.name}\nmodel:\n  id: {self.model}\nengine:\n  exactness: {self.exactness}\n"
        provenance = {"started": "2026-01-02T03:04:05+00:00", "model": {"id": self.model}, "cells": self.cells}
        with RunDirectory.create(path, config, provenance) as run:
            for line in [*self.prompts, *self.requests, *self.others]:
                run.append(line)
            if finish:
                run.finish()
        return path
