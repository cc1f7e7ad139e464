"""`generation_config.json`: when the model's answers end, and the settings with which transformers would decode.

A run decodes as its configuration says. What transformers would add of its own accord is named (`Generation.dropped`),
and `sampling: model` takes it over, or refuses what this decoder does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from vcbench.config.limits import limits, within
from vcbench.config.sampling import Sampling
from vcbench.errors import ModelError
from vcbench.models.config_values import shown
from vcbench.models.hf_config import ids_within

FILE = "generation_config.json"
TOP_K = 50
"""What transformers takes where a model samples and names none."""

GREEDY: Mapping[str, tuple[Any, ...]] = {
    "bad_words_ids": ([],),
    "begin_suppress_tokens": ([],),
    "constraints": ([],),
    "dola_layers": (),
    "encoder_no_repeat_ngram_size": (0,),
    "encoder_repetition_penalty": (1,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": ([],),
    "forced_bos_token_id": (),
    "forced_decoder_ids": ([],),
    "forced_eos_token_id": (),
    "guidance_scale": (1,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "no_repeat_ngram_size": (0,),
    "num_beams": (1,),
    "penalty_alpha": (0,),
    "remove_invalid_values": (False,),
    "repetition_penalty": (1,),
    "sequence_bias": ({}, []),
    "stop_strings": ([], ""),
    "suppress_tokens": ([],),
    "token_healing": (False,),
    "watermarking_config": ({},),
}
"""Settings that change an answer even where nothing is drawn, with the values at which they do not."""

DRAWN: Mapping[str, tuple[Any, ...]] = {
    "temperature": (1,),
    "top_k": (0,),
    "top_p": (1,),
    "min_p": (0,),
    "typical_p": (1,),
    "epsilon_cutoff": (0,),
    "eta_cutoff": (0,),
    "top_h": (),
}
"""Settings that change an answer where the model samples (`do_sample: true`)."""

SUPPORTED: Mapping[str, str] = {
    "repetition_penalty": "repetition_penalty",
    "min_new_tokens": "min_tokens",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
}
"""Their names here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """`dropped`: settings that transformers applies to greedy decoding, with their values; `drawn`: when it samples."""

    stop_ids: frozenset[int] = frozenset()
    dropped: Mapping[str, Any] = field(default_factory=dict)
    drawn: Mapping[str, Any] = field(default_factory=dict)
    samples: bool = False

    def sampling(self) -> Sampling:
        """What `sampling: model` means. Raises ModelError, by name, where this decoder does not have a setting."""
        wanted = dict(self.dropped) | (dict(self.drawn) if self.samples else {})
        lacking = [f"{key} {shown(value)}" for key, value in wanted.items() if key not in SUPPORTED]
        if lacking:
            raise ModelError(
                f"sampling: model cannot take over {', '.join(lacking)} of {FILE}; supported: {', '.join(SUPPORTED)}. "
                "Write the sampling out in the task, without them"
            )
        values = {SUPPORTED[key]: value for key, value in wanted.items()}
        if self.samples:
            values = {"temperature": 1.0, "top_k": TOP_K} | values
        return replace(Sampling(), **{name: _checked(name, value) for name, value in values.items()})

    def notes(self, sampling: Sampling) -> list[str]:
        """What is worth saying where a task is decoded with `sampling` of its own."""
        kept = {key: value for key, value in self.dropped.items() if not _is_applied(key, value, sampling)}
        if not kept:
            return []
        listed = ", ".join(f"{key} {shown(value)}" for key, value in kept.items())
        lacking = [key for key in kept if key not in SUPPORTED]
        hint = f"not supported here: {', '.join(lacking)}" if lacking else "`sampling: model` takes over all of it"
        return [f"{FILE}: not applied, though transformers applies it to greedy decoding too: {listed}; {hint}"]


def parse_generation(config: Mapping[str, Any] | None, model_config: Mapping[str, Any], vocab_size: int) -> Generation:
    """What `generation_config.json` says; `config` is None where there is no such file.

    Its stop ids come first; without them those of `config.json` stand, and where that has none either, there are none.
    Raises ModelError on ids that the vocabulary does not have.
    """
    given = config or {}
    named = given.get("eos_token_id") is not None
    stop_ids = ids_within(given, "eos_token_id", vocab_size, FILE)
    if not named:
        stop_ids = ids_within(model_config, "eos_token_id", vocab_size, "config.json")
    return Generation(
        stop_ids=stop_ids,
        dropped=_active(given, GREEDY),
        drawn={key: value for key, value in given.items() if key in DRAWN and value is not None},
        samples=given.get("do_sample") is True,
    )


def stop_notes(generation: Generation, model_config: Mapping[str, Any]) -> list[str]:
    """What is worth saying of the stop ids."""
    if not generation.stop_ids:
        return ["the model names no stop id, so answers end at max_tokens or at a stop string"]
    elsewhere = model_config.get("eos_token_id")
    other = set(elsewhere if isinstance(elsewhere, list) else [elsewhere]) - {None} - generation.stop_ids
    ids = ", ".join(map(str, sorted(generation.stop_ids)))
    listed = ", ".join(map(str, sorted(other)))
    said = f"stop ids are {ids}, of {FILE}; config.json also names {listed}, which does not stop an answer"
    return [said] if other else []


def _active(config: Mapping[str, Any], settings: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    return {
        key: config[key]
        for key in settings
        if config.get(key) is not None and not _is_neutral(key, config[key], settings)
    }


def _is_neutral(key: str, value: Any, settings: Mapping[str, tuple[Any, ...]]) -> bool:
    return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in settings[key])


def _is_applied(key: str, value: Any, sampling: Sampling) -> bool:
    name = SUPPORTED.get(key)
    return name is not None and bool(getattr(sampling, name) == value)


def _checked(name: str, value: Any) -> Any:
    """A setting's value as `Sampling` has it. Raises ModelError where it is of another type or out of range."""
    spec = next(each for each in fields(Sampling) if each.name == name)
    whole = name in ("top_k", "min_tokens")
    kind = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kind) or not within(value, spec) or not abs(value) < 1e30:
        wanted = " and ".join(["a whole number" if whole else "a number", *limits(spec)])
        key = next(key for key, own in SUPPORTED.items() if own == name)
        raise ModelError(f"{FILE}: {key} is {shown(value)}; expected {wanted}")
    return value if whole else float(value)
