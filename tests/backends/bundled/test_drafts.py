"""A prompt is compressed once by a method: every cell gets the same bits and its own cache, and is charged the same."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.compressors import examples, tiny
from tests.compressors.examples import append, every_method, make, state
from vcbench.backends.bundled import drafts as drafts_module
from vcbench.backends.bundled.drafts import Drafts, SharedCompressor
from vcbench.backends.bundled.warmup import WARM_UP_PROMPT
from vcbench.compressors.snapkv import SnapKV
from vcbench.config.schema import CellConfig, MetricsConfig, RunConfig
from vcbench.engine.model.decoder import Prefill
from vcbench.forensics.tiny import tiny_config
from vcbench.records.reader import load_run
from vcbench.runners.run import execute

SNAPKV = every_method()["snapkv"]
CELLS = (
    CellConfig(arm="full"),
    CellConfig(arm="lossy", method="snapkv-2x"),
    CellConfig(arm="vericache", method="snapkv-2x", draft_length=2),
    CellConfig(arm="vericache", method="snapkv-2x", draft_length=7),
    CellConfig(arm="vericache", method="kivi-2bit", draft_length=5),
)
REQUESTS = 3


class Counted:
    """A compressor that counts its work."""

    def __init__(self, method: tuple[str, Any]) -> None:
        self.inner, self.calls = make(method), 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def compress(self, prefill: Prefill, *, seed: int) -> Any:
        self.calls += 1
        return self.inner.compress(prefill, seed=seed)


def prefill(tokens: int = 90) -> Prefill:
    return examples.prefill(tiny.token_ids(tokens), make(SNAPKV))


def shared(counted: Counted, drafts: Drafts) -> SharedCompressor:
    return SharedCompressor("m", counted, drafts)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", every_method().values(), ids=every_method())
def test_each_cell_gets_the_bits_of_its_own_compression_and_leaves_the_next_ones_alone(method: Any) -> None:
    prompt = examples.prefill(tiny.token_ids(150), make(method))
    expected = state(make(method).compress(prompt, seed=5))
    drafts, counted = Drafts(), Counted(method)
    drafts.expect(prompt, "m", 4)
    spent = []
    for number in range(4):
        cell = shared(counted, drafts)
        started = time.perf_counter()
        cache = cell.compress(prompt, seed=5)
        spent.append((time.perf_counter() - started, cell.uncharged_s(prompt)))
        assert state(cache) == expected
        append(cache, 70, seed=number)
        cache.commit(66)
        assert cell.copied == (number > 0)

    assert counted.calls == 1
    charges = [took + more for took, more in spent]
    assert max(charges) - min(charges) < 0.01, "each is charged the one compression"
    assert min(charges) > 0
    assert drafts.held_bytes() == 0, "the last one to ask is given what was kept"


def test_one_that_asks_once_is_given_the_cache_itself() -> None:
    prompt, drafts, counted = prefill(), Drafts(), Counted(SNAPKV)
    drafts.expect(prompt, "m", 1)
    shared(counted, drafts).compress(prompt, seed=0)

    assert drafts.held_bytes() == 0
    shared(counted, drafts).compress(prompt, seed=0)
    assert counted.calls == 2, "whoever comes unexpectedly compresses"


def test_a_prompt_of_another_model_is_another_prompt() -> None:
    prompt, other, drafts, counted = prefill(), prefill(80), Drafts(), Counted(SNAPKV)
    drafts.expect(prompt, "m", 3)
    cell = shared(counted, drafts)
    first, second = cell.compress(prompt, seed=0), cell.compress(other, seed=0)

    assert (first.tokens, second.tokens) == (90, 80)
    assert (counted.calls, cell.copied) == (2, 0)


def test_no_more_is_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Caches as large as the full one: one prompt's is kept, and the other methods compress anew."""
    prompt, drafts = prefill(), Drafts()
    room = 3 * sum(prompt.cache.nbytes().values()) // 2
    monkeypatch.setattr(drafts_module, "ALWAYS_KEPT", room)
    whole = [Counted(every_method()["none"]) for _ in range(3)]
    for number in range(3):
        drafts.expect(prompt, str(number), 5)
    for _ in range(5):
        for number, counted in enumerate(whole):
            SharedCompressor(str(number), counted, drafts).compress(prompt, seed=0)  # type: ignore[arg-type]
            assert drafts.held_bytes() <= room

    first, *others = [counted.calls for counted in whole]
    assert first == 1
    assert others == [5, 5]


def test_a_cache_that_cannot_be_copied_is_compressed_for_each_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, drafts, counted = prefill(), Drafts(), Counted(SNAPKV)
    monkeypatch.setattr(make(SNAPKV).cache_class, "constants", None)
    drafts.expect(prompt, "m", 3)
    cells = [shared(counted, drafts) for _ in range(3)]
    for cell in cells:
        cell.compress(prompt, seed=0)

    assert (counted.calls, [cell.copied for cell in cells]) == (3, [0, 0, 0])


@pytest.fixture
def config(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setenv("VCBENCH_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
    made = tiny_config("shared", requests=REQUESTS, batch_size=2, cells=CELLS)
    task = replace(made.tasks[0], max_tokens=20)
    return replace(made, output_dir=str(tmp_path / "runs"), tasks=(task,), metrics=MetricsConfig(divergence=True))


def test_a_run_compresses_once_and_records_what_a_run_of_each_cell_alone_does(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    compress = SnapKV.compress

    def counting(self: SnapKV, prefill: Prefill, *, seed: int) -> Any:
        calls.append(prefill.cache.tokens)
        return compress(self, prefill, seed=seed)

    monkeypatch.setattr(SnapKV, "compress", counting)
    together = load_run(execute(config, console=Console(quiet=True)))
    assert len([tokens for tokens in calls if tokens != WARM_UP_PROMPT]) == REQUESTS
    alone = [
        load_run(execute(replace(config, name=f"alone-{n}", cells=(CELLS[0], cell)), console=Console(quiet=True)))
        for n, cell in enumerate(CELLS[1:])
    ]
    for run in alone:
        for cell in run.cells:
            assert {key: plain(line) for key, line in run.requests.items() if key[0] == cell.id} == {
                key: plain(line) for key, line in together.requests.items() if key[0] == cell.id
            }
            assert {key: plain(line) for key, line in run.divergences.items() if key[0] == cell.id} == {
                key: plain(line) for key, line in together.divergences.items() if key[0] == cell.id
            }
    lines = [json.loads(line) for line in (together.path / "requests.jsonl").read_text().splitlines()]
    batches = [line for line in lines if line["kind"] == "batch"]
    labels = {cell.id: cell.label for cell in together.cells}
    copied: Counter[str] = Counter()
    for batch in batches:
        copied[labels[batch["cell"]]] += batch["timing"]["compressed_before"]
        others = [each for each in batches if each["requests"] == batch["requests"]]
        same = [each["timing"]["compress_s"] for each in others if "snapkv" in labels[each["cell"]]]
        assert max(same) < 3 * min(same) + 0.01, "each is charged the one compression, and not its copying"

    assert sum(count for label, count in copied.items() if "snapkv" in label) == 2 * REQUESTS
    assert sum(count for label, count in copied.items() if "snapkv" not in label) == 0


def plain(line: Any) -> Any:
    """A line without its times."""
    return replace(line, timing={})
