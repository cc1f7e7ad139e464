"""What every benchmark shares: the embedded model, real text, and a result file that says where it was measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from vcbench.engine.environment import prepare

prepare()
RESULTS = Path(__file__).parent / "results"


def embedded_model(exactness: str) -> tuple[Any, Any]:
    """The embedded model's files and a decoder on CPU float32."""
    import torch

    from vcbench.config.schema import ModelConfig
    from vcbench.engine.model.load import load_decoder
    from vcbench.models.store import resolve_model
    from vcbench.models.weights import WeightReader

    files = resolve_model(ModelConfig(id="smollm2-135m"))
    decoder, _ = load_decoder(
        files.architecture,
        WeightReader(files.path),
        device=torch.device("cpu"),
        dtype=torch.float32,
        exactness=exactness,  # type: ignore[arg-type]
    )
    return files, decoder


def real_tokens(count: int) -> list[int]:
    """The first `count` tokens of the standard library's own documentation."""
    import pydoc_data.topics

    from vcbench.config.schema import ModelConfig
    from vcbench.models.store import resolve_model
    from vcbench.models.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_files(resolve_model(ModelConfig(id="smollm2-135m")))
    text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    return tokenizer.encode(text[: 12 * count])[:count]


def measured_at() -> dict[str, Any]:
    """Time and commit, for one of several measurements of a file that may come from different runs."""
    from vcbench.records.provenance import collect

    origin = collect(cells=[], argv=[])
    return {key: origin[key] for key in ("started", "git")}


def write_result(name: str, result: dict[str, Any]) -> None:
    """Writes benchmarks/results/<name>.json with hardware, versions and commit inside."""
    from vcbench.records.provenance import collect

    RESULTS.mkdir(exist_ok=True)
    origin = collect(cells=[], argv=[f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    origin = {key: origin[key] for key in ("started", "git", "versions", "hardware", "os", "threads", "environment")}
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"provenance": origin, **result}, indent=2) + "\n")
    print(f"wrote {path.relative_to(Path(__file__).parents[1])}")
