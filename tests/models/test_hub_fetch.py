from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fake_hub import Answers, add_files, serve
from tests.models import tiny
from vcbench.config.schema import ModelConfig
from vcbench.errors import ModelError
from vcbench.models.fetch import fetch_model
from vcbench.models.gguf_convert import convert_gguf
from vcbench.models.hub_fetch import fetch_from_hub
from vcbench.models.progress import silent
from vcbench.models.store import IGNORED, PATTERNS, resolve_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def hub_cache(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    return tmp_path / "hub"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    with serve(monkeypatch) as answers:
        yield answers


def test_offline_by_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    with pytest.raises(ModelError, match=r"HF_HUB_OFFLINE is set.*give its path as the model id"):
        fetch_model("owner/name")


def test_no_network_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()

    with pytest.raises(ModelError, match=r"the model hub is out of reach .* vcbench model fetch smollm2-135m"):
        fetch_model("owner/name")
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("model_id", ["nothing", "a/b/c", "./nothing"])
def test_ids_that_are_none(model_id: str) -> None:
    with pytest.raises(ModelError, match="neither a catalogue name"):
        fetch_model(model_id)


def test_malformed_hub_id() -> None:
    with pytest.raises(ModelError, match="'bad name/x' is not a Hugging Face id"):
        fetch_model("bad name/x")


@pytest.mark.parametrize(
    ("code", "revision", "message"),
    [
        ("RepoNotFound", None, "the hub has no model owner/name, or it is private"),
        ("GatedRepo", None, "owner/name is gated: accept its licence at https://huggingface.co/owner/name"),
        ("RevisionNotFound", "v2", "the hub has no revision 'v2' of owner/name"),
    ],
)
def test_refusals_of_the_hub(server: Answers, code: str, revision: str | None, message: str) -> None:
    path = "/api/models/owner/name" + (f"/revision/{revision}" if revision else "")
    server[path] = (403 if code == "GatedRepo" else 404, {"X-Error-Code": code}, b"{}")

    with pytest.raises(ModelError, match=message):
        fetch_model("owner/name", revision=revision)


def test_download(server: Answers, hub_cache: Path, tmp_path: Path) -> None:
    tiny.write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "model").mkdir()
    convert_gguf(tmp_path / "tiny.gguf", tmp_path / "model", progress=silent)
    names = sorted(path.name for path in (tmp_path / "model").iterdir())
    bodies = {name: (tmp_path / "model" / name).read_bytes() for name in names}
    add_files(server, "models", "owner/name", COMMIT, bodies | {"pytorch_model.bin": b"the same weights"})

    files = fetch_model("owner/name")

    assert files.revision == COMMIT
    assert sorted(path.name for path in files.path.iterdir()) == names
    assert fetch_model("owner/name") == files == resolve_model(ModelConfig(id="owner/name"))


def test_complete_snapshot_needs_no_network(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    snapshot = hub_cache / "models--owner--name" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (hub_cache / "models--owner--name" / "refs").mkdir()
    (hub_cache / "models--owner--name" / "refs" / "main").write_text(COMMIT)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (snapshot / name).write_text("{}")

    assert fetch_from_hub("owner/name", revision=None, force=False, progress=silent) == snapshot
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="out of reach"):
        fetch_from_hub("owner/name", revision=None, force=False, progress=silent)


def test_what_is_downloaded() -> None:
    from huggingface_hub.utils import filter_repo_objects

    wanted = ["config.json", "model-1-of-2.safetensors", "tokenizer.json", "chat_template.jinja", "tokenizer.model"]
    unwanted = ["consolidated.safetensors", "pytorch_model.bin", "original/params.json", "README.md", "x.gguf"]

    kept = filter_repo_objects(wanted + unwanted, allow_patterns=list(PATTERNS), ignore_patterns=list(IGNORED))

    assert sorted(kept) == sorted(wanted)
