"""Data sets from a hub on this machine: the cache first, a missing network told at once, refusals in words."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from tests.fake_hub import Answers, add_files, serve
from vcbench.errors import TaskError
from vcbench.tasks.hub import hub_file, hub_rows, hub_snapshot, missing_shards

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROWS = [{"id": "a", "patch": "x\n", "n": 1}, {"id": "b", "patch": None, "n": 2}]


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "datasets"))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    with serve(monkeypatch) as answers:
        yield answers


def parquet(rows: list[dict[str, object]]) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    return file.getvalue()


def publish(server: Answers, files: dict[str, bytes]) -> None:
    add_files(server, "datasets", "owner/name", COMMIT, files)


def test_rows_of_a_split(server: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(
        server,
        {
            "README.md": b"---\nlicense: mit\n---\n",
            "data/test-00000-of-00001.parquet": parquet(ROWS),
            "data/dev-00000-of-00001.parquet": parquet(ROWS[:1]),
        },
    )
    first, second = hub_rows("owner/name", split="test")
    assert first.values == ROWS[0]
    assert second.values == ROWS[1]
    assert second.where == "owner/name at 0123456789ab, split test, row 2"
    assert len(list(hub_rows("owner/name", split="dev"))) == 1
    with pytest.raises(TaskError, match=r"owner/name \(commit 0123456789ab\) gives no rows of split 'train'"):
        list(hub_rows("owner/name", split="train"))

    server.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert [row.values for row in hub_rows("owner/name", split="test")] == ROWS, "the cache needs no network"
    assert [row.values for row in hub_rows("owner/name", split="test", revision=COMMIT)] == ROWS


def test_rows_of_a_configuration(server: Answers) -> None:
    card = "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: test\n    path: main/test*\n"
    card += "- config_name: other\n  data_files:\n  - split: test\n    path: other/test*\n---\n"
    files = {"README.md": card.encode(), "main/test.parquet": parquet(ROWS), "other/test.parquet": parquet(ROWS[1:])}
    publish(server, files)
    (row,) = hub_rows("owner/name", config="other", split="test")
    assert row.values == ROWS[1]
    assert row.where == "owner/name at 0123456789ab, other, split test, row 1"
    with pytest.raises(TaskError, match="gives no rows of split 'test'"):
        list(hub_rows("owner/name", split="test"))


def test_one_file(server: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(server, {"mixed.jsonl": b'{"content": "x"}\n{"content": ["x"]}\n'})
    path = hub_file("owner/name", "mixed.jsonl")
    assert path.read_bytes().startswith(b'{"content": "x"}')
    with pytest.raises(TaskError, match=r"owner/name has no such file; look at https://.*/owner/name/tree/main"):
        hub_file("owner/name", "other.jsonl")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    assert hub_file("owner/name", "mixed.jsonl") == path


def test_offline_by_wish(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    wanted = (
        r"HF_HUB_OFFLINE is set\), and data set owner/name is not in its cache; .* run: hf download --repo-type "
        r"dataset owner/name --revision v1 and .* `path`, or leave both out for the embedded sample"
    )
    with pytest.raises(TaskError, match=wanted):
        list(hub_rows("owner/name", split="test", revision="v1"))
    with pytest.raises(TaskError, match=r"hf download --repo-type dataset owner/name f.jsonl and"):
        hub_file("owner/name", "f.jsonl")


def test_no_network_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(TaskError, match=r"the hub is out of reach .* hf download --repo-type dataset owner/name"):
        list(hub_rows("owner/name", split="test"))
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("code", "status", "revision", "message"),
    [
        ("RepoNotFound", 404, None, "the hub has no data set owner/name, or it is private"),
        ("GatedRepo", 403, None, "owner/name is gated: accept its licence at https://huggingface.co/datasets/owner"),
        ("RevisionNotFound", 404, "v2", "the hub has no revision 'v2' of data set owner/name"),
        ("", 500, None, "the hub refused data set owner/name: "),
    ],
)
def test_refusals_of_the_hub(server: Answers, code: str, status: int, revision: str | None, message: str) -> None:
    path = "/api/datasets/owner/name" + (f"/revision/{revision}" if revision else "")
    server[path] = (status, {"X-Error-Code": code}, b"{}")
    with pytest.raises(TaskError, match=message):
        hub_snapshot("owner/name", revision=revision)


def test_malformed_id() -> None:
    with pytest.raises(TaskError, match="'bad name/x' is not the id"):
        hub_snapshot("bad name/x")


def test_a_file_that_is_no_table(server: Answers) -> None:
    publish(server, {"data/test-00000-of-00001.parquet": b"PAR1 and nothing more"})
    with pytest.raises(TaskError, match="gives no rows of split 'test'"):
        list(hub_rows("owner/name", split="test"))


def test_an_incomplete_copy_is_refused(server: Answers) -> None:
    publish(server, {"data/test-00000-of-00002.parquet": parquet(ROWS)})
    with pytest.raises(TaskError, match=r"incomplete: data/test-00001-of-00002 is missing; .* hf download"):
        list(hub_rows("owner/name", split="test"))


def test_missing_shards() -> None:
    assert missing_shards(["README.md", "data/test-00000-of-00001.parquet", "x/a-00001-of-00002.parquet"]) == [
        "x/a-00000-of-00002"
    ]
    assert missing_shards([]) == []
