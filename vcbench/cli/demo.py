"""`vcbench demo`: the gate passing a sound engine and failing a broken one, on a tiny model, in seconds."""

from __future__ import annotations

from typing import Annotated

import typer

from vcbench.cli.output import next_command, notes, results

FAULT = "no_rollback_of_last_draft"


def demo(
    fault: Annotated[
        str, typer.Option(metavar="NAME", help="The fault to build in; docs/lossless.md lists them.")
    ] = FAULT,
) -> None:
    """Show the lossless gate pass, then fail with a divergence card; no model is downloaded.

    Exit code 0 only if the sound engine passes and the broken one does not.
    """
    from dataclasses import replace

    from vcbench.forensics.controls import run_controls
    from vcbench.forensics.gate import demo_run, run_for_gate
    from vcbench.lossless.check import check_loaded, render
    from vcbench.lossless.faults import find_fault
    from vcbench.records.reader import load_run

    wanted, console = find_fault(fault), notes()
    console.print("A sound engine: draft on the compressed cache, verify on the full one.", markup=False)
    sound = check_loaded(load_run(run_for_gate(demo_run(fault), fault=None, console=console)))
    render(sound, results())
    console.print(f"\nThe same with a fault: {wanted.doc}.", markup=False)
    run = load_run(run_for_gate(demo_run(fault), fault=fault, console=console))
    broken = check_loaded(run)
    broken = run_controls(replace(broken, cards=broken.cards[:1]), run)
    render(broken, results())
    console.print(f"\nExpected: PASS, then {wanted.outcome}.", markup=False)
    next_command(f"vcbench check tiny --inject-fault {fault} --html check.html")
    if sound.outcome != "PASS" or broken.outcome != wanted.outcome:
        raise typer.Exit(1)
