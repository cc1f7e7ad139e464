"""Full-KV decoding against transformers, batch 8 against batch 1, and what bit-exactness costs, as ratios in one run.

Run it on an idle machine: `python benchmarks/decode.py`. Writes benchmarks/results/decode.json.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

from common import embedded_model, real_tokens, write_result

CONTEXTS = (2048, 4096)
STEPS = 16
ROUNDS = 5
BATCH = 8


def timed_steps(step: Callable[[], Any], steps: int = STEPS) -> list[float]:
    """Seconds of each of `steps` calls after one that does not count."""
    step()
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    return seconds


class TokenClock:
    """A streamer for `generate` that notes when each token came."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Nothing is held back."""


def generate_step_s(model: Any, ids: list[int]) -> float:
    """Median seconds between two tokens of transformers' greedy `generate`; the prompt and the first token left out."""
    import torch

    clock, prompt = TokenClock(), torch.tensor([ids])
    with torch.inference_mode():
        model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=STEPS + 2,
                       min_new_tokens=STEPS + 2, do_sample=False, pad_token_id=0, streamer=clock)  # fmt: skip
    came = clock.times[2:]
    return statistics.median([after - before for before, after in itertools.pairwise(came)])


def engine_step(decoder: Any, caches: list[Any], token: int) -> Callable[[], Any]:
    """One greedy step of our engine for each cache."""
    from vcbench.engine.model.decoder import Block

    tokens = [token] * len(caches)

    def step() -> None:
        nonlocal tokens
        tokens = decoder.rows.arg_max(decoder.forward([Block(c, [t]) for c, t in zip(caches, tokens, strict=True)]))
        for cache in caches:
            cache.commit(1)

    return step


def copies(cache: Any, count: int) -> list[Any]:
    """The cache and further ones with the same entries in memory of their own."""
    from vcbench.engine.kv.cache import FullCache

    made = [cache]
    while len(made) < count:
        twin = FullCache(cache.shape)
        twin.store.reserve(cache.tokens)
        twin.store.copy_from(cache.store, 0, 0, cache.tokens)
        twin.commit(cache.tokens)
        made.append(twin)
    return made


def measure_context(decoders: dict[str, Any], model: Any, context: int) -> dict[str, Any]:
    """Interleaved rounds at one context: transformers, and our engine at batch 1 (both exactness levels) and 8."""
    ids = real_tokens(context)
    bitwise = decoders["bitwise"]
    caches = copies(bitwise.prefill(ids, chunk=2048).cache, BATCH)
    steps: dict[str, list[float]] = {name: [] for name in ("bitwise", "fast", "transformers", f"batch_{BATCH}")}
    for _ in range(ROUNDS):
        single = [(name, decoder, caches[:1]) for name, decoder in decoders.items()]
        for name, decoder, used in (*single, (f"batch_{BATCH}", bitwise, caches)):
            for cache in used:
                cache.rewind(context)
            steps[name].append(statistics.median(timed_steps(engine_step(decoder, used, ids[-1]))))
        steps["transformers"].append(generate_step_s(model, ids))
    median = {name: statistics.median(seconds) for name, seconds in steps.items()}
    return {
        "context_tokens": context,
        "tokens_per_s": {
            name: (BATCH if name.startswith("batch") else 1) / seconds for name, seconds in median.items()
        },
        "full_kv_over_transformers_generate": median["transformers"] / median["bitwise"],
        f"batch_{BATCH}_over_batch_1": BATCH * median["bitwise"] / median[f"batch_{BATCH}"],
        "bitwise_over_fast_time": median["bitwise"] / median["fast"],
        "step_s": steps,
    }


def main() -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from vcbench.engine.environment import set_threads

    threads = set_threads(0)
    files, bitwise = embedded_model("bitwise")
    decoders = {"bitwise": bitwise, "fast": embedded_model("fast")[1]}
    model = AutoModelForCausalLM.from_pretrained(files.path, dtype=torch.float32).eval()
    contexts = [measure_context(decoders, model, context) for context in CONTEXTS]
    for row in contexts:
        print({key: value for key, value in row.items() if key != "step_s"})
    write_result("decode", {"threads": threads, "contexts": contexts})


if __name__ == "__main__":
    main()
