"""What a run is: every key of a configuration file, its type, default and meaning.

`docs/config.md` is generated from these classes: a field's `metadata["doc"]` is its line there, and its
limits (`limits.py`), where given, are checked when a file is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from vcbench.config.sampling import Sampling

Arm = Literal["full", "lossy", "vericache"]
Exactness = Literal["bitwise", "fast"]
Tier = Literal["memory", "disk"]
DraftWeights = Literal["full", "bfloat16", "int8"]
DEFAULT_DRAFT_LENGTH = 25
"""Of a method that drafts for the full cache."""
LOWER_DRAFT_LENGTH = 8
"""Of all other levels."""
DEFAULT_MIN_MATCH = 3
NGRAM = "ngram"
FULL = "full"


def _doc(text: str, **limits: Any) -> dict[str, Any]:
    return {"doc": text, **limits}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which weights, in which precision, on which device."""

    id: str = field(metadata=_doc("A catalogue name (`vcbench model list`), a Hugging Face id or a local directory."))
    revision: str | None = field(default=None, metadata=_doc("Commit or tag on the hub."))
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = field(
        default="auto", metadata=_doc("`auto` is float32 on CPU and bfloat16 on CUDA.")
    )
    device: Literal["auto", "cpu", "cuda"] = field(default="auto", metadata=_doc("`auto` takes CUDA if there is one."))
    template: Mapping[str, Any] = field(
        default_factory=dict,
        metadata=_doc("What the model's chat template is told beside the messages, e.g. `{enable_thinking: false}`."),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How decoding is carried out; at `exactness: bitwise` neither batch size nor threads change a token."""

    exactness: Exactness = field(
        default="bitwise", metadata=_doc("`bitwise` proves rows independent of their batch; `fast` drops the padding.")
    )
    batch_size: int = field(default=1, metadata=_doc("Requests decoded together.", minimum=1))
    refill: bool = field(
        default=False,
        metadata=_doc(
            "Take the next request in as soon as one ends, as a server does, in place of whole batches one after the "
            "other. Every cell then prefills each prompt for itself."
        ),
    )
    threads: int = field(default=0, metadata=_doc("CPU threads; 0 takes the physical cores.", minimum=0))
    disk_directory: str | None = field(
        default=None, metadata=_doc("Where caches on disk are kept; null takes the system's place for temporary files.")
    )
    prefill_chunk: int = field(default=2048, metadata=_doc("Prompt tokens per prefill pass.", minimum=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """One task of the matrix; keys not listed here belong to the task's own options."""

    name: str = field(metadata=_doc("A registered task (`vcbench ls tasks`); each at most once in a run."))
    limit: int | None = field(default=None, metadata=_doc("At most this many prompts; null takes all.", minimum=1))
    max_tokens: int = field(default=128, metadata=_doc("New tokens per request.", minimum=1))
    stop: tuple[str, ...] = field(default=(), metadata=_doc("Stop strings, beside the model's own stop ids."))
    ignore_eos: bool = field(default=False, metadata=_doc("Decode on past the model's stop ids."))
    sampling: Sampling = field(default_factory=Sampling, metadata=_doc("How tokens are chosen; greedy unless given."))
    options: Mapping[str, Any] = field(default_factory=dict, metadata=_doc("The task's own options, validated."))


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodConfig:
    """One compression method; keys other than `compressor` belong to the compressor's own options."""

    compressor: str = field(metadata=_doc("A registered compressor (`vcbench ls compressors`)."))
    options: Mapping[str, Any] = field(default_factory=dict, metadata=_doc("The compressor's own options, validated."))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveDraft:
    """A draft length that follows what each request's own rounds accepted (`decoding/draft_length.py`)."""

    SHORTHAND: ClassVar[str] = "auto"
    """What may be written in place of a mapping that gives nothing."""

    min: int = field(default=1, metadata=_doc("The shortest draft.", minimum=1))
    max: int = field(default=40, metadata=_doc("The longest draft.", minimum=1, maximum=1024))
    verify_cost: float = field(
        default=4.0,
        metadata=_doc("What a verification costs, in drafting steps; with more, drafts get longer.", above=0),
    )


DraftLength = int | AdaptiveDraft


def longest(length: DraftLength | None) -> int:
    """The most tokens that a draft may have."""
    return length.max if isinstance(length, AdaptiveDraft) else length or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelConfig:
    """One level of a `vericache` cell; a name alone is short for a mapping with that `name`."""

    FROM_TEXT: ClassVar[str] = "name"
    """The key whose value may be written in place of the mapping."""

    name: str = field(
        metadata=_doc(
            "A key of `methods`, or `ngram`, which proposes what followed the last time that prompt and output went as "
            "they do now; the last level is `full`."
        )
    )
    draft_length: DraftLength | None = field(
        default=None,
        metadata=_doc(
            f"Tokens proposed to the level above at a time, or `auto`; {DEFAULT_DRAFT_LENGTH} unless given for a "
            f"method below `full`, else {LOWER_DRAFT_LENGTH}; none for `full`.",
            minimum=1,
        ),
    )
    min_match: int | None = field(
        default=None,
        metadata=_doc(
            "`ngram` only: so many tokens at the end must be found again before anything is proposed; 3 unless given.",
            minimum=1,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CellConfig:
    """One column of the comparison: an arm and, unless it is `full`, the method or the levels that it uses."""

    arm: Arm = field(metadata=_doc("`full`, `lossy` or `vericache`."))
    method: str | None = field(
        default=None,
        metadata=_doc("A key of `methods`; none for `full`. In `vericache` short for `levels: [METHOD, full]`."),
    )
    draft_length: DraftLength | None = field(
        default=None,
        metadata=_doc(
            f"Tokens drafted per round, or `auto`; `vericache` only, where it is {DEFAULT_DRAFT_LENGTH} unless given. "
            "With `levels` each has its own.",
            minimum=1,
        ),
    )
    levels: tuple[LevelConfig, ...] = field(
        default=(),
        metadata=_doc(
            "`vericache` only, in place of `method`: who drafts for whom, the cheapest first and `full` last, e.g. "
            "`[ngram, snapkv-8x, full]`; see the page on cascades."
        ),
    )
    full_cache: Tier = field(
        default="memory",
        metadata=_doc("Where verification reads the full cache from; `disk` for `vericache` on CPU in float32."),
    )
    draft_weights: DraftWeights = field(
        default="full",
        metadata=_doc(
            "What drafts read of the model: its own weights, or a copy of the linear layers rounded to `bfloat16`, "
            "or to `int8` with a scale for each output; `vericache` on CPU in float32."
        ),
    )

    @property
    def drafting(self) -> tuple[LevelConfig, ...]:
        """The levels below the full cache, the lowest first; that of its method where no levels are listed."""
        if self.levels or self.method is None:
            return self.levels[:-1]
        return (LevelConfig(name=self.method, draft_length=self.draft_length),)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that the cell uses, the lowest level's first."""
        return tuple(level.name for level in self.drafting if level.name != NGRAM)

    @property
    def longest_draft(self) -> int:
        """The most tokens that a round drafts for the full cache; 0 in an arm that does not draft."""
        return longest(self.drafting[-1].draft_length) if self.drafting else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """What is measured beside the generations themselves."""

    divergence: bool = field(
        default=True, metadata=_doc("Per-step KL(full || lossy), teacher-forced along full-KV's output.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A run: the matrix model x task x cell.

    `places` is no key: it says where in the file each part was written ("cells.1" -> "run.yaml:12"), for messages.
    """

    name: str = field(metadata=_doc("Directory under `output_dir`; letters, digits, `.`, `_` and `-`."))
    model: ModelConfig = field(metadata=_doc("The model."))
    tasks: tuple[TaskConfig, ...] = field(metadata=_doc("The tasks, at least one."))
    cells: tuple[CellConfig, ...] = field(
        metadata=_doc("The cells, at least one; `full` is the baseline that every other arm is compared with.")
    )
    methods: Mapping[str, MethodConfig] = field(default_factory=dict, metadata=_doc("Named compression methods."))
    engine: EngineConfig = field(default_factory=EngineConfig, metadata=_doc("The engine."))
    metrics: MetricsConfig = field(default_factory=MetricsConfig, metadata=_doc("The metrics."))
    seed: int = field(default=0, metadata=_doc("Seed of everything that is drawn at random.", minimum=0))
    output_dir: str = field(default="runs", metadata=_doc("Where run directories are made."))
    places: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False, metadata={"internal": True})

    @property
    def used_methods(self) -> tuple[str, ...]:
        """The methods that any cell uses, each once."""
        return tuple(dict.fromkeys(name for cell in self.cells for name in cell.methods))
