"""Finding a run from what was typed: a directory, or the name of one under `runs/`."""

from __future__ import annotations

from pathlib import Path

from vcbench.errors import UsageError

RUNS = Path("runs")


def find_run(text: str) -> Path:
    """The run's directory. Raises UsageError with the nearest name."""
    for path in (Path(text), RUNS / text):
        if path.is_dir():
            return path
    from vcbench.registry import suggest

    known = sorted(path.parent.name for path in RUNS.glob("*/provenance.json"))
    hint = suggest(text, known) if known else "there are none yet: vcbench run configs/quickstart.yaml"
    raise UsageError(f"no run {text!r}, neither as a directory nor under {RUNS}/; {hint}")
