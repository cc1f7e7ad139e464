"""What share of the quickstart is not decoding: imports, finding and loading the model, tokenising, warm-up, recording.

Run it on an idle machine: `python benchmarks/overhead.py`. Writes benchmarks/results/overhead.json.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

STARTED = time.perf_counter()

from common import write_result  # noqa: E402

CONFIG = Path(__file__).parents[1] / "configs" / "quickstart.yaml"
SPENT: Counter[str] = Counter()


def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, its seconds counted under a name."""

    def call(*args: Any, **keys: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args, **keys)
        finally:
            SPENT[name] += time.perf_counter() - began

    return call


def main() -> None:
    from rich.console import Console

    from vcbench.backends.bundled import backend
    from vcbench.config.load import load_config
    from vcbench.records.store import RunDirectory, archive
    from vcbench.runners import recording, run

    SPENT["imports_s"] = time.perf_counter() - STARTED
    for room, name, label in (
        (run, "prepare", "plan_and_tokenise_s"),
        (backend, "load", "load_weights_s"),
        (backend, "warm_up", "warm_up_s"),
    ):
        setattr(room, name, timed(label, getattr(room, name)))
    for name in ("prompt_line", "request_line", "batch_line", "divergence_line"):
        setattr(recording, name, timed("recording_s", getattr(recording, name)))
    RunDirectory.append = timed("recording_s", RunDirectory.append)  # type: ignore[method-assign]
    RunDirectory.finish = timed("recording_s", RunDirectory.finish)  # type: ignore[method-assign]
    config = replace(load_config(CONFIG), name="overhead-benchmark")
    if RunDirectory.exists(Path(config.output_dir) / config.name):
        archive(Path(config.output_dir) / config.name)
    run.execute(config, console=Console(quiet=True))
    total = time.perf_counter() - STARTED
    shares = {name.removesuffix("_s"): seconds / total for name, seconds in SPENT.items()}
    named = sum(shares[name] for name in ("plan_and_tokenise", "load_weights", "recording"))
    print({name: f"{share:.2%}" for name, share in shares.items()}, f"loading, tokenising, recording: {named:.2%}")
    write_result(
        "overhead",
        {"total_s": total, "seconds": dict(SPENT), "shares": shares, "loading_tokenising_recording_share": named},
    )


if __name__ == "__main__":
    main()
