"""`python -m tests.mutants [NAME …]` (or `make mutants`): exit code 1 when a mutation is seen by no test."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.mutants.catalogue import MUTATIONS
from tests.mutants.runner import Verdict, copy_of, sound, verdicts

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Runs the named mutations, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="mutations to try; all without")
    parser.add_argument("--timeout", type=float, default=900.0, metavar="SECONDS", help="for one mutation's tests")
    parser.add_argument("--list", action="store_true", help="name the mutations and their tests, and stop")
    options = parser.parse_args()
    if unknown := set(options.names) - {mutation.name for mutation in MUTATIONS}:
        parser.error(f"no mutation {', '.join(sorted(unknown))}; --list names them")
    chosen = [mutation for mutation in MUTATIONS if not options.names or mutation.name in options.names]
    console = Console()
    if options.list:
        for mutation in chosen:
            console.print(f"{mutation.name}\n    {mutation.file}\n    {' '.join(mutation.tests)}", markup=False)
        return 0
    with tempfile.TemporaryDirectory(prefix="vcbench-mutants-") as folder:
        tree = copy_of(ROOT, Path(folder))
        if failing := sound(tree, chosen, timeout_s=options.timeout * 4):
            console.print("the tests do not pass without a mutation:", *failing, sep="\n", markup=False)
            return 1
        results = []
        for verdict in verdicts(tree, chosen, timeout_s=options.timeout):
            results.append(verdict)
            console.print(f"{verdict.outcome:>9}  {verdict.seconds:6.1f} s  {verdict.mutation}", markup=False)
            if verdict.outcome == "ERROR":
                console.print(verdict.output, markup=False)
    return _report(console, results)


def _report(console: Console, results: list[Verdict]) -> int:
    bad = [verdict for verdict in results if not verdict.good]
    console.print(f"{len(results) - len(bad)} of {len(results)} mutations caught")
    if bad:
        table = Table("not caught", "outcome")
        for verdict in bad:
            table.add_row(verdict.mutation, verdict.outcome)
        console.print(table)
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
