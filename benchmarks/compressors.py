"""Every compression method against the full cache at 8k tokens: attention, whole steps, and compressing itself.

Run it on an idle machine: `python benchmarks/compressors.py`, or with names from `METHODS` to measure those alone and
leave the others' results as they are. Writes benchmarks/results/compressors.json. All ratios are within one run: each
round times the full cache and the method one after the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from common import RESULTS, embedded_model, measured_at, real_tokens, write_result

CONTEXT = 8192
PREFILL_CHUNK = 2048
ROUNDS = 5
STEPS = {1: 6, 8: 3}
"""Timed steps of a round, by batch size."""

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "streamingllm-4x": ("streamingllm", {"factor": 4.0}),
    "snapkv-4x": ("snapkv", {"factor": 4.0}),
    "pyramidkv-4x": ("pyramidkv", {"factor": 4.0}),
    "expected-attention-4x": ("expected-attention", {"factor": 4.0}),
    "kvzip-4x": ("kvzip", {"factor": 4.0}),
    "kvzip-chunk-4x": ("kvzip", {"factor": 4.0, "reads": "chunk"}),
    "kvzap-4x": ("kvzap", {"factor": 4.0}),
    "keydiff-4x": ("keydiff", {"factor": 4.0}),
    "knorm-4x": ("knorm", {"factor": 4.0}),
    "h2o-4x": ("h2o", {"factor": 4.0}),
    "tova-4x": ("tova", {"factor": 4.0}),
    "int8": ("int8", {}),
    "fp8": ("fp8", {}),
    "int4": ("int4", {}),
    "kivi-4": ("kivi", {"bits": 4}),
    "kivi-3": ("kivi", {"bits": 3}),
    "kivi-2": ("kivi", {"bits": 2}),
    "turboquant-k4v4": ("turboquant", {"bits": "k4v4"}),
    "turboquant-k4v3": ("turboquant", {"bits": "k4v3"}),
    "rotatekv": ("rotatekv", {}),
    "kvquant": ("kvquant", {}),
}
"""Compressor and options by the name under which a result is stored."""

DROPPING_TARGET, INT8_TARGET, FOUR_BIT_TARGET = 0.30, 0.60, 0.55
ATTENTION_TARGETS = {
    **{name: DROPPING_TARGET for name in METHODS if name.endswith("-4x")},
    "int8": INT8_TARGET,
    "int4": FOUR_BIT_TARGET,
    "kivi-4": FOUR_BIT_TARGET,
    "turboquant-k4v4": FOUR_BIT_TARGET,
    "kvquant": FOUR_BIT_TARGET,
    "rotatekv": FOUR_BIT_TARGET,
}
COMPRESSION_TARGETS = {
    "snapkv-4x": 0.05,
    "streamingllm-4x": 0.05,
    "kivi-4": 0.05,
    "int8": 0.05,
    "expected-attention-4x": 0.10,
    "kvzip-4x": 1.30,
    "kvzip-chunk-4x": 1.30,
}
"""Shares of the prefill's time."""


class AttentionClock:
    """Seconds spent in attention, the writing of new entries included."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def install(self) -> None:
        """Times every call of the decoder's attention from now on."""
        from vcbench.engine.attention.forward import BatchAttention
        from vcbench.engine.model import decoder

        clock = self

        class Timed(BatchAttention):
            def __init__(self, parts: Any) -> None:
                with clock.running():
                    super().__init__(parts)

            def __call__(self, layer: int, q: Any, k: Any, v: Any) -> Any:
                with clock.running():
                    return super().__call__(layer, q, k, v)

        decoder.BatchAttention = Timed  # type: ignore[attr-defined]

    @contextmanager
    def running(self) -> Iterator[None]:
        """Counts what happens inside."""
        started = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - started


