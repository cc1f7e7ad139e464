"""How tokens are chosen: what a configuration may say about it, and what the engine is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar


def _doc(text: str, **limits: Any) -> dict[str, Any]:
    return {"doc": text, **limits}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is chosen from logits; the default is greedy. `docs/sampling.md` has the order of steps."""

    UNSUPPORTED: ClassVar[frozenset[str]] = frozenset({
        "allowed_token_ids", "bad_words", "best_of", "diversity_penalty", "dry_multiplier", "epsilon_cutoff",
        "encoder_repetition_penalty", "eta_cutoff", "forced_bos_token_id", "guided_decoding", "length_penalty",
        "logits_processors", "mirostat", "n", "no_repeat_ngram_size", "num_beams", "penalty_alpha", "suppress_tokens",
        "structured_outputs", "tfs", "top_a", "top_h", "top_n_sigma", "typical_p", "xtc_probability",
    })  # fmt: skip
    """Settings of other engines that change the answer and that this one does not have."""
    SHORTHAND: ClassVar[str] = "model"
    SHORTHAND_MEANS: ClassVar[Mapping[str, Any]] = {"model": True}
    """`sampling: model` is `sampling: {model: true}`."""

    temperature: float = field(
        default=0.0, metadata=_doc("Logits are divided by it; 0 takes the best token and draws nothing.", minimum=0)
    )
    top_k: int = field(default=0, metadata=_doc("Only this many best tokens (and their equals); 0 is all.", minimum=0))
    top_p: float = field(
        default=1.0, metadata=_doc("Only the fewest best tokens with this probability in all.", above=0, maximum=1)
    )
    min_p: float = field(
        default=0.0, metadata=_doc("Only tokens with this share of the best one's probability.", minimum=0, maximum=1)
    )
    repetition_penalty: float = field(
        default=1.0,
        metadata=_doc(
            "Logits of tokens in prompt or output are divided by it, negative ones multiplied.",
            minimum=0.01,
            maximum=100,
        ),
    )
    presence_penalty: float = field(
        default=0.0, metadata=_doc("Taken from the logits of tokens in the output.", minimum=-2, maximum=2)
    )
    frequency_penalty: float = field(
        default=0.0,
        metadata=_doc("Taken from a token's logit once for each time it was output.", minimum=-2, maximum=2),
    )
    logit_bias: Mapping[int, float] = field(
        default_factory=dict,
        metadata=_doc("Added to the logits of tokens: ids in quotes -> number.", minimum=-100, maximum=100),
    )
    min_tokens: int = field(
        default=0, metadata=_doc("Neither a stop id nor a stop string ends the output before this many.", minimum=0)
    )
    seed: int | None = field(default=None, metadata=_doc("Seed of the draws; null takes the run's.", minimum=0))
    model: bool = field(
        default=False,
        metadata=_doc("Takes all of it from the model's generation_config.json; only `seed` may stand beside it."),
    )

    @property
    def takes_best(self) -> bool:
        """Whether the choice is the first of the largest logits, untouched. At temperature 0 no filter matters."""
        neutral = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) == (1.0, 0.0, 0.0)
        return self.temperature == 0 and neutral and not self.logit_bias and not self.min_tokens
