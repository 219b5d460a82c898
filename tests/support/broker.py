"""A broker in a thread of its own, as tests of real clients use it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

import lastword
from lastword import metrics
from lastword.broker.server import Broker
from lastword.clock import Clock
from lastword.log import Log

T = TypeVar("T")

INLINE = "lastword.compaction.inline:InlineCompactionServiceFactory"
"""Compacts in this process: tests of the endpoint don't start Java."""


class RunningBroker:
    """A broker over a log, listening on a free port. `log` may be used from the test's thread too."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="broker", daemon=True)
        self._thread.start()
        try:
            self.broker = self.run(self._start())
        except BaseException:
            self._end_loop()
            raise

    async def _start(self) -> Broker:
        broker = Broker(self.log, host="127.0.0.1", port=0)
        await broker.start()
        return broker

    @property
    def address(self) -> str:
        """For a client's `bootstrap.servers`."""
        host, port = self.broker.address
        return f"{host}:{port}"

    @property
    def port(self) -> int:
        return self.broker.address[1]

    @property
    def connections(self) -> int:
        """The number of open connections, as the metric shows it."""
        return int(metrics.REGISTRY.get_sample_value("lastword_kafka_connections") or 0)

    def run(self, coroutine: Any) -> Any:
        """Run something on the broker's loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(180)

    def on_loop(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        found: T = self.run(call())
        return found

    def stop(self) -> None:
        if self._loop.is_closed():
            return
        self.run(self.broker.stop())
        self._end_loop()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(180)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


@contextmanager
def running_broker(
    folder: Path, config: Mapping[str, object] | None = None, *, clock: Clock | None = None
) -> Iterator[RunningBroker]:
    """A broker over the log in a folder; the log is closed after it."""
    settings = {"compaction.service.factory": INLINE, **(config or {})}
    with lastword.open(folder, config=settings, clock=clock) as log, RunningBroker(log) as broker:
        yield broker