class Bench:
    """The model, one prompt's prefill and the full caches that all methods are held against."""

    def __init__(self, names: list[str]) -> None:
        """Prefills with all that the named methods ask for; methods that cannot run here are in `skipped`."""
        self.files, self.decoder = embedded_model("bitwise")
        self.clock = AttentionClock()
        self.clock.install()
        self.skipped: dict[str, str] = {}
        self.compressors = {name: made for name in names if (made := self._compressor(name)) is not None}
        self.statistic_s: dict[Any, float] = {}
        self._prefill()
        self.full = [self.prefill.cache]
        self.full += [copy_of(self.prefill.cache) for _ in range(max(STEPS) - 1)]

    def _compressor(self, name: str) -> Any:
        from vcbench import registry
        from vcbench.calibration.store import find_calibration
        from vcbench.config.options import build_options
        from vcbench.errors import CalibrationError

        compressor, options = METHODS[name]
        cls = registry.lookup("compressor", compressor)
        built = build_options("compressor", compressor, options)
        need = cls.calibration_need(built)
        try:
            found = need and find_calibration(
                compressor, need, model_id=self.files.id, weights_sha256=self.files.weights_sha256
            )
        except CalibrationError as error:
            self.skipped[name] = str(error)
            return None
        return cls(built, found) if found else cls(built)

    def _prefill(self) -> None:
        """One prefill for all; what gathering a statistic takes is measured apart and taken off."""
        from vcbench.models.instruction import InstructionWriter
        from vcbench.models.tokenizer import Tokenizer

        ids = real_tokens(CONTEXT)
        self.decoder.prefill(ids[:PREFILL_CHUNK], chunk=PREFILL_CHUNK)
        wanted = dict.fromkeys(s for made in self.compressors.values() for s in made.statistics)
        for statistic in wanted:
            self._time(statistic)
        window = max((made.query_window for made in self.compressors.values()), default=0)
        started = time.perf_counter()
        self.prefill = self.decoder.prefill(
            ids, chunk=PREFILL_CHUNK, query_window=window, statistics=wanted,
            instruct=InstructionWriter(Tokenizer.from_files(self.files)),
        )  # fmt: skip
        self.prefill_s = time.perf_counter() - started - sum(self.statistic_s.values())
        print(f"prefill of {CONTEXT} tokens: {self.prefill_s:.1f} s")

    def _time(self, statistic: Any) -> None:
        """Counts the seconds that gathering a statistic takes."""
        self.statistic_s[statistic] = 0.0
        begin = type(statistic).begin

        def timed_begin(one: Any, shape: Any, tokens: int) -> Any:
            made = begin(one, shape, tokens)
            add = made.add

            def timed_add(rows: Any) -> None:
                started = time.perf_counter()
                add(rows)
                self.statistic_s[one] += time.perf_counter() - started

            made.add = timed_add
            return made

        type(statistic).begin = timed_begin

    def compressed(self, name: str) -> tuple[Any, float]:
        """A method's cache and the seconds that it took, gathering its statistics included."""
        compressor = self.compressors[name]
        started = time.perf_counter()
        cache = compressor.compress(self.prefill, seed=0)
        seconds = time.perf_counter() - started
        return cache, seconds + sum(self.statistic_s[s] for s in compressor.statistics)

    def twins(self, name: str, cache: Any, count: int) -> list[Any]:
        """The cache and further ones with the same content in memory of their own."""
        from vcbench.engine.kv.kept import KeptCache

        if type(cache) is KeptCache:
            return [cache, *(KeptCache.gather(self.prefill.cache, cache.positions) for _ in range(count - 1))]
        return [cache, *(self.compressed(name)[0] for _ in range(count - 1))]

    def steps(self, caches: list[Any]) -> tuple[float, float]:
        """Median seconds of attention and of a whole step, after one step that does not count."""
        from vcbench.engine.model.decoder import Block

        attention, whole, tokens = [], [], [1] * len(caches)
        for _ in range(STEPS[len(caches)] + 1):
            self.clock.seconds, started = 0.0, time.perf_counter()
            blocks = [Block(cache, [token]) for cache, token in zip(caches, tokens, strict=True)]
            tokens = self.decoder.rows.arg_max(self.decoder.forward(blocks))
            for cache in caches:
                cache.commit(1)
            whole.append(time.perf_counter() - started)
            attention.append(self.clock.seconds)
        return statistics.median(attention[1:]), statistics.median(whole[1:])

    def measure(self, name: str) -> dict[str, Any]:
        """Everything about one method."""
        cache, seconds = self.compressed(name)
        caches = self.twins(name, cache, max(STEPS))
        result: dict[str, Any] = {
            "measured": measured_at(),
            "compressor": METHODS[name][0],
            "options": METHODS[name][1],
            "compression_s": seconds,
            "compression_over_prefill": seconds / self.prefill_s,
            "prefill_s": self.prefill_s,
        }
        for batch in STEPS:
            result[f"batch_{batch}"] = self.rounds(caches[:batch], self.full[:batch])
        return result

    def rounds(self, caches: list[Any], full: list[Any]) -> dict[str, Any]:
        """Ratios of method to full cache, round by round."""
        self.steps(caches)
        timed: dict[str, list[float]] = {
            key: [] for key in ("full_attention_s", "full_step_s", "attention_s", "step_s")
        }
        for _ in range(ROUNDS):
            for cache in full:
                cache.rewind(CONTEXT)
            for prefix, used in (("full_", full), ("", caches)):
                attention, whole = self.steps(used)
                timed[f"{prefix}attention_s"].append(attention)
                timed[f"{prefix}step_s"].append(whole)
        for cache in full:
            cache.rewind(CONTEXT)
        return {
            "attention_over_full": spread(timed["attention_s"], timed["full_attention_s"]),
            "step_over_full": spread(timed["step_s"], timed["full_step_s"]),
            **{key: statistics.median(seconds) for key, seconds in timed.items()},
        }


