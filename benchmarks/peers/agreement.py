"""Our methods against other people's code on the same model and prompt: `make peers`.

Dropping methods against kvpress 0.5.5: which entries each keeps at a quarter of the prompt. Quantisers by the error of
what they give back for the same keys and values: KIVI against transformers' quantised cache (optimum-quanto), whose
groups are KIVI's, and TurboQuant against turboquant-torch. KIVI's own package needs CUDA. `docs/compressors.md`
explains the differences. The packages need a transformers older than that of the tests: an environment of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch
from common import embedded_model, real_tokens, write_result
from torch import Tensor

from vcbench.compressors.base import prefill_for, top_positions
from vcbench.compressors.expected_attention import ExpectedAttention, ExpectedAttentionOptions
from vcbench.compressors.kivi import KIVI, KIVIOptions
from vcbench.compressors.kvzip import KVzip, KVzipOptions, repetition
from vcbench.compressors.snapkv import SnapKV, SnapKVOptions
from vcbench.compressors.turboquant import TurboQuant, TurboQuantOptions
from vcbench.engine.environment import set_threads
from vcbench.engine.model.decoder import Prefill
from vcbench.models.instruction import InstructionWriter
from vcbench.models.tokenizer import Tokenizer

PROMPT_TOKENS = (1024, 2048)
FACTOR = 4
SINKS = 4
ROTATION_SEEDS = (0, 1, 2)


def main() -> None:
    """Measures and writes benchmarks/results/peers.json."""
    from importlib.metadata import version

    from transformers import AutoModelForCausalLM

    set_threads(0)
    files, decoder = embedded_model("bitwise")
    theirs = AutoModelForCausalLM.from_pretrained(files.path, attn_implementation="sdpa", dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_files(files)
    rows = []
    for tokens in PROMPT_TOKENS:
        ids = chat_prompt(tokenizer, tokens)
        methods = [snapkv(), expected_attention(), kvzip()]
        prefill = prefill_for(methods, decoder, ids, chunk=len(ids), instruct=InstructionWriter(tokenizer))
        found = [kept_row(method, prefill, theirs, ids) for method in methods]
        found += [kvzip_same_words(prefill, theirs, ids), *error_rows(prefill)]
        for row in found:
            rows.append({"prompt_tokens": tokens, **row})
            print(rows[-1])
    names = ("kvpress", "transformers", "optimum-quanto", "turboquant-torch", "torch")
    write_result("peers", {"packages": {name: version(name) for name in names}, "rows": rows})


def chat_prompt(tokenizer: Tokenizer, tokens: int) -> list[int]:
    """Exactly `tokens` ids that begin as the chat template does, which kvpress's KVzip takes for granted."""
    head = tokenizer.chat([{"role": "user", "content": "x"}])
    start = head[: head.index(tokenizer.encode("x")[0])]
    return [*start, *real_tokens(tokens - len(start))]


def snapkv() -> SnapKV:
    """As kvpress: window 64, kernel 5."""
    return SnapKV(SnapKVOptions(factor=FACTOR, window=64, kernel=5))


def expected_attention() -> ExpectedAttention:
    """Both have the defaults of the published code."""
    return ExpectedAttention(ExpectedAttentionOptions(factor=FACTOR, sinks=SINKS))


def kvzip() -> KVzip:
    """As kvpress: chunks of 2,048 tokens, 4 sinks."""
    return KVzip(KVzipOptions(factor=FACTOR, chunk=2048, sinks=SINKS))


def kept_row(method: Any, prefill: Prefill, theirs: Any, ids: Sequence[int]) -> dict[str, Any]:
    """What both keep, each with its own code and words from beginning to end."""
    ours = torch.stack(list(method.layer_scores(prefill)))
    press, name = press_for(method)
    return {"compare": f"{type(method).__name__} with kvpress {name}"} | agreement(ours, scores_of(press, theirs, ids))


def kvzip_same_words(prefill: Prefill, theirs: Any, ids: Sequence[int]) -> dict[str, Any]:
    """KVzip once more, with kvpress made to read our instruction and chunks: what is left is the scoring."""
    method = kvzip()
    ours = torch.stack(list(method.layer_scores(prefill)))
    press, _ = press_for(method)

    def prepare(model: Any, tokenizer: Any, prev_postfix_size: int = 8) -> list[tuple[Tensor, Tensor]]:
        press.score_val = torch.zeros(ours.shape).unsqueeze(1)
        press.prefix_length = SINKS
        press.start_idx = SINKS
        pairs = []
        for start in range(SINKS, len(ids), 2048):
            stop = min(start + 2048, len(ids))
            words = repetition(prefill, start, stop, first=start == SINKS)
            pairs.append((torch.tensor([ids[start:stop]]), torch.tensor([words])))
        return pairs

    press.prepare = prepare
    found = scores_of(press, theirs, ids)
    return {"compare": "KVzip with kvpress KVzipPress reading our words"} | agreement(ours, found)


def press_for(method: Any) -> tuple[Any, str]:
    """kvpress's class for one of our methods, with the same options."""
    from kvpress import ExpectedAttentionPress, KVzipPress, SnapKVPress

    ratio = 1 - 1 / FACTOR
    press: Any
    if isinstance(method, SnapKV):
        press = SnapKVPress(ratio, window_size=64, kernel_size=5)
    elif isinstance(method, ExpectedAttention):
        press = ExpectedAttentionPress(ratio, n_future_positions=512, n_sink=SINKS)
    else:
        press = KVzipPress(ratio, layerwise=True, n_sink=SINKS, chunk_size=2048)
    return press, type(press).__name__


