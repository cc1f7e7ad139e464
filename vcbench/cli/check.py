"""`vcbench check`: the lossless gate over a run, a configuration, or the outputs of two servers."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vcbench.cli.completion import complete_fault, complete_run, complete_target
from vcbench.cli.output import next_command, notes, results, write_json
from vcbench.cli.runs import find_run
from vcbench.errors import RecordError, UsageError

CONFIG_SUFFIXES = (".yaml", ".yml")
TINY = "tiny"
"""The gate's own small run, in place of a configuration."""

if TYPE_CHECKING:
    from vcbench.lossless.outcome import CheckResult
    from vcbench.lossless.selection import Selection
    from vcbench.lossless.thresholds import Threshold
    from vcbench.records.reader import Run


def check(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN | CONFIG | RECORDS_A RECORDS_B",
            help="A run (directory, or name under runs/); a configuration, which is run first (`tiny`: a small one "
            "that needs no model); or two files of outputs (or runs), the reference first.",
            autocompletion=complete_target,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a pull-request comment.")] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with every divergence.")] = None,
    cell: Annotated[str | None, typer.Option(metavar="LABEL", help="Check this cell only.")] = None,
    request: Annotated[list[str] | None, typer.Option(metavar="ID", help="Check these requests only.")] = None,
    fail_on: Annotated[
        str | None, typer.Option(metavar="RULES", help='Thresholds, e.g. "violations>0,acceptance<8,kl>0.01".')
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Fail where this run is worse than a stored one, by pairs.",
            autocompletion=complete_run,
        ),
    ] = None,
    tolerance: Annotated[float, typer.Option(help="How much worse than --baseline is tolerated, as a share.")] = 0.05,
    audit: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Teacher-force this model over the outputs; classifies forks.")
    ] = None,
    controls: Annotated[
        bool, typer.Option("--controls", help="Decode forked requests of a run again to find the cause.")
    ] = False,
    forks: Annotated[
        int | None, typer.Option(min=0, help="With --controls: how many forks of each cell; 0 is all, 2 unless given.")
    ] = None,
    inject_fault: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Build a fault into the engine, to see the gate turn red.",
            autocompletion=complete_fault,
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change one key of CONFIG.")
    ] = None,
) -> None:
    """Say whether every answer equals the reference's, and at which level.

    Exit code 0 pass, 1 violation, 2 inconclusive or vacuous, 3 not comparable, 64 usage, 70 internal error.
    """
    from vcbench.lossless.selection import Selection
    from vcbench.lossless.thresholds import parse_fail_on

    rules = Rules(parse_fail_on(fail_on) if fail_on is not None else [], baseline, tolerance)
    selection = Selection(cell=cell, requests=frozenset(request) if request else None)
    source = _source(targets, overrides or [], inject_fault)
    if forks is not None and not controls:
        raise UsageError("--forks says how many forks --controls looks into; add --controls")
    result = source.check(selection, rules, audit=audit, controls=controls, forks=forks)
    _report(result, as_json=as_json, files={"junit": junit, "markdown": markdown, "html": html})
    if not as_json:
        next_command(*_next(source.paths, result))
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


@dataclass(frozen=True, slots=True)
class Source:
    """What is checked: one run, or two things to compare."""

    paths: tuple[Path, ...]

    def check(
        self, selection: Selection, rules: Rules, *, audit: str | None, controls: bool, forks: int | None
    ) -> CheckResult:
        """The gate's answer, with everything that was asked for beside it."""
        from vcbench.lossless.check import check_loaded, unreadable
        from vcbench.lossless.pairs import check_files
        from vcbench.records.reader import load_run

        run = None
        if len(self.paths) == 2:
            if controls:
                raise UsageError("--controls decodes a run of vcbench again; for two files of outputs there is --audit")
            result = check_files(*self.paths, selection)
        else:
            try:
                run = load_run(self.paths[0])
            except RecordError as error:
                return unreadable(self.paths[0], error)
            result = check_loaded(run, selection)
        if audit is not None:
            from vcbench.forensics.audit import audit as audited

            result = audited(result, audit, console=notes())
        if controls and run is not None:
            from vcbench.forensics.controls import FORKS_PER_CELL, run_controls

            wanted = FORKS_PER_CELL if forks is None else forks
            result = run_controls(result, run, limit=None if selection.requests or not wanted else wanted)
        return rules.apply(result, run)


def _source(targets: list[str], overrides: list[str], fault: str | None) -> Source:
    """The records behind the arguments; a configuration is run first."""
    if len(targets) > 2:
        raise UsageError(f"{len(targets)} things to check; give one run or configuration, or two files of outputs")
    is_config = len(targets) == 1 and (targets[0] == TINY or targets[0].endswith(CONFIG_SUFFIXES))
    if is_config:
        return Source((_run_config(targets[0], overrides, fault),))
    if fault is not None or overrides:
        option = "--inject-fault" if fault is not None else "--set"
        raise UsageError(f"{option} needs a configuration to run, e.g. `vcbench check {TINY} {option} ...`")
    if len(targets) == 1:
        return Source((find_run(targets[0]),))
    return Source((_records(targets[0]), _records(targets[1])))


def _run_config(target: str, overrides: list[str], fault: str | None) -> Path:
    from vcbench.cli.run import architecture_of
    from vcbench.lossless.faults import find_fault

    if fault is not None:
        find_fault(fault)
    if target == TINY and overrides:
        raise UsageError(f"--set has no effect on `{TINY}`, which is fixed; give a configuration file")
    from vcbench.forensics.gate import run_for_gate, tiny_run

    if target == TINY:
        return run_for_gate(tiny_run(), fault=fault, console=notes())
    from vcbench.config.load import load_config
    from vcbench.config.overrides import name_beside

    config = load_config(target, overrides, architecture_of=architecture_of)
    return run_for_gate(config, fault=fault, console=notes(), beside=name_beside(config.name, overrides))


def _records(text: str) -> Path:
    """A file of outputs, or a run."""
    return Path(text) if Path(text).is_file() else find_run(text)


def _next(paths: tuple[Path, ...], result: CheckResult) -> list[str]:
    """What to type after a check."""
    if result.cards:
        return shlex.split(result.cards[0].replay)
    if len(paths) > 1:
        return ["vcbench", "check", *map(str, paths), "--html", "check.html"]
    return ["vcbench", "compare" if result.exit_code == 0 else "show", str(paths[0])]


def _report(result: CheckResult, *, as_json: bool, files: dict[str, Path | None]) -> None:
    from vcbench.lossless.check import render
    from vcbench.lossless.document import as_dict
    from vcbench.lossless.html import html
    from vcbench.lossless.junit import junit_xml
    from vcbench.lossless.markdown import markdown
    from vcbench.records.output import write_output

    writers = {"junit": junit_xml, "markdown": markdown, "html": html}
    for kind, path in files.items():
        if path is not None:
            write_output(path, writers[kind](result).encode("utf-8", "backslashreplace"))
            notes().print(f"wrote {path}", markup=False)
    if as_json:
        write_json(as_dict(result))
    else:
        render(result, results())