def copy_of(cache: Any) -> Any:
    """A full cache with the same entries in memory of its own."""
    from vcbench.engine.kv.cache import FullCache

    twin = FullCache(cache.shape)
    twin.store.reserve(cache.tokens)
    twin.store.copy_from(cache.store, 0, 0, cache.tokens)
    twin.commit(cache.tokens)
    return twin


def spread(ours: list[float], full: list[float]) -> dict[str, float]:
    """Median, lowest and highest ratio of rounds."""
    ratios = [a / b for a, b in zip(ours, full, strict=True)]
    return {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}


def against(value: float, target: float | None) -> str:
    """A ratio and what became of its target."""
    if target is None:
        return f"{value:.2f}"
    return f"{value:.2f} ({'met' if value <= target else 'missed'}: {target:.2f})"


def row_of(name: str, result: dict[str, Any]) -> str:
    """A method's line of the printed table."""
    ratios = [result[f"batch_{batch}"]["attention_over_full"]["median"] for batch in STEPS]
    whole = [result[f"batch_{batch}"]["step_over_full"]["median"] for batch in STEPS]
    attention = ", ".join(against(ratio, ATTENTION_TARGETS.get(name)) for ratio in ratios)
    compression = against(result["compression_over_prefill"], COMPRESSION_TARGETS.get(name))
    steps = ", ".join(f"{ratio:.2f}" for ratio in whole)
    return f"{name}: attention {attention}; step {steps}; compression / prefill {compression}"


def main(around: Callable[[], Any] | None = None) -> None:
    """`around`: a context manager to measure each method in."""
    from contextlib import nullcontext

    from vcbench.engine.environment import set_threads

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", choices=[*METHODS, []], help="methods to measure; all if none is named")
    names = parser.parse_args().methods or list(METHODS)
    quiet, threads = around or nullcontext, set_threads(0)
    with quiet():
        bench = Bench(names)
    path = RESULTS / "compressors.json"
    measured = json.loads(path.read_text())["methods"] if path.exists() and names != list(METHODS) else {}
    for name, reason in bench.skipped.items():
        print(f"{name}: not measured: {reason}")
        measured.setdefault(name, {"skipped": reason})
    for name in bench.compressors:
        with quiet():
            measured[name] = bench.measure(name)
        print(row_of(name, measured[name]), flush=True)
        write_result(
            "compressors",
            {
                "threads": threads,
                "context_tokens": CONTEXT,
                "targets": {"attention": ATTENTION_TARGETS, "compression_over_prefill": COMPRESSION_TARGETS},
                "methods": {name: measured[name] for name in METHODS if name in measured},
            },
        )


if __name__ == "__main__":
    main()
