"""Perplexity over codes of 3 bits, from the paper's best form of KVQuant down to codes by token (A-KVQ-6; its table 3).

Convention: a prompt is prefilled in full precision and then coded. The text after it is forced through in blocks of 64
tokens; a token sees its own block exactly and everything before as codes, and each block is coded once it has passed,
from keys and values that were computed over codes. The first token of the text stays exact in every form. Perplexities
of papers that prefill over codes, or that never code what follows the prompt, are not comparable with these.

Needs `vcbench calibrate smollm2-135m kvquant`. Writes benchmarks/results/perplexity.json.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from common import embedded_model, write_result

# isort: split
import torch
from rich.console import Console
from torch import Tensor

from vcbench.calibration.base import Calibration
from vcbench.calibration.store import find_calibration
from vcbench.compressors.kvquant import KVQuant, KVQuantOptions
from vcbench.engine.codes.codebook import Codebooks, as_stored
from vcbench.engine.codes.codebook_cache import NonuniformCache
from vcbench.engine.codes.frames import Kind
from vcbench.engine.codes.quantised import QuantisedCache
from vcbench.engine.codes.scheme import Scheme
from vcbench.engine.decoding.forcing import force
from vcbench.engine.kernels.cpu.exact.attention import BLOCK
from vcbench.engine.kv.cache import KVCache
from vcbench.engine.model.decoder import Decoder, Prefill
from vcbench.metrics.interval import Estimate, mean
from vcbench.models.tokenizer import Tokenizer
from vcbench.tasks.stdlib import ENTRIES, read_document

BITS = 3
PROMPT, CONTINUATION = 16 * BLOCK, 4 * BLOCK
FULL = "full"
Make = Callable[[Prefill], KVCache]


def main() -> None:
    """Measures, writes the result and shows it."""
    files, decoder = embedded_model("fast")
    need = KVQuant.calibration_need(KVQuantOptions())
    assert need is not None
    fit = find_calibration("kvquant", need, model_id=files.id, weights_sha256=files.weights_sha256)
    encode, console = Tokenizer.from_files(files).encode, Console()
    texts = {entry.document: encode(read_document(entry))[: PROMPT + CONTINUATION + 1] for entry in ENTRIES}
    texts = {name: ids for name, ids in texts.items() if len(ids) == PROMPT + CONTINUATION + 1}
    makes = forms(fit, decoder)
    losses: dict[str, list[float]] = {name: [] for name in (FULL, *makes)}
    bits: dict[str, float] = {}
    for number, (name, ids) in enumerate(texts.items(), start=1):
        prefill = decoder.prefill(ids[:PROMPT], chunk=512)
        caches = {FULL: prefill.cache, **{form: make(prefill) for form, make in makes.items()}}
        bits = {form: bits_per_element(cache) for form, cache in caches.items()}
        for form, loss in losses_of(decoder, caches, ids).items():
            losses[form].append(loss)
        console.print(f"{number} of {len(texts)}: {name}", highlight=False)
    rows = [row(form, values, bits[form]) for form, values in losses.items()]
    steps = [step(better, worse, losses) for better, worse in pairwise(losses)]
    tokens = {"prompt": PROMPT, "scored": CONTINUATION, "block": BLOCK}
    write_result("perplexity", {"texts": list(texts), "tokens": tokens, "rows": rows, "steps": steps})
    for each in rows:
        console.print(
            f"{each['form']}: {each['perplexity']:.3f} at {each['bits_per_element']:.2f} bits", highlight=False
        )
    for each in steps:
        low, high = each["low"], each["high"]
        console.print(
            f"{each['worse']} loses {each['nats_per_token']:.4f} ({low:.4f} to {high:.4f}) nats a token to "
            f"{each['better']}, on {each['texts_lost']} of {each['n']} texts",
            highlight=False,
        )


def forms(fit: Calibration, decoder: Decoder) -> dict[str, Make]:
    """What is compared, in the order that the paper found, the best first."""
    options = KVQuantOptions(bits=BITS)

    def uniform(prefill: Prefill) -> KVCache:
        """KVQuant's dense form with evenly spaced levels in place of the fitted ones."""
        even = torch.linspace(-1, 1, 1 << BITS).repeat(decoder.architecture.n_layers, 1)
        levels: dict[Kind, Tensor] = {"keys": even, "values": even}
        offsets, ranges = as_stored(fit.tensors["offset.dense"], fit.tensors["range.dense"])
        books = Codebooks(
            bits=BITS, levels=levels, decoded=levels, offsets=offsets, ranges=ranges, outliers=0.0
        )  # fmt: skip
        return NonuniformCache.of_prompt(prefill.cache, books, decoder.rope, options.sinks)

    def after_embedding(axis: str) -> Make:
        """Evenly spaced levels in ranges of the tokens that are coded: of 64 in a channel, or of a head in a token."""
        size = decoder.architecture.head_dim
        scheme = Scheme(
            key_bits=BITS, value_bits=BITS, key_axis=axis, key_group=BLOCK if axis == "channel" else size,  # type: ignore[arg-type]
            value_group=size, symmetric=False, key_flush=BLOCK,
        )  # fmt: skip
        first = [torch.arange(options.sinks)] * decoder.architecture.n_layers
        return lambda prefill: QuantisedCache.of_prompt(prefill.cache, scheme, exact=first)

    return {
        "nuq3-1%": lambda prefill: KVQuant(options, fit).compress(prefill, seed=0),
        "nuq3": lambda prefill: KVQuant(replace(options, outliers=0.0), fit).compress(prefill, seed=0),
        "int3, keys by channel before RoPE": uniform,
        "int3, keys by channel": after_embedding("channel"),
        "int3, keys by token": after_embedding("token"),
    }


