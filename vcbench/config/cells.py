"""What a cell's keys demand of each other; resolves its draft lengths and what its levels leave to defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vcbench.config.reader import BAD, Parsed, Reader
from vcbench.config.schema import DEFAULT_DRAFT_LENGTH, DEFAULT_MIN_MATCH, FULL, LOWER_DRAFT_LENGTH, NGRAM
from vcbench.registry import suggest

Methods = Mapping[str, Parsed]


def check_cell(reader: Reader, cell: Parsed, methods: Methods | None) -> None:
    """Notes everything wrong with a cell."""
    arm, levels = cell.get("arm"), cell.values.get("levels")
    if levels is BAD:
        return
    if levels:
        _check_levels(reader, cell, methods)
    else:
        _check_method(reader, cell, methods)
    if arm in ("full", "lossy") and cell.get("draft_length") is not None:
        reader.problem(cell.place("draft_length"), f"a {arm} cell does not draft", "remove draft_length")
    if arm in ("full", "lossy") and cell.get("full_cache") == "disk":
        reader.problem(cell.place("full_cache"), f"a {arm} cell does not verify", "remove full_cache")
    _check_draft_weights(reader, cell)
    if arm == "vericache" and not cell.get("levels") and cell.values.get("draft_length") is None:
        cell.values["draft_length"] = DEFAULT_DRAFT_LENGTH
    _check_draft_length(reader, cell)


def _check_draft_weights(reader: Reader, cell: Parsed) -> None:
    """Other weights only draft, and only a level that runs the model reads any."""
    arm = cell.get("arm")
    if cell.get("draft_weights") in (None, "full"):
        return
    if arm in ("full", "lossy"):
        reader.problem(cell.place("draft_weights"), f"a {arm} cell does not draft", "remove draft_weights")
    elif (levels := cell.get("levels")) and all(level.get("name") in (NGRAM, FULL) for level in levels):
        message = f"no level of the cell drafts with the model: `{NGRAM}` reads no weights"
        reader.problem(cell.place("draft_weights"), message, "remove draft_weights")


def whole(parsed: Parsed) -> bool:
    """Whether everything in it could be read."""
    return all(_is_whole(value) for value in parsed.values.values())


def _is_whole(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_whole(item) for item in value)
    return whole(value) if isinstance(value, Parsed) else value is not BAD


def _check_method(reader: Reader, cell: Parsed, methods: Methods | None) -> None:
    arm, method = cell.get("arm"), cell.get("method")
    if arm == "full" and method is not None:
        reader.problem(cell.place("method"), f"`full` keeps the whole cache and takes no method, not {method!r}")
    elif arm in ("lossy", "vericache") and cell.values.get("method") is None:
        hint = suggest("", sorted(methods)) if methods else "add one under `methods`"
        reader.problem(cell.where, f"a {arm} cell lacks the key `method`", hint)
    elif method is not None and methods is not None and method not in methods:
        hint = suggest(method, sorted(methods)) if methods else "add it under `methods`"
        if method == NGRAM:
            hint = f"write `levels: [{NGRAM}, {FULL}]`"
        reader.problem(cell.place("method"), f"unknown method {method!r}", hint)


def _check_levels(reader: Reader, cell: Parsed, methods: Methods | None) -> None:
    arm, where = cell.get("arm"), cell.place("levels")
    if arm in ("full", "lossy"):
        reader.problem(where, f"a {arm} cell has no levels", "remove levels, or make it `arm: vericache`")
        return
    for key, remedy in (("method", "remove one of them"), ("draft_length", "give it in the items of levels")):
        if cell.get(key) is not None:
            reader.problem(cell.place(key), f"`{key}` stands beside `levels`", remedy)
    levels: tuple[Parsed, ...] = cell.get("levels")
    names = [level.get("name") for level in levels]
    if names[-1] not in (FULL, None) or len(levels) < 2:
        hint = f"e.g. [{', '.join([*(name for name in names if name not in (FULL, None)), FULL])}]"
        reader.problem(where, f"`levels` must list at least one level that drafts and then `{FULL}`", hint)
    for index, level in enumerate(levels):
        _check_level(reader, level, index, names, methods)
        _resolve(level, below_full=index == len(levels) - 2)
        _check_draft_length(reader, level)
    if len(levels) == 2 and names[0] != NGRAM and cell.values.get("method") is None:
        cell.values |= {"method": names[0], "draft_length": levels[0].values["draft_length"], "levels": ()}


def _check_level(reader: Reader, level: Parsed, index: int, names: list[Any], methods: Methods | None) -> None:
    name = level.get("name")
    known = [NGRAM, *sorted(methods or ())]
    if name == FULL:
        if index < len(names) - 1:
            reader.problem(level.where, f"`{FULL}` is not the last level", f"put `{FULL}` last, and only there")
        if level.get("draft_length") is not None:
            reader.problem(level.place("draft_length"), f"`{FULL}` drafts for nobody", "remove draft_length")
    elif name == NGRAM and index > 0:
        reader.problem(level.where, f"`{NGRAM}` cannot check drafts, so nothing can lie below it", "put it first")
    elif name is not None and name not in known and methods is not None:
        reader.problem(level.place("name"), f"unknown level {name!r}", suggest(name, known))
    if name is not None and name in names[:index]:
        reader.problem(level.where, f"level {name!r} is listed twice", "remove one of them")
    if name is not None and name != NGRAM and level.get("min_match") is not None:
        reader.problem(level.place("min_match"), f"only `{NGRAM}` has min_match", "remove it")


def _resolve(level: Parsed, *, below_full: bool) -> None:
    """Writes the defaults that depend on which level it is."""
    name = level.get("name")
    if name == FULL:
        return
    if level.values["draft_length"] is None:
        level.values["draft_length"] = DEFAULT_DRAFT_LENGTH if below_full and name != NGRAM else LOWER_DRAFT_LENGTH
    if name == NGRAM and level.values["min_match"] is None:
        level.values["min_match"] = DEFAULT_MIN_MATCH


def _check_draft_length(reader: Reader, owner: Parsed) -> None:
    draft = owner.get("draft_length")
    if isinstance(draft, Parsed) and whole(draft) and draft.get("min") > draft.get("max"):
        message = f"draft_length goes from {draft.get('min')} to {draft.get('max')}"
        reader.problem(draft.place("min"), message, "min must not be above max")
