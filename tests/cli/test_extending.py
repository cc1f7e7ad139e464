"""docs/extending.md: its packages are built and installed as they stand there, and used in a run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vcbench import registry
from vcbench.errors import UsageError
from vcbench.models.tiny import CONFIG, write_tiny_model
from vcbench.records.reader import load_run

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
FILE = re.compile(r"`(?P<name>[\w.]+)`:\n\n```\w+\n(?P<content>.*?)```\n", re.DOTALL)
DIGITS = (*map(str, range(10)), "Ġ")
CONFIGURATION = """
name: third-party
model: {{id: {model}, dtype: float32, device: cpu}}
tasks:
  - {{name: counting, numbers: 40, limit: 3, max_tokens: 12}}
methods:
  value-norm-4x: {{compressor: value-norm, factor: 4}}
cells:
  - {{arm: full}}
  - {{arm: lossy, method: value-norm-4x}}
  - {{arm: vericache, method: value-norm-4x, draft_length: 4}}
engine: {{threads: 1}}
output_dir: {output}
"""


def packages(directory: Path) -> list[Path]:
    """The page's packages, written out; a package begins with its `pyproject.toml`."""
    made: list[Path] = []
    for found in FILE.finditer(PAGE.read_text()):
        if found["name"] == "pyproject.toml":
            made.append(directory / f"package-{len(made)}")
            made[-1].mkdir()
        (made[-1] / found["name"]).write_text(found["content"])
    return made


def tiny_model(directory: Path) -> Path:
    """The tiny model, with a tokenizer that knows digits and spaces."""
    directory.mkdir()
    write_tiny_model(directory, 3)
    path = directory / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    words = list(tokenizer["model"]["vocab"])
    words[-len(DIGITS) :] = DIGITS
    tokenizer["model"]["vocab"] = {word: index for index, word in enumerate(words)}
    path.write_text(json.dumps(tokenizer))
    assert len(words) == CONFIG["vocab_size"]
    return directory


def vcbench(*arguments: str, plugins: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """The command line in a process that finds the plug-ins."""
    environment = os.environ | {"PYTHONPATH": str(plugins), "VCBENCH_CACHE_DIR": str(cache)}
    program = "from vcbench.cli.main import entry; entry()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment, capture_output=True, text=True, check=False
    )


def test_a_package_from_the_page_works(tmp_path: Path) -> None:
    pytest.importorskip("pip", reason="this environment has no pip to install a package with")
    sources, plugins = packages(tmp_path), tmp_path / "site"
    assert [len(list(source.iterdir())) for source in sources] == [2, 2]
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*install, "--target", str(plugins), *map(str, sources)], check=True)
    config = tmp_path / "run.yaml"
    config.write_text(CONFIGURATION.format(model=tiny_model(tmp_path / "model"), output=tmp_path / "runs"))

    done = vcbench("run", str(config), plugins=plugins, cache=tmp_path / "cache")
    assert done.returncode == 0, done.stdout + done.stderr
    run = load_run(tmp_path / "runs" / "third-party")
    requests = {(cell.label.split()[0], request): line for cell in run.cells
                for (of, _, request), line in run.requests.items() if of == cell.id}  # fmt: skip
    assert len(requests) == 9
    for number in (0, 10, 20):
        full, lossy, verified = (requests[arm, f"from-{number}"] for arm in ("full", "lossy", "vericache"))
        assert verified.token_ids == full.token_ids
        assert verified.logits_sha256 == full.logits_sha256
        assert lossy.kv_end is not None
        assert full.kv_end is not None
        assert lossy.kv_end["stored"] < full.kv_end["stored"]
        assert sum(verified.drafted) > 0
    assert "next_number" in (run.path / "scores.json").read_text()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("import no_such_module", "compressor 'square' cannot be loaded: ModuleNotFoundError"),
        ("raise SystemExit(3)", "compressor 'square' cannot be loaded: SystemExit"),
        ("", "broken_square registers no compressor named 'square'; fix the package broken, or uninstall it"),
    ],
)
def test_a_package_that_does_not_load_is_named(
    content: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tmp_path / "broken-0.1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 0.1\n")
    (facts / "entry_points.txt").write_text("[vcbench.compressors]\nsquare = broken_square\n")
    (tmp_path / "broken_square.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_square", raising=False)
    monkeypatch.setattr(registry, "_loaded", set())

    with pytest.raises(UsageError, match=said):
        registry.names("compressor")
