"""A broker in a process of its own, which tests stop, kill and start again on the same port."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.support.broker import INLINE

import lastword
from lastword.broker.server import Broker

ROOT = Path(__file__).parents[2]


class BrokerProcess:
    """A broker over the log in a folder."""

    def __init__(self, folder: Path, config: Mapping[str, object] | None = None) -> None:
        self._folder = folder
        self._config = {"compaction.service.factory": INLINE, **(config or {})}
        self.port = _free_port()
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.broker_child",
                str(self._folder),
                str(self.port),
                json.dumps(self._config),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        """As kill -9: nothing is closed, synced or given back."""
        os.kill(self._process.pid, signal.SIGKILL)
        self._wait()

    def stop(self) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGTERM)
        self._wait()

    def _wait(self) -> None:
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


async def _serve(folder: str, port: int, config: Mapping[str, object]) -> None:
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    with lastword.open(folder, config=config) as log:
        broker = Broker(log, host="127.0.0.1", port=port)
        await broker.start()
        print("ready", flush=True)
        await stopped.wait()
        await broker.stop()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])))
