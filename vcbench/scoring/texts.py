"""Metrics that any task has: each output against full KV's, and each output by itself."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from vcbench.metrics.alignment import edit_distance
from vcbench.metrics.text import distinct, first_divergence, is_looped, longest_repeat, token_f1
from vcbench.records.reader import CellInfo, Run
from vcbench.records.schema import DivergenceLine, RequestLine
from vcbench.scoring.answers import answer, answered
from vcbench.scoring.sources import Outcomes, Source
from vcbench.scoring.values import Failure, Outcome, checked
from vcbench.tasks.base import Answer, Metric, Ratio, Value

INSTALL = "pip install 'vcbench[tasks]'"
MODULES = {"rouge_l": "RougeL", "chrf": "Chrf", "bleu": "Bleu"}
"""Modules of `vcbench.metrics.evaluate_modules`, and their classes."""
GRAMS = (1, 2, 3)
REP = 4
Lines = Mapping[str, RequestLine]


class AgreementSource(Source):
    """How near each output is to full KV's answer to the same prompt; full KV itself has none of these."""

    name = "agreement"
    title = "agreement with full KV"
    paired = False
    metrics: tuple[Metric, ...] = (
        Metric(name="exact", summary="the same token ids, to the end"),
        Metric(name="token_f1", summary="F1 of the two bags of token ids", kind="mean"),
        Metric(name="prefix", summary="tokens before the first other one, of full KV's", kind="mean"),
        Metric(name="edit_similarity", summary="1 - edit distance / longer length, on token ids", kind="mean"),
        Metric(name="rouge_l", summary="ROUGE-L F1 of the texts", kind="mean"),
        Metric(name="chrf", summary="chrF of the texts", kind="mean"),
        Metric(name="bleu", summary="BLEU of the texts", kind="mean"),
        Metric(name="length_ratio", summary="tokens over full KV's tokens", kind="ratio", better="neither"),
    )

    def __init__(self) -> None:
        self.modules = load_modules()
        if self.modules is None:
            self.metrics = tuple(metric for metric in self.metrics if metric.name not in MODULES)
            self.missing = f"{', '.join(MODULES)}: n/a ({INSTALL})"

    def outcomes(self, run: Run, cell: CellInfo, task: str) -> Outcomes:
        found: Outcomes = {metric.name: {} for metric in self.metrics}
        baseline = run.baseline(task)
        if baseline is None or cell.arm == "full":
            return found
        full, ours = answered(run, baseline, task), answered(run, cell, task)
        common = [request for request in ours if request in full]
        for request in common:
            for name, value in agreement(full[request].token_ids, ours[request].token_ids).items():
                found[name][request] = value
        for name, module in (self.modules or {}).items():
            found[name] = _texts(name, module, _written(run, full, ours, common))
        return found


def agreement(full: Sequence[int], ours: Sequence[int]) -> dict[str, Value]:
    """What token ids alone say."""
    fork, longer = first_divergence(full, ours), max(len(full), len(ours))
    return {
        "exact": fork is None,
        "token_f1": token_f1(full, ours),
        "prefix": (len(full) if fork is None else fork) / len(full) if full else None,
        "edit_similarity": 1 - edit_distance(full, ours) / longer if longer else 1.0,
        "length_ratio": Ratio(float(len(ours)), float(len(full))),
    }


class OutputSource(Source):
    """What each output is like by itself."""

    name = "output"
    title = "the outputs themselves"
    metrics = (
        Metric(name="tokens", summary="tokens of the output", kind="mean", better="neither"),
        Metric(name="thinking_tokens", summary="of these, tokens of thoughts", kind="mean", better="neither"),
        Metric(name="unended_thought", summary="ends within a thought, so that there is no answer", better="lower"),
        Metric(name="hit_max_tokens", summary="ended by the cap on tokens", better="neither"),
        Metric(name="looped", summary="repeats itself (see docs/metrics.md)", better="lower"),
        *(Metric(name=f"distinct_{n}", summary=f"different {n}-grams of all", kind="mean") for n in GRAMS),
        Metric(name=f"rep_{REP}", summary=f"1 - different {REP}-grams of all", kind="mean", better="lower"),
        Metric(name="longest_repeat", summary="tokens of the longest repeated span", kind="mean", better="lower"),
    )

    def outcomes(self, run: Run, cell: CellInfo, task: str) -> Outcomes:
        found: Outcomes = {metric.name: {} for metric in self.metrics}
        for request, line in answered(run, cell, task).items():
            for name, value in output(line, answer(run, line)).items():
                found[name][request] = value
        return found


