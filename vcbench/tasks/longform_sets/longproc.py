"""LongProc: procedures that are carried out in writing, step by step, with one right result.

Source: Ye et al., arXiv 2501.05414. Three of its six procedures are here: `countdown`, `html_to_tsv` and
`tom_tracking`. `pseudo_to_code` would compile and run what a model wrote, and is left out, as are `path_traversal` and
`travel_planning`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vcbench.tasks.base import Metric, Value
from vcbench.tasks.longform_sets import beliefs, countdown, tables
from vcbench.tasks.longform_sets.item import SAME_AS_FULL, Item
from vcbench.tasks.rows import Row

PROCEDURES = ("countdown", "html_to_tsv", "tom_tracking")
SHOWN_BY = {"nums": "countdown", "html_path": "html_to_tsv", "story": "tom_tracking"}
MOST_NUMBERS = 5
DEMONSTRATED = (((40, 19, 23, 7), 29), ((9, 16, 6, 18), 12))
"""The two problems whose search every countdown prompt shows."""


@dataclass(frozen=True, slots=True)
class LongProc:
    """Rows of the repository's files, which need its prompt template, or of the hub, which bring their prompt.

    procedure: one of `PROCEDURES`; None where the rows themselves show it. directory: where a row's web page lies.
    """

    procedure: str | None = None
    template: str | None = None
    directory: Path | None = None
    metrics: tuple[Metric, ...] = (
        Metric(
            name="procedure_score",
            summary="1 for a right result, else 0; for tables the F1 of their rows",
            kind="mean",
            headline=True,
        ),
        Metric(name="procedure_partial", summary="right steps before the first mistake, of all", kind="mean"),
        Metric(name="procedure_extracted", summary="there is a result in the prescribed format"),
        Metric(name="row_precision", summary="tables: rows of the answer that are right", kind="mean"),
        Metric(name="row_recall", summary="tables: right rows that the answer has", kind="mean"),
        SAME_AS_FULL,
    )

    def item(self, row: Row) -> Item:
        """The row's prompt, or the template filled with its fields."""
        procedure = self._procedure(row)
        if "input_prompt" in row.values:
            content = row.text("input_prompt")
            fields: Mapping[str, Any] = {**row.values, **_metadata(row)}
        else:
            fields = row.values
            content = self._filled(row, procedure)
        return Item(content=content, target=_target(row, procedure, fields), meta={"procedure": procedure})

    def score(self, target: Mapping[str, Any], answer: str, reference: str | None) -> Mapping[str, Value]:
        """Result, steps and format, as the procedure has them."""
        scorer, result_of = SCORERS[target["procedure"]]
        values = scorer(target, answer)
        theirs = None if reference is None else result_of(target, reference)
        same = None if theirs is None else result_of(target, answer) == theirs
        return {metric.name: None for metric in self.metrics} | dict(values) | {"same_as_full": same}

    def _procedure(self, row: Row) -> str:
        shown = next((name for field, name in SHOWN_BY.items() if field in row.values), None)
        if self.procedure is None and shown is None:
            row.refuse("it does not show which procedure it is; set `subset`, such as countdown_0.5k")
        if shown is not None and self.procedure not in (None, shown):
            row.refuse(f"this is a row of {shown}, but `subset` asks for {self.procedure}")
        return shown or str(self.procedure)

    def _filled(self, row: Row, procedure: str) -> str:
        if self.template is None:
            row.refuse("there is no `input_prompt`, so a prompt template is needed; set `template` to a prompts.yaml")
        fields = dict(row.values)
        if procedure == "countdown":
            # The row's own `demonstration` is its answer.
            fields["demonstration"] = _demonstrations()
        if procedure == "html_to_tsv":
            fields["html_str"] = self._page(row)
        try:
            return self.template.format(**fields)
        except (LookupError, ValueError, AttributeError) as error:
            row.refuse(f"the prompt template does not fit: {type(error).__name__} {error}")

    def _page(self, row: Row) -> str:
        path = (self.directory or Path()) / row.text("html_path")
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            row.refuse(f"field `html_path`: {path} cannot be read ({error}); the pages lie beside the data's file")


