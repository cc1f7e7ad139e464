"""What the parts of a configuration demand of each other; everything wrong is noted, nothing stops the search."""

from __future__ import annotations

import re
from typing import Any

from vcbench.config.feasible import cell_obstacle, sampling_obstacle, task_obstacle
from vcbench.config.reader import BAD, Parsed, Reader
from vcbench.config.sampling import Sampling
from vcbench.config.schema import DEFAULT_DRAFT_LENGTH
from vcbench.models.architecture import Architecture
from vcbench.registry import suggest

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_run(reader: Reader, run: Parsed) -> None:
    """Names, empty parts, tasks, cells and the baseline. Resolves the draft length of `vericache` cells."""
    _check_names(reader, run)
    for key in ("tasks", "cells"):
        if run.get(key) == ():
            reader.problem(run.place(key), f"`{key}` is empty", "list at least one")
    _check_tasks(reader, run.get("tasks") or ())
    for cell in run.get("cells") or ():
        _check_cell(reader, cell, run.get("methods"))
    _check_duplicates(reader, run)
    _check_baseline(reader, run)


def check_feasible(reader: Reader, run: Parsed, architecture: Architecture) -> None:
    """Every task and cell that was read without a problem, against the model."""
    for task in run.get("tasks") or ():
        reason = task_obstacle(task.build(), architecture) if _whole(task) else None
        if reason:
            reader.problem(task.place("max_tokens"), reason, "lower max_tokens")
        reason = sampling_obstacle(task.build(), architecture) if _whole(task) else None
        if reason:
            reader.problem(task.get("sampling").place("logit_bias"), reason, "remove it")
    for cell in run.get("cells") or ():
        method = (run.get("methods") or {}).get(cell.get("method"))
        if not _whole(cell) or (cell.get("method") and (method is None or not _whole(method))):
            continue
        reason = cell_obstacle(cell.build(), method.build() if method else None, architecture)
        if reason:
            reader.problem(cell.where, reason, "change or remove the cell")


def _whole(parsed: Parsed) -> bool:
    return all(_whole(v) if isinstance(v, Parsed) else v is not BAD for v in parsed.values.values())


def _check_names(reader: Reader, run: Parsed) -> None:
    rule = "begin with a letter or digit; then letters, digits, `.`, `_` and `-`, 100 at most"
    name = run.get("name")
    if name is not None and not NAME.fullmatch(name):
        reader.problem(run.place("name"), f"{name!r} is no name for a run", rule)
    for method, parsed in (run.get("methods") or {}).items():
        if not NAME.fullmatch(method):
            reader.problem(parsed.where, f"{method!r} is no name for a method", rule)
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


def _check_cell(reader: Reader, cell: Parsed, methods: dict[str, Parsed] | None) -> None:
    arm, method = cell.get("arm"), cell.get("method")
    if arm == "full" and method is not None:
        reader.problem(cell.place("method"), f"`full` keeps the whole cache and takes no method, not {method!r}")
    elif arm in ("lossy", "vericache") and cell.values.get("method") is None:
        hint = suggest("", sorted(methods)) if methods else "add one under `methods`"
        reader.problem(cell.where, f"a {arm} cell lacks the key `method`", hint)
    elif method is not None and methods is not None and method not in methods:
        hint = suggest(method, sorted(methods)) if methods else "add it under `methods`"
        reader.problem(cell.place("method"), f"unknown method {method!r}", hint)
    if arm in ("full", "lossy") and cell.get("draft_length") is not None:
        reader.problem(cell.place("draft_length"), f"a {arm} cell does not draft", "remove draft_length")
    if arm in ("full", "lossy") and cell.get("full_cache") == "disk":
        reader.problem(cell.place("full_cache"), f"a {arm} cell does not verify", "remove full_cache")
    if arm == "vericache" and cell.values.get("draft_length") is None:
        cell.values["draft_length"] = DEFAULT_DRAFT_LENGTH
    draft = cell.get("draft_length")
    if isinstance(draft, Parsed) and _whole(draft) and draft.get("min") > draft.get("max"):
        message = f"draft_length goes from {draft.get('min')} to {draft.get('max')}"
        reader.problem(draft.place("min"), message, "min must not be above max")


def _check_duplicates(reader: Reader, run: Parsed) -> None:
    """Two cells that would run the very same thing, be it under two names of one method."""
    seen: list[tuple[Any, Parsed]] = []
    for cell in run.get("cells") or ():
        method = (run.get("methods") or {}).get(cell.get("method"))
        if not _whole(cell):
            continue
        means = method.values if method is not None and _whole(method) else cell.get("method")
        draft = cell.get("draft_length")
        key = (cell.get("arm"), means, draft.values if isinstance(draft, Parsed) else draft, cell.get("full_cache"))
        first = next((other for known, other in seen if known == key), None)
        if first is None:
            seen.append((key, cell))
        else:
            reader.problem(cell.where, f"the same cell as the one at {first.where}", "remove one of them")


def _check_baseline(reader: Reader, run: Parsed) -> None:
    arms = [cell.values.get("arm") for cell in run.get("cells") or ()]
    if any(arm in ("lossy", "vericache") for arm in arms) and "full" not in arms and BAD not in arms:
        reader.problem(
            run.place("cells"), "the baseline is missing: no cell has `arm: full`", "add the cell `- arm: full`"
        )
