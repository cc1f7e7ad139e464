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

    known = [path.name for path in list_runs(RUNS)]
    hint = suggest(text, known) if known else "there are none yet: vcbench run configs/quickstart.yaml"
    raise UsageError(f"no run {text!r}, neither as a directory nor under {RUNS}/; {hint}")


def list_runs(root: Path) -> list[Path]:
    """The directories under `root` that hold a run, sorted by name."""
    return sorted(path.parent for path in root.glob("*/provenance.json"))
