"""Full KV of the bundled engine against transformers (eager, float32) on the embedded model: no code in common.

Both decode greedily by themselves. Where the two outputs part, both implementations score the common prefix, and the
fork is a near tie if each one's own gap between the two tokens is no larger than twice what separates the two
implementations' logits there, which in turn must be small.
"""

from __future__ import annotations

import pydoc_data.topics
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console

from vcbench.config.schema import ModelConfig
from vcbench.engine.environment import set_threads
from vcbench.engine.model.decoder import Block, Decoder
from vcbench.engine.model.load import load_decoder
from vcbench.metrics.text import first_divergence
from vcbench.models.store import resolve_model
from vcbench.models.tokenizer import Tokenizer
from vcbench.models.weights import WeightReader

EMBEDDED = "smollm2-135m"
PROMPTS, TOKENS = 20, 128
PROMPT_TOKENS = (100, 500)
LARGEST_DIFFERENCE = 2e-3
"""Between two float32 implementations of one forward pass; the conversion's own bound is 1e-4 on short prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fork:
    """Where two outputs part. `gaps`: each implementation's own distance between its token and the other's."""

    prompt: int
    step: int
    ours: int
    theirs: int
    gaps: tuple[float, float]
    difference: float

    @property
    def is_near_tie(self) -> bool:
        """Whether rounding alone explains the fork."""
        return self.difference <= LARGEST_DIFFERENCE and max(self.gaps) <= 2 * self.difference


def compare_with_transformers(console: Console, *, prompts: int = PROMPTS, tokens: int = TOKENS) -> bool:
    """Whether every output is identical or parts at a near tie; margins are printed."""
    from transformers import AutoModelForCausalLM

    files = resolve_model(ModelConfig(id=EMBEDDED))
    set_threads(0)
    with WeightReader(files.path) as reader:
        decoder, _ = load_decoder(
            files.architecture, reader, device=torch.device("cpu"), dtype=torch.float32, exactness="bitwise"
        )
    model = AutoModelForCausalLM.from_pretrained(files.path, attn_implementation="eager", dtype=torch.float32).eval()
    asked = drawn_prompts(Tokenizer.from_files(files), prompts)
    identical, forks = 0, list[Fork]()
    for number, prompt in enumerate(asked):
        ours, theirs = greedy(decoder, prompt, tokens), generate(model, prompt, tokens)
        step = first_divergence(theirs, ours)
        if step is None:
            identical += 1
        else:
            forks.append(fork_at(decoder, model, prompt, ours, theirs, step, number))
        console.print(f"{number + 1:3} of {prompts}: {'identical' if step is None else forks[-1]}")
    for fork in forks:
        print(
            f"prompt {fork.prompt} parts at token {fork.step} ({fork.ours} ours, {fork.theirs} transformers'): gaps "
            f"{fork.gaps[0]:.2e} and {fork.gaps[1]:.2e}, logits differ by {fork.difference:.2e}: "
            f"{'near tie' if fork.is_near_tie else 'VIOLATION'}"
        )
    ties = sum(fork.is_near_tie for fork in forks)
    print(f"full KV against transformers, {prompts} prompts x {tokens} tokens: {identical} identical, {ties} near ties")
    return identical + ties == prompts


def drawn_prompts(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """Consecutive tokens of the standard library's documentation."""
    draw = random.Random(0)
    text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    ids = tokenizer.encode(text[:400_000])
    found = []
    for _ in range(count):
        length = draw.randint(*PROMPT_TOKENS)
        start = draw.randrange(len(ids) - length)
        found.append(ids[start : start + length])
    return found


def greedy(decoder: Decoder, prompt: Sequence[int], tokens: int) -> list[int]:
    """Our own full-KV decoding, one token at a time, past any stop."""
    prefill = decoder.prefill(prompt, chunk=len(prompt))
    output = [int(prefill.first_logits.argmax())]
    while len(output) < tokens:
        logits = decoder.forward([Block(prefill.cache, output[-1:])])
        prefill.cache.commit(1)
        output += decoder.rows.arg_max(logits)
    return output


def generate(model: Any, prompt: Sequence[int], tokens: int) -> list[int]:
    """transformers' own greedy decoding, past any stop."""
    ids = torch.tensor([list(prompt)])
    with torch.no_grad():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
            eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    result: list[int] = out[0, len(prompt) :].tolist()
    return result


def fork_at(
    decoder: Decoder, model: Any, prompt: Sequence[int], ours: list[int], theirs: list[int], step: int, number: int
) -> Fork:
    """Both implementations' logits after the common prefix."""
    prefix = [*prompt, *ours[:step]]
    own = decoder.prefill(prefix, chunk=len(prefix)).first_logits
    with torch.no_grad():
        other = model(torch.tensor([prefix])).logits[0, -1].float()
    a, b = ours[step], theirs[step]
    return Fork(
        prompt=number,
        step=step,
        ours=a,
        theirs=b,
        gaps=(float(own[a] - own[b]), float(other[b] - other[a])),
        difference=float((own - other).abs().max()),
    )