def _demonstrations() -> str:
    shown = [
        f"# Example\nNumbers: {list(numbers)}\nTarget: {target}\n\n{countdown.worked(numbers, target)[0]}"
        for numbers, target in DEMONSTRATED
    ]
    return "\n\n".join(shown)


def _metadata(row: Row) -> Mapping[str, Any]:
    """The fields that the hub's rows carry as JSON text."""
    value = row.values.get("metadata") or {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            row.refuse(f"field `metadata` is not JSON ({error})")
    if not isinstance(value, dict):
        row.refuse("field `metadata` must be an object or one as JSON text")
    return value


def _target(row: Row, procedure: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    if procedure == "countdown":
        return {"procedure": procedure, **_problem(row, fields)}
    if procedure == "html_to_tsv":
        right = row.text("gt" if "gt" in row.values else "reference_output")
        if tables.table(right) is None:
            row.refuse("the right table has no rows")
    else:
        right = row.text("solution" if "solution" in row.values else "reference_output")
        if not beliefs.steps(right):
            row.refuse("the right trace has no line `- Step 0: ...`")
    return {"procedure": procedure, "right": right}


def _problem(row: Row, fields: Mapping[str, Any]) -> dict[str, Any]:
    numbers, target = fields.get("nums"), fields.get("target")
    if not isinstance(numbers, list) or not numbers or not all(type(n) is int and n >= 0 for n in numbers):
        row.refuse("field `nums` must be a list of whole numbers")
    if len(numbers) > MOST_NUMBERS:
        row.refuse(
            f"field `nums` has {len(numbers)} numbers; the whole search is written out, for at most {MOST_NUMBERS}"
        )
    if type(target) is not int:
        row.refuse("field `target` must be a whole number")
    try:
        countdown.worked(numbers, target)
    except ValueError as error:
        row.refuse(str(error))
    return {"numbers": numbers, "target": target}


def _score_countdown(target: Mapping[str, Any], answer: str) -> Mapping[str, Value]:
    numbers, goal = target["numbers"], target["target"]
    solution = _solution(target, answer)
    if solution is not None and countdown.solves(solution, numbers, goal):
        return {"procedure_score": 1.0, "procedure_partial": 1.0, "procedure_extracted": True}
    partial = countdown.agreeing_share(answer, countdown.worked(numbers, goal)[0])
    return {"procedure_score": 0.0, "procedure_partial": partial, "procedure_extracted": solution is not None}


def _score_table(target: Mapping[str, Any], answer: str) -> Mapping[str, Value]:
    right, given = tables.table(target["right"]), _table(target, answer)
    found = tables.overlap(given, right) if given and right else tables.Overlap(0.0, 0.0)
    return {
        "procedure_score": found.f1,
        "procedure_extracted": given is not None,
        "row_precision": found.precision,
        "row_recall": found.recall,
    }


def _score_beliefs(target: Mapping[str, Any], answer: str) -> Mapping[str, Value]:
    given, right = beliefs.steps(answer), beliefs.steps(target["right"])
    partial = beliefs.agreeing_share(answer, target["right"])
    return {
        "procedure_score": float(given == right),
        "procedure_partial": partial,
        "procedure_extracted": bool(given),
    }


def _table(target: Mapping[str, Any], answer: str) -> list[tables.Cells] | None:
    """The answer's rows; a trace or a remark of one column is no table of the rows that were asked for."""
    right, rows = tables.table(target["right"]), tables.table(answer)
    return rows if rows and right and len(rows[0]) == len(right[0]) else None


def _solution(target: Mapping[str, Any], answer: str) -> str | None:
    """What stands between the first pair of tags."""
    _, opened, rest = answer.partition("<Solution>")
    solution, closed, _ = rest.partition("</Solution>")
    return solution.strip() if opened and closed else None


def _steps(target: Mapping[str, Any], answer: str) -> list[str] | None:
    return beliefs.steps(answer) or None


Scorer = Callable[[Mapping[str, Any], str], Mapping[str, Value]]
SCORERS: dict[str, tuple[Scorer, Callable[[Mapping[str, Any], str], Any]]] = {
    "countdown": (_score_countdown, _solution),
    "html_to_tsv": (_score_table, _table),
    "tom_tracking": (_score_beliefs, _steps),
}
