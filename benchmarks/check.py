"""The gate over a recorded run of 300 requests of 2,048 prompt and 512 output tokens, without an audit.

Run it on an idle machine: `python benchmarks/check.py`. Writes benchmarks/results/check.json. Target: below 5 s.
"""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import write_result

from vcbench.lossless.check import check_loaded
from vcbench.lossless.document import as_dict
from vcbench.lossless.html import html
from vcbench.records.reader import load_run
from vcbench.records.schema import DivergenceLine, PromptLine, RequestLine
from vcbench.records.store import RunDirectory

REQUESTS, PROMPT, OUTPUT, DRAFT = 300, 2048, 512, 25
KV = {"codes": 100, "stored": 120, "full": 400, "resident": 520, "parts": {}}
CELLS = [
    {"id": "f", "label": "full", "arm": "full", "task": "t", "cache_class": "FullCache"},
    {"id": "l", "label": "lossy m", "arm": "lossy", "method": "m", "compressor": "snapkv", "task": "t",
     "cache_class": "KeptCache"},
    {"id": "v", "label": "vericache m k=25", "arm": "vericache", "method": "m", "compressor": "snapkv",
     "draft_length": DRAFT, "task": "t", "cache_class": "KeptCache"},
]  # fmt: skip
STARTS = 3
VCBENCH = Path(sys.executable).with_name("vcbench")


def rounds(draw: random.Random) -> tuple[list[int], list[int], list[int]]:
    """Drafted, accepted and committed of an output."""
    drafted, accepted, committed = [], [], []
    left = OUTPUT - 1
    while left:
        drafts = min(DRAFT, left - 1)
        taken = min(draw.randint(0, DRAFT), drafts)
        drafted.append(drafts)
        accepted.append(taken)
        committed.append(taken + 1)
        left -= taken + 1
    return drafted, accepted, committed


def record(path: Path, forked: float) -> None:
    """A run as the runner writes it; a share `forked` of the answers leaves full KV's."""
    draw = random.Random(0)
    config = "name: b\nmodel: {id: m}\nengine: {exactness: bitwise}\n"
    with RunDirectory.create(path, config, {"cells": CELLS, "model": {"id": "m"}}) as run:
        for number in range(REQUESTS):
            prompt = draw.choices(range(49152), k=PROMPT)
            digest = hashlib.sha256(",".join(map(str, prompt)).encode()).hexdigest()
            name = f"r{number}"
            run.append(PromptLine(task="t", request=name, prompt_ids=prompt, prompt_sha256=digest, document_sha256="d"))
            answer = draw.choices(range(49152), k=OUTPUT)
            for cell in CELLS:
                ids = list(answer)
                if cell["arm"] == "lossy" or (cell["arm"] == "vericache" and draw.random() < forked):
                    ids[draw.randrange(OUTPUT)] += 1
                drafted, accepted, committed = rounds(draw) if cell["arm"] == "vericache" else ([], [], [])
                run.append(
                    RequestLine(
                        cell=str(cell["id"]), task="t", request=name, prompt_sha256=digest, token_ids=ids,
                        text="w " * OUTPUT, finish_reason="length", drafted=drafted, accepted=accepted,
                        committed=committed, kv_start=KV, kv_end=KV, logits_sha256=digest,
                        cache_classes={str(cell["cache_class"]): 30},
                    )
                )  # fmt: skip
            kl = [draw.random() for _ in range(OUTPUT - 1)]
            run.append(DivergenceLine(cell="l", task="t", request=name, kl=kl, top1_agree=[True] * len(kl)))
        run.finish()


def seconds_of(path: Path) -> dict[str, float]:
    """The check in this process and the whole command, the best of a few."""
    inside, command = [], []
    for _ in range(STARTS):
        started = time.perf_counter()
        result = check_loaded(load_run(path))
        inside.append(time.perf_counter() - started)
        as_dict(result)
        html(result)
        started = time.perf_counter()
        subprocess.run([str(VCBENCH), "check", str(path)], check=False, capture_output=True)
        command.append(time.perf_counter() - started)
    return {"check_s": min(inside), "command_s": min(command), "passed": result.passed, "requests": result.n}


def main() -> None:
    """Measures and writes the result."""
    with tempfile.TemporaryDirectory() as place:
        measured = {}
        for name, forked in (("all_equal", 0.0), ("half_forked", 0.5)):
            path = Path(place) / name
            record(path, forked)
            measured[name] = seconds_of(path) | {"bytes": (path / "requests.jsonl").stat().st_size}
            print(name, measured[name])
    write_result("check", {"shape": {"requests": REQUESTS, "prompt": PROMPT, "output": OUTPUT}, "runs": measured})


if __name__ == "__main__":
    main()
