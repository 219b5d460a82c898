"""A real `lastword serve` for tests, with ports of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx
from tests.support.cli import COMMAND, DEADLINE_S
from tests.support.waiting import wait_until

from lastword.folder import running

SETTINGS = """\
compaction.service.factory: lastword.compaction.inline:InlineCompactionServiceFactory
group.initial.rebalance.delay.ms: 0
"""


class Server:
    """A running server."""

    def __init__(
        self,
        data: Path,
        *arguments: str,
        settings: str = SETTINGS,
        kafka: str = "127.0.0.1:0",
        admin: str = "127.0.0.1:0",
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.data = data
        data.mkdir(exist_ok=True)
        if settings:
            (data / "lastword.yaml").write_text(settings)
        self.log = ""
        self.process = subprocess.Popen(
            [
                COMMAND,
                "serve",
                "--data",
                str(data),
                "--kafka",
                kafka,
                "--admin",
                admin,
                "--json",
                *list(arguments),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TERM": "dumb", **environment},
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self.started = self._wait_for_ready()

    @property
    def kafka(self) -> str:
        return str(self.started["kafka"])

    @property
    def url(self) -> str:
        return f"http://{self.started['admin']}"

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=180, **options)

    def child(self, name: str) -> running.ChildProcess:
        found = running.load(self.data)
        assert found is not None
        return found.children[name]

    def kill_child(self, name: str) -> None:
        """kill -9, and wait until another process has taken its place."""
        pid = self.child(name).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self.child(name).pid not in (pid, None), lambda: self.log)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(DEADLINE_S)
        self._reader.join(180)
        assert self.process.stdout is not None and self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()
        return code

    def _wait_for_ready(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        text = b""
        while not text.endswith(b"\n}\n"):
            line = self.process.stdout.readline()
            if not line:
                code = self.wait()
                raise AssertionError(f"ended with {code}: {self.log}")
            text += line
        found: dict[str, Any] = json.loads(text)
        return found

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log += line.decode()


@contextmanager
def serving(data: Path, *arguments: str, **options: Any) -> Iterator[Server]:
    """A server that is stopped in the end."""
    server = Server(data, *arguments, **options)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.stop()
    assert "Traceback" not in server.log, server.log
