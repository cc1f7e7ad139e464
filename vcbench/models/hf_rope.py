"""The rotary embedding that a `config.json` asks for; where two places ask for different ones, it is refused.

transformers 5 reads `rope_scaling or rope_parameters`, the table's `rope_theta` before the outer one, and the outer
`original_max_position_embeddings` before the table's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from vcbench.errors import ModelError
from vcbench.models.architecture import Rope, RopeKind
from vcbench.models.config_keys import contradiction
from vcbench.models.config_values import LARGEST_CONTEXT, flag, integer, number, optional_number

KINDS: tuple[str, ...] = get_args(RopeKind)
LARGEST_THETA = 1e15
LARGEST_FACTOR = 1e6
ALLOWED: Mapping[str, frozenset[str]] = {
    "default": frozenset(),
    "linear": frozenset({"factor"}),
    "llama3": frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
    "yarn": frozenset({
        "factor", "original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim", "truncate",
    }),
}  # fmt: skip
EVERYWHERE = frozenset({"rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned"})


def parse_rope(config: Mapping[str, Any]) -> tuple[Rope, int]:
    """The rotary embedding and the context that it supports, in tokens.

    Raises ModelError for what is unsupported, out of bounds, or contradicts itself.
    """
    trained = integer(config, "max_position_embeddings", largest=LARGEST_CONTEXT)
    tables = {key: config[key] for key in ("rope_scaling", "rope_parameters") if config.get(key)}
    found = {key: _parse(config, key, table, trained) for key, table in tables.items()}
    if len(found) == 2 and found["rope_scaling"] != found["rope_parameters"]:
        raise contradiction("rope_scaling", config["rope_scaling"], "rope_parameters", config["rope_parameters"])
    return next(iter(found.values())) if found else _parse(config, "config.json", {}, trained)


def rope_notes(config: Mapping[str, Any], rope: Rope) -> list[str]:
    """What is worth saying of a scaling: that its factor is not the one that the lengths in config.json give."""
    trained = config.get("max_position_embeddings")
    implied = float(trained or 0) / rope.original_max_position
    if rope.kind != "yarn" or implied in (1.0, rope.factor):
        return []
    return [
        f"config.json: rope factor {rope.factor:g} of {rope.original_max_position} positions is followed, as in "
        f"transformers, though max_position_embeddings {trained} gives {implied:g}"
    ]


def _parse(config: Mapping[str, Any], key: str, table: Any, trained: int) -> tuple[Rope, int]:
    if not isinstance(table, Mapping):
        raise ModelError(f"{key} is {table!r}; expected a mapping")
    if any(isinstance(value, Mapping) for value in table.values()):
        raise ModelError(f"{key} differ by layer type; supported: one set for every layer")
    kind = _agreeing(table, "rope_type", table, "type", key) or "default"
    if kind not in KINDS:
        raise ModelError(f"rope type {kind!r} is not supported; supported: {', '.join(KINDS)}")
    _refuse_unknown(table, str(kind), key)
    partial = _agreeing(table, "partial_rotary_factor", config, "partial_rotary_factor", key)
    if partial is not None and (isinstance(partial, bool) or partial != 1):
        raise ModelError(f"partial_rotary_factor {partial} is not supported; supported: 1 (the whole head rotates)")
    _agreeing(table, "rope_theta", config, "rope_theta", key)
    source = table if table.get("rope_theta") is not None else config
    theta = number(source, "rope_theta", 10000.0, above=1.0, largest=LARGEST_THETA)
    if kind == "default":
        return Rope(theta=theta), trained
    factor = number(table, "factor", None, largest=LARGEST_FACTOR) if kind != "yarn" else 1.0
    if kind == "linear":
        return Rope(theta=theta, kind="linear", factor=factor), trained
    original = _original_context(config, table, key, trained)
    if kind == "llama3":
        return _llama3(table, theta, factor, original), trained
    rope = _yarn(table, theta, original, trained)
    # A YaRN table extends a checkpoint whose max_position_embeddings may still be the trained length (Qwen's advice).
    return rope, integer({"context": max(trained, int(rope.factor * original))}, "context", largest=LARGEST_CONTEXT)


def _refuse_unknown(table: Mapping[str, Any], kind: str, key: str) -> None:
    """Raises ModelError for a parameter that this kind does not have, unless it is null or a factor of one."""
    for name, value in table.items():
        neutral = value is None or (name in ("factor", "attn_factor", "extrapolation_factor") and value == 1)
        if name not in EVERYWHERE and name not in ALLOWED[kind] and not neutral:
            raise ModelError(f"{key}: {name} {value!r} is not supported for the rope type {kind!r}; remove it")


def _agreeing(table: Mapping[str, Any], name: str, other: Mapping[str, Any], other_name: str, key: str) -> Any:
    """The value that two places give, or the one that is given. Raises ModelError where they differ."""
    a, b = table.get(name), other.get(other_name)
    if a is not None and b is not None and a != b:
        where = f"{key}.{other_name}" if other is table else other_name
        raise contradiction(f"{key}.{name}", a, where, b)
    return a if a is not None else b


def _original_context(config: Mapping[str, Any], table: Mapping[str, Any], key: str, trained: int) -> int:
    name = "original_max_position_embeddings"
    _agreeing(table, name, config, name, key)
    source = config if config.get(name) is not None else table
    return integer(source, name, trained, largest=LARGEST_CONTEXT)


def _llama3(table: Mapping[str, Any], theta: float, factor: float, original: int) -> Rope:
    low, high = (number(table, f"{part}_freq_factor", None, largest=LARGEST_FACTOR) for part in ("low", "high"))
    if low >= high:
        raise contradiction("low_freq_factor", low, "high_freq_factor", f"{high}, which must be larger")
    return Rope(
        theta=theta,
        kind="llama3",
        factor=factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position=original,
    )


def _yarn(table: Mapping[str, Any], theta: float, original: int, trained: int) -> Rope:
    fast = number(table, "beta_fast", 32.0, largest=LARGEST_FACTOR)
    slow = number(table, "beta_slow", 1.0, largest=LARGEST_FACTOR)
    if slow >= fast:
        raise contradiction("beta_slow", slow, "beta_fast", f"{fast}, which must be larger")
    return Rope(
        theta=theta,
        kind="yarn",
        factor=number(table, "factor", trained / original, largest=LARGEST_FACTOR),
        original_max_position=original,
        beta_fast=fast,
        beta_slow=slow,
        attention_factor=optional_number(table, "attention_factor", largest=LARGEST_FACTOR),
        mscale=optional_number(table, "mscale", largest=LARGEST_FACTOR),
        mscale_all_dim=optional_number(table, "mscale_all_dim", largest=LARGEST_FACTOR),
        truncate=flag(table, "truncate", True),
    )
