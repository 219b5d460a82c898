"""A broker in a process of its own, which tests stop, kill and start again on the same port.

It is forked from a server process of `multiprocessing` that has imported everything, so that a start takes no time.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Self

from tests.support.broker import INLINE

import lastword
from lastword.broker.server import Broker

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])


class BrokerProcess:
    """A broker over the log in a folder."""

    def __init__(self, folder: Path, config: Mapping[str, object] | None = None) -> None:
        self._folder = folder
        self._config = {"compaction.service.factory": INLINE, **(config or {})}
        self.port = 0
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        heard, said = FORKS.Pipe(duplex=False)
        self._process = FORKS.Process(
            target=_serve, args=(str(self._folder), self.port, self._config, said), daemon=True
        )
        self._process.start()
        said.close()
        with heard:
            assert heard.poll(60), "the broker does not start"
            self.port = heard.recv()

    def kill(self) -> None:
        """As kill -9: nothing is closed, synced or given back."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        if self._process.is_alive():
            assert self._process.pid is not None
            os.kill(self._process.pid, number)
        self._process.join(180)
        if self._process.is_alive():
            self._process.kill()
            raise AssertionError("the broker does not end")
        assert self._process.exitcode in (0, -signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def _serve(folder: str, port: int, config: Mapping[str, object], said: Connection) -> None:
    async def serve(log: lastword.Log) -> None:
        stopped = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
        broker = Broker(log, host="127.0.0.1", port=port)
        await broker.start()
        said.send(broker.address[1])
        await stopped.wait()
        await broker.stop()

    with lastword.open(folder, config=config) as log:
        asyncio.run(serve(log))