def output(line: RequestLine, given: Answer) -> dict[str, Value]:
    """Length and repetition of one output, on token ids; records before schema 3 do not say how long it thinks."""
    ids = line.token_ids
    share = distinct(ids, REP)
    return {
        "tokens": float(len(ids)),
        "thinking_tokens": None if line.thinking_tokens is None else float(line.thinking_tokens),
        "unended_thought": not given.thought_ended,
        "hit_max_tokens": line.finish_reason == "length",
        "looped": is_looped(ids),
        **{f"distinct_{n}": distinct(ids, n) for n in GRAMS},
        f"rep_{REP}": None if share is None else 1 - share,
        "longest_repeat": float(longest_repeat(ids)),
    }


class DivergenceSource(Source):
    """The teacher-forced divergence of each request; curves and percentiles are in `curves.py`."""

    name = "divergence"
    title = "divergence from full KV, step by step"
    paired = False
    metrics = (
        Metric(name="kl_per_step", summary="KL(full || method) in nats, per step", kind="ratio", better="lower"),
        Metric(name="kl_sum", summary="its sum over an output, in nats", kind="mean", better="lower"),
        Metric(name="top1_agreement", summary="steps with the same best token", kind="ratio"),
    )

    def outcomes(self, run: Run, cell: CellInfo, task: str) -> Outcomes:
        found: Outcomes = {metric.name: {} for metric in self.metrics}
        for (line_cell, line_task, request), line in run.divergences.items():
            if (line_cell, line_task) == (cell.id, task):
                for name, value in divergence(line).items():
                    found[name][request] = value
        return found


def divergence(line: DivergenceLine) -> dict[str, Value]:
    """One output's figures; a sum with an unknown step is none."""
    known = [value for value in line.kl if value is not None]
    return {
        "kl_per_step": Ratio(sum(known), float(len(known))) if known else None,
        "kl_sum": sum(known) if len(known) == len(line.kl) else None,
        "top1_agreement": Ratio(float(sum(line.top1_agree)), float(len(line.top1_agree))) if line.top1_agree else None,
    }


def common_sources() -> list[Source]:
    """The sources that any task has."""
    return [AgreementSource(), OutputSource(), DivergenceSource()]


def load_modules() -> dict[str, Any] | None:
    """The metrics that go through `evaluate`, by name; None where its packages are not installed."""
    try:
        with _without_transformers():
            importlib.import_module("evaluate")
        return {
            name: getattr(importlib.import_module(f"vcbench.metrics.evaluate_modules.{name}"), cls)(keep_in_memory=True)
            for name, cls in MODULES.items()
        }
    except ImportError:
        return None


@contextmanager
def _without_transformers() -> Iterator[None]:
    """`evaluate` imports transformers, and with it torch, for evaluators that nobody asks for here: 3 s for nothing."""
    if "transformers" in sys.modules:
        yield
        return
    sys.modules["transformers"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["transformers"]


def _written(run: Run, full: Lines, ours: Lines, common: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Whole outputs, thoughts included, of a cell and of full KV: what agrees is how the model writes."""
    return {request: (answer(run, ours[request]).written, answer(run, full[request]).written) for request in common}


def _texts(name: str, module: Any, outputs: Mapping[str, tuple[str, str]]) -> dict[str, Outcome]:
    """A module's value of every output, in one call; if that fails, one by one, so that none costs another."""
    metric = next(metric for metric in AgreementSource.metrics if metric.name == name)
    pairs = list(outputs.values())
    if not pairs:
        return {}

    def compute(some: Sequence[tuple[str, str]]) -> Sequence[Any]:
        said, wanted = [a for a, _ in some], [b for _, b in some]
        values: Sequence[Any] = module.compute(predictions=said, references=wanted)[name]
        return values

    return dict(zip(outputs, _each(metric, compute, pairs), strict=True))


def _each(
    metric: Metric, compute: Callable[[Sequence[tuple[str, str]]], Sequence[Any]], pairs: Sequence[tuple[str, str]]
) -> list[Outcome]:
    try:
        return [checked(metric, value) for value in compute(pairs)]
    except Exception as error:  # noqa: BLE001 -- whatever a metric does, no answer may be lost by it
        if len(pairs) == 1:
            return [Failure(f"{type(error).__name__}: {error}")]
        return [outcome for pair in pairs for outcome in _each(metric, compute, [pair])]
