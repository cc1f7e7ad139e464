"""The pages on records and metrics name every field that there is."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from tests.records.samples import Sample
from vcbench.lossless.result import Verdict
from vcbench.metrics.summary import summarise
from vcbench.records.codec import KINDS
from vcbench.records.provenance import collect
from vcbench.records.reader import CellInfo, load_run
from vcbench.report.flat import flat

DOCS = Path(__file__).parents[2] / "docs"


def section(text: str, kind: str) -> str:
    found = re.search(rf"^### `{kind}`.*?(?=^##|\Z)", text, re.M | re.S)
    assert found, f"docs/records.md has no section on {kind}"
    return found.group()


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_every_line(kind: str) -> None:
    text = (DOCS / "records.md").read_text("utf-8")
    common = text[: text.index("### `prompt`")]
    for entry in fields(KINDS[kind]):
        assert f"| `{entry.name}` |" in section(text, kind) + common, f"{entry.name} of a {kind} line"


def test_every_key_of_provenance_and_cell() -> None:
    text = (DOCS / "records.md").read_text("utf-8")
    for key in [*collect(cells=[]), *(entry.name for entry in fields(CellInfo))]:
        assert f"`{key}`" in text, key


def test_every_figure_and_verdict(tmp_path: Path) -> None:
    text = (DOCS / "metrics.md").read_text("utf-8")
    row = summarise(load_run(Sample().write(tmp_path / "run")))[-1]
    described = {"run", "task", "cell", "label", "arm", "method", "compressor", "draft_length", "prompts"}
    for key in flat("run", row, {}).keys() - described:
        if key.endswith(("_low", "_high", "_end", "_n")) or key in ("output_tokens", "n"):
            continue
        if not key.startswith(("stored_bytes", "full_bytes")):
            assert f"`{key}`" in text, key
    for verdict in Verdict:
        assert f"`{verdict}`" in text
