"""A hub on this machine, for tests of what downloads from one."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

Answers = dict[str, tuple[int, dict[str, str], bytes]]


@contextmanager
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answers]:
    """Answers what the test puts into the mapping of paths, and 404 for all else."""
    answers: Answers = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(body_too=True)

        def do_HEAD(self) -> None:
            self._answer(body_too=False)

        def _answer(self, *, body_too: bool) -> None:
            path = self.path.split("?")[0]
            absent = {"X-Error-Code": "EntryNotFound"} if "/resolve/" in path else {}
            status, headers, body = answers.get(path, (404, absent, b""))
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            if body_too:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        endpoint = f"http://127.0.0.1:{running.server_address[1]}"
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        )
        yield answers
        running.shutdown()
        thread.join()


def add_files(answers: Answers, kind: str, repo: str, commit: str, bodies: Mapping[str, bytes]) -> None:
    """Puts the files of one commit on the hub. `kind`: `models` or `datasets`."""
    prefix = "" if kind == "models" else f"/{kind}"
    tree = []
    for name, body in bodies.items():
        headers = {"ETag": f'"{name}"', "X-Repo-Commit": commit}
        for revision in (commit, "main"):
            answers[f"{prefix}/{repo}/resolve/{revision}/{name}"] = (200, headers, body)
        tree.append({"type": "file", "path": name, "size": len(body), "oid": name})
    answers[f"/api/{kind}/{repo}/tree/{commit}"] = (200, {}, json.dumps(tree).encode())
    siblings = [{"rfilename": name} for name in bodies]
    info = json.dumps({"id": repo, "modelId": repo, "sha": commit, "siblings": siblings}).encode()
    answers[f"/api/{kind}/{repo}"] = answers[f"/api/{kind}/{repo}/revision/main"] = (200, {}, info)
    answers[f"/api/{kind}/{repo}/revision/{commit}"] = (200, {}, info)
