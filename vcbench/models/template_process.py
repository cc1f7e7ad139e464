"""The one process that runs chat templates for this one: started when first needed, started anew when it was ended."""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CPU_S = 10.0


class TemplateProcess:
    """Sends templates to `template_worker`, one at a time."""

    def __init__(self, cpu_s: float = CPU_S) -> None:
        self._cpu_s = cpu_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        atexit.register(self.close)

    def ask(self, source: str, now: str, variables: Mapping[str, Any] | None) -> dict[str, Any]:
        """The worker's answer (`template_worker.answered`), or `error` where it did not live to give one.

        Raises TypeError or ValueError on variables that JSON cannot hold.
        """
        request = json.dumps({"source": source, "now": now, "variables": variables}).encode() + b"\n"
        with self._lock:
            process = self._running()
            try:
                return self._exchange(process, request)
            except BaseException:
                # Half a message lies in a pipe: the next one must not be taken for its rest.
                process.kill()
                raise

    def close(self) -> None:
        """Ends the process; it ends by itself when this one does."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.communicate()

    def _running(self) -> subprocess.Popen[bytes]:
        """The process; a new one after a fork, or where the old one has ended."""
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            if self._owner == os.getpid():
                self.close()
            paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from vcbench.models.template_worker import serve; serve({self._cpu_s})"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": paths},
            )
            self._owner = os.getpid()
        return self._process

    def _exchange(self, process: subprocess.Popen[bytes], request: bytes) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        line = b""
        try:
            process.stdin.write(request)
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            pass
        if line.endswith(b"\n"):
            answer: dict[str, Any] = json.loads(line)
            return answer
        code, limits = process.wait(), f"a template may take {self._cpu_s:g} s of processor time and 1 GiB of memory"
        if code == -signal.SIGPROF:
            return {"error": f"it does not end; {limits}", "ended": True}
        return {"error": f"its process ended with code {code}; {limits}", "ended": True}


TEMPLATES = TemplateProcess()
