"""What the parts of a configuration demand of each other; everything wrong is noted, nothing stops the search."""

from __future__ import annotations

import re
from typing import Any

from vcbench.config.cells import check_cell, whole
from vcbench.config.feasible import cell_obstacle, sampling_obstacle, task_obstacle
from vcbench.config.reader import BAD, Parsed, Reader
from vcbench.config.sampling import Sampling
from vcbench.config.schema import FULL, NGRAM, CellConfig, LevelConfig
from vcbench.models.architecture import Architecture

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_run(reader: Reader, run: Parsed) -> None:
    """Names, empty parts, tasks, cells and the baseline. Resolves the draft length of `vericache` cells."""
    _check_names(reader, run)
    for key in ("tasks", "cells"):
        if run.get(key) == ():
            reader.problem(run.place(key), f"`{key}` is empty", "list at least one")
    _check_tasks(reader, run.get("tasks") or ())
    for cell in run.get("cells") or ():
        check_cell(reader, cell, run.get("methods"))
    _check_duplicates(reader, run)
    _check_baseline(reader, run)


def check_feasible(reader: Reader, run: Parsed, architecture: Architecture) -> None:
    """Every task and cell that was read without a problem, against the model."""
    for task in run.get("tasks") or ():
        reason = task_obstacle(task.build(), architecture) if whole(task) else None
        if reason:
            reader.problem(task.place("max_tokens"), reason, "lower max_tokens")
        reason = sampling_obstacle(task.build(), architecture) if whole(task) else None
        if reason:
            reader.problem(task.get("sampling").place("logit_bias"), reason, "remove it")
    for cell in run.get("cells") or ():
        if not whole(cell):
            continue
        built: CellConfig = cell.build()
        known = run.get("methods") or {}
        used = [known[name] for name in built.methods if name in known and whole(known[name])]
        if len(used) < len(built.methods):
            continue
        reason = cell_obstacle(built, [method.build() for method in used], architecture)
        if reason:
            reader.problem(cell.where, reason, "change or remove the cell")


def _check_names(reader: Reader, run: Parsed) -> None:
    rule = "begin with a letter or digit; then letters, digits, `.`, `_` and `-`, 100 at most"
    name = run.get("name")
    if name is not None and not NAME.fullmatch(name):
        reader.problem(run.place("name"), f"{name!r} is no name for a run", rule)
    for method, parsed in (run.get("methods") or {}).items():
        if not NAME.fullmatch(method):
            reader.problem(parsed.where, f"{method!r} is no name for a method", rule)
        elif method in (NGRAM, FULL):
            reader.problem(parsed.where, f"{method!r} means another thing in `levels`", "choose another name")
    model = run.get("model")
    for owner, key in ((run, "output_dir"), (model, "id")):
        if owner is not None and owner.get(key) is not None and not owner.get(key).strip():
            reader.problem(owner.place(key), f"`{key}` is empty", "give a value")


def _check_tasks(reader: Reader, tasks: tuple[Parsed, ...]) -> None:
    seen: dict[str, str] = {}
    for task in tasks:
        name = task.get("name")
        if name in seen:
            reader.problem(
                task.place("name"), f"task {name!r} is listed twice, first at {seen[name]}", "use a run for each"
            )
        elif name is not None:
            seen[name] = task.place("name")
        if "" in (task.get("stop") or ()):
            reader.problem(task.place("stop"), "a stop string is empty and would stop at once", "remove it")
        sampling, cap = task.get("sampling"), task.get("max_tokens")
        if sampling and sampling.get("model"):
            plain = Sampling()
            for key in [key for key in sampling.places if key not in ("model", "seed")]:
                if sampling.get(key) == getattr(plain, key):
                    continue
                reader.problem(
                    sampling.place(key), f"`{key}` stands beside `model: true`, which gives it", "remove one of them"
                )
        least = sampling.get("min_tokens") if sampling else None
        if least is not None and cap is not None and least > cap:
            reader.problem(sampling.place("min_tokens"), f"min_tokens {least} is above max_tokens {cap}", "lower it")


def _check_duplicates(reader: Reader, run: Parsed) -> None:
    """Two cells that would run the very same thing, be it under two names of one method."""
    seen: list[tuple[Any, Parsed]] = []
    for cell in run.get("cells") or ():
        if not whole(cell):
            continue
        built: CellConfig = cell.build()
        means = [_means(run, level) for level in built.drafting]
        key = (built.arm, means, built.full_cache, built.draft_weights)
        first = next((other for known, other in seen if known == key), None)
        if first is None:
            seen.append((key, cell))
        else:
            reader.problem(cell.where, f"the same cell as the one at {first.where}", "remove one of them")


def _means(run: Parsed, level: LevelConfig) -> tuple[Any, ...]:
    """A level without the name of its method."""
    method = (run.get("methods") or {}).get(level.name)
    source = method.values if method is not None and whole(method) else level.name
    return source, level.draft_length, level.min_match


def _check_baseline(reader: Reader, run: Parsed) -> None:
    arms = [cell.values.get("arm") for cell in run.get("cells") or ()]
    if any(arm in ("lossy", "vericache") for arm in arms) and "full" not in arms and BAD not in arms:
        reader.problem(
            run.place("cells"), "the baseline is missing: no cell has `arm: full`", "add the cell `- arm: full`"
        )