@torch.no_grad()
def scores_of(press: Any, model: Any, ids: Sequence[int]) -> Tensor:
    """The scores that kvpress gives a prompt's entries: [L, Hk, T]."""
    from transformers import DynamicCache

    found: dict[int, Tensor] = {}
    if hasattr(press, "score"):
        compute = press.score

        def keep(module: Any, *rest: Any) -> Tensor:
            found[module.layer_idx] = compute(module, *rest)[0]
            return found[module.layer_idx][None]

        press.score = keep
    else:

        def keep_all(model: Any) -> None:
            scores = press.score_val[:, 0].clone()
            scores[..., :SINKS] = scores.max() + 1
            found.update(enumerate(scores))

        press.compress_post = keep_all
    with press(model):
        model.model(input_ids=torch.tensor([list(ids)]), past_key_values=DynamicCache())
    return torch.stack([found[layer] for layer in sorted(found)])


def agreement(ours: Tensor, theirs: Tensor) -> dict[str, Any]:
    """ours, theirs: [L, Hk, T]. The share of entries that both keep when each keeps a quarter; rank correlation."""
    budget = ours.shape[2] // FACTOR
    shares, ranks = [], []
    for a, b in zip(ours.flatten(0, 1), theirs.flatten(0, 1), strict=True):
        kept = [set(top_positions(x[None].float(), budget)[0].tolist()) for x in (a, b)]
        shares.append(len(kept[0] & kept[1]) / budget)
        both = torch.isfinite(a) & torch.isfinite(b) & (b > 0)
        ranks.append(float(torch.corrcoef(torch.stack([x[both].argsort().argsort().double() for x in (a, b)]))[0, 1]))
    values = torch.tensor(shares)
    return {
        "kept_by_both": {"mean": float(values.mean()), "lowest": float(values.min()), "chance": 1 / FACTOR},
        "rank_correlation": {"mean": float(torch.tensor(ranks).mean()), "lowest": min(ranks)},
        "heads": len(shares),
    }


def error_rows(prefill: Prefill) -> list[dict[str, Any]]:
    """Squared error over squared norm of keys and values as each quantiser gives them back."""
    rows = []
    store, shape = prefill.cache.store, prefill.cache.shape
    # Whole groups alone: both leave the newest tokens exact.
    count = prefill.cache.tokens - 128
    exact = [store.read_range(layer, 0, prefill.cache.tokens) for layer in range(shape.n_layers)]
    for bits in (4, 2):
        cache = KIVI(KIVIOptions(bits=bits, group=32)).compress(prefill, seed=0)
        ours = relative_error(exact, [cache.materialize(layer)[:2] for layer in range(shape.n_layers)], count)
        theirs = relative_error(exact, [quanto(k, v, bits) for k, v in exact], count)
        rows.append({"compare": f"KIVI {bits} bits with optimum-quanto", "ours": ours, "theirs": theirs})
    for bits in (4, 3, 2):
        drawn: dict[str, list[dict[str, float]]] = {"ours": [], "theirs": []}
        for seed in ROTATION_SEEDS:
            options = TurboQuantOptions(bits=f"k{bits}v{bits}", scale="plain", rotation_seed=seed)
            cache = TurboQuant(options).compress(prefill, seed=0)
            ours = [cache.materialize(layer)[:2] for layer in range(shape.n_layers)]
            drawn["ours"].append(relative_error(exact, ours, count))
            drawn["theirs"].append(relative_error(exact, [turboquant(k, v, bits, seed) for k, v in exact], count))
        rows.append({"compare": f"TurboQuant {bits} bits with turboquant-torch", **drawn})
    return rows


Entries = Sequence[tuple[Tensor, Tensor]]


def relative_error(exact: Entries, found: Entries, count: int) -> dict[str, float]:
    """Over all layers, of the first `count` tokens; exact, found: keys and values [Hk, T, D] of each layer."""
    result = {}
    for part, name in enumerate(("keys", "values")):
        pairs = [(a[part][:, :count].double(), b[part][:, :count].double()) for a, b in zip(exact, found, strict=True)]
        errors = torch.tensor([float(((a - b) ** 2).sum() / (a**2).sum()) for a, b in pairs])
        result[name] = float(errors.mean())
    return result


def quanto(k: Tensor, v: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """optimum-quanto with the groups of KIVI: 32 tokens of a channel for keys, 32 channels of a token for values."""
    from optimum.quanto import MaxOptimizer, qint2, qint4, quantize_weight

    kind = {2: qint2, 4: qint4}[bits]

    def there_and_back(rows: Tensor) -> Tensor:
        scale, zero = MaxOptimizer()(rows, kind, 0, 32)
        back: Tensor = quantize_weight(rows, kind, 0, scale, zero, 32).dequantize()
        return back

    tokens = k.shape[1] - k.shape[1] % 32
    turned = k[:, :tokens].mT.reshape(-1, tokens).contiguous()
    keys = there_and_back(turned).view(k.shape[0], k.shape[2], tokens).mT
    return keys, there_and_back(v.reshape(-1, v.shape[2]).contiguous()).view(v.shape)


def turboquant(k: Tensor, v: Tensor, bits: int, seed: int) -> tuple[Tensor, Tensor]:
    """turboquant-torch: a randomised Hadamard transform and Lloyd-Max levels."""
    from turboquant.mse_quantizer import TurboQuantMSE

    coder = TurboQuantMSE(k.shape[-1], bits, seed=seed)
    return coder.dequantize(coder.quantize(k)), coder.dequantize(coder.quantize(v))


if __name__ == "__main__":
    main()