def bits_per_element(cache: KVCache) -> float:
    """Of all that a cache holds for the prompt."""
    shape = cache.shape
    elements = 2 * shape.n_layers * shape.n_kv_heads * shape.head_dim * cache.tokens
    return 8 * sum(cache.nbytes().values()) / elements


def losses_of(decoder: Decoder, caches: dict[str, KVCache], ids: Sequence[int]) -> dict[str, float]:
    """Mean negative log-likelihood of what follows the prompt, in nats a token, by form."""
    sums = dict.fromkeys(caches, 0.0)
    following = torch.tensor(ids[PROMPT + 1 : PROMPT + CONTINUATION + 1])
    fed = dict.fromkeys(caches, ids[PROMPT : PROMPT + CONTINUATION])
    for forced in force(decoder, caches, fed, rows=BLOCK, past_horizon=True):
        right = following[forced.first : forced.first + len(forced.logits)]
        loss = torch.nn.functional.cross_entropy(forced.logits.double(), right, reduction="sum")
        sums[forced.key] += float(loss)
    return {name: total / CONTINUATION for name, total in sums.items()}


def row(form: str, losses: Sequence[float], bits: float) -> dict[str, Any]:
    """A form's perplexity over all texts."""
    found = mean(losses)
    assert found is not None
    low, high = (None if bound is None else math.exp(bound) for bound in (found.low, found.high))
    return {
        "form": form,
        "bits_per_element": bits,
        "perplexity": math.exp(found.value),
        "low": low,
        "high": high,
        "nats_per_token": list(losses),
    }


def step(better: str, worse: str, losses: dict[str, list[float]]) -> dict[str, Any]:
    """By how much the second form loses to the first on the same texts, and on how many of them it does."""
    differences = [b - a for a, b in zip(losses[better], losses[worse], strict=True)]
    found = mean(differences)
    assert found is not None
    return {"better": better, "worse": worse, "texts_lost": sum(x > 0 for x in differences), **interval(found)}


def interval(found: Estimate) -> dict[str, Any]:
    """An estimate as JSON."""
    return {"nats_per_token": found.value, "low": found.low, "high": found.high, "n": found.n}


if __name__ == "__main__":
    main()
