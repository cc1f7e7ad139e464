"""`vcbench check`: the lossless gate over a run, a configuration, or the outputs of two servers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vcbench.cli.output import next_command, notes, results, write_json
from vcbench.cli.runs import find_run
from vcbench.errors import SchemaVersionError, UsageError

if TYPE_CHECKING:
    from vcbench.lossless.check import Selection
    from vcbench.lossless.result import CheckResult
    from vcbench.lossless.thresholds import Threshold
    from vcbench.records.reader import Run


def check(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN | CONFIG | RECORDS_A RECORDS_B",
            help="A run (directory, or name under runs/); a configuration, which is run first; or two files of outputs "
            "(or runs), the reference first.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a pull-request comment.")] = None,
    cell: Annotated[str | None, typer.Option(metavar="LABEL", help="Check this cell only.")] = None,
    request: Annotated[list[str] | None, typer.Option(metavar="ID", help="Check these requests only.")] = None,
    fail_on: Annotated[
        str | None, typer.Option(metavar="RULES", help='Thresholds, e.g. "violations>0,acceptance<8,kl>0.01".')
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="RUN", help="Fail where this run is worse than a stored one, by pairs.")
    ] = None,
    tolerance: Annotated[float, typer.Option(help="How much worse than --baseline is tolerated, as a share.")] = 0.05,
) -> None:
    """Say whether every answer equals the reference's, and at which level.

    Exit code 0 pass, 1 violation, 2 inconclusive or vacuous, 3 not comparable, 64 usage.
    """
    from vcbench.lossless.check import Selection
    from vcbench.lossless.thresholds import parse_fail_on

    rules = Rules(parse_fail_on(fail_on) if fail_on is not None else [], baseline, tolerance)
    selection = Selection(cell=cell, requests=frozenset(request) if request else None)
    result = _checked(targets, selection, rules)
    _report(result, as_json=as_json, junit=junit, markdown=markdown)
    if not as_json:
        next_command(_next(targets, result))
    if result.exit_code:
        raise typer.Exit(result.exit_code)


@dataclass(frozen=True, slots=True)
class Rules:
    """What is asked for beside equal outputs."""

    thresholds: list[Threshold]
    baseline: str | None
    tolerance: float

    def apply(self, result: CheckResult, run: Run | None) -> CheckResult:
        """The result with a finding for every rule."""
        from vcbench.lossless.baseline import compare_with_baseline
        from vcbench.lossless.thresholds import evaluate
        from vcbench.records.reader import load_run

        findings = evaluate(self.thresholds, result, run)
        if self.baseline is not None:
            if run is None:
                raise UsageError("--baseline compares a run with a stored one; outputs of other engines have no timing")
            stored = load_run(find_run(self.baseline))
            findings += compare_with_baseline(run, stored, self.thresholds, tolerance=self.tolerance)
        return replace(result, findings=tuple(findings))


def _checked(targets: list[str], selection: Selection, rules: Rules) -> CheckResult:
    from vcbench.lossless.check import check_files, check_loaded, other_schema
    from vcbench.records.reader import load_run

    if len(targets) > 2:
        raise UsageError(f"{len(targets)} things to check; give one run or configuration, or two files of outputs")
    if len(targets) == 2:
        return rules.apply(check_files(_records(targets[0]), _records(targets[1]), selection), None)
    path = find_run(targets[0])
    try:
        run = load_run(path)
    except SchemaVersionError as error:
        return other_schema(path, error)
    return rules.apply(check_loaded(run, selection), run)


def _records(text: str) -> Path:
    """A file of outputs, or a run."""
    return Path(text) if Path(text).is_file() else find_run(text)


def _next(targets: list[str], result: CheckResult) -> str:
    """What to type after a check."""
    if result.cards:
        return result.cards[0].replay
    if len(targets) > 1:
        return f"vcbench check {' '.join(targets)} --html check.html"
    path = find_run(targets[0])
    return f"vcbench compare {path}" if result.exit_code == 0 else f"vcbench show {path} --request ID"


def _report(result: CheckResult, *, as_json: bool, junit: Path | None, markdown: Path | None) -> None:
    from vcbench.lossless import junit as junit_report
    from vcbench.lossless import markdown as markdown_report
    from vcbench.lossless.check import render
    from vcbench.lossless.document import as_dict

    if junit is not None:
        _write(junit, junit_report.junit_xml(result))
    if markdown is not None:
        _write(markdown, markdown_report.markdown(result))
    if as_json:
        write_json(as_dict(result))
    else:
        render(result, results())


def _write(path: Path, text: str) -> None:
    """Whole or not at all. Raises UsageError where the place cannot be written."""
    from vcbench.records.files import replace_file

    try:
        replace_file(path, text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    notes().print(f"wrote {path}", markup=False)
