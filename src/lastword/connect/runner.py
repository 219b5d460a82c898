"""Runs sources: one supervised task, a thread, for each.

A task finishes the unit that a crash interrupted, creates its connector, reads from the source's position and appends
chunk by chunk. After an error it closes everything and starts over after a pause, which grows with each error in a row;
the other sources keep running. A paused source is closed, too: it holds nothing open, not even its lock, so that it can
be reset.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Mapping
from typing import Any, Literal, Self

from lastword.clock import monotonic_s
from lastword.connect import metrics, states
from lastword.connect.appender import Appender
from lastword.connect.config import ConnectConfig, SourceConfig
from lastword.connect.destination import Destination, DestinationReads, OwnDestination
from lastword.connect.groups import DestinationGroups
from lastword.connect.protocol import Chunk, Connector, Context, Position, Watches, load
from lastword.errors import (
    InvalidConfigError,
    InvalidError,
    LastwordError,
    TopicExistsError,
    UnavailableError,
    UnknownTopicError,
)
from lastword.log import Log

logger = logging.getLogger(__name__)

STATUS_MS = 1_000
POLL_S = 0.5
"""How often a paused source checks whether it was resumed."""
WELL_S = 3.0
"""After this long without another error, a source counts as running again even if it has brought no records."""
TOPIC_CHECK_S = 5.0
"""How often a source checks that its topics are still the ones that it has appended to."""
WATCH_S = 10.0
"""How often the external cost of a source is checked while it is paused or failing."""

State = Literal["starting", "running", "paused", "failing", "stopped"]


class Connectors:
    """All sources of a file, on one log: `start`, `stop`, `status`. Or use it in a `with` statement."""

    def __init__(self, log: Log | Destination, config: ConnectConfig) -> None:
        self._destination: Destination = OwnDestination(log) if isinstance(log, Log) else log
        self._tasks = [Task(self._destination, config, source) for source in config.sources.values()]

    def lock(self) -> None:
        """Acquire the locks of all sources or of none. LockedError names the process that holds one. `start` calls it."""
        locked: list[Task] = []
        try:
            for task in self._tasks:
                task.prepare()
                locked.append(task)
        except BaseException:
            for task in locked:
                task.release()
            raise

    def start(self) -> None:
        """Start every source. LockedError is raised here, before any is started."""
        self.lock()
        for task in self._tasks:
            task.start()

    def stop(self, timeout_s: float | None = None) -> list[str]:
        """Stop every source after its current chunk; return those that have not stopped in time.

        Closing the log under one of those loses nothing, as if it had been killed.
        """
        until_s = None if timeout_s is None else monotonic_s() + timeout_s
        for task in self._tasks:
            task.ask_to_stop()
        late: list[str] = []
        for task in self._tasks:
            left_s = None if until_s is None else max(0.0, until_s - monotonic_s())
            if not task.join(left_s):
                late.append(task.name)
        return late

    def status(self) -> list[dict[str, Any]]:
        return [task.status() for task in self._tasks]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def check(config: ConnectConfig, destination: Destination) -> dict[str, list[str]]:
    """Return the problems of each source. Nothing is changed."""
    return {source.name: Task(destination, config, source).problems() for source in config.sources.values()}


class Task:
    """One source."""

    def __init__(self, destination: Destination, config: ConnectConfig, source: SourceConfig) -> None:
        self._destination = destination
        self._config = config
        self._source = source
        self._folder = states.source_folder(destination.path, source.name)
        self._stop = threading.Event()
        self._lock: states.SourceLock | None = None
        self._thread = threading.Thread(target=self._run, name=f"lastword-connect-{source.name}", daemon=True)
        self._status_lock = threading.Lock()
        self._state: State = "starting"
        self._error: str | None = None
        self._errors = 0
        self._records = 0
        self._last_append_ms: int | None = None
        self._position: Position | None = None
        self._facts: dict[str, Any] = {}
        self._saved_ms = 0
        self._appender: Appender | None = None
        self._needed: set[str] = set()
        """Topics that the connector has asked for in this run."""
        self._next_check_s = 0.0
        self._watcher: Connector | None = None
        self._next_watch_s = 0.0
        # Wrong options are reported before anything is started.
        where = f"{source.where}: sources.{source.name}.connector"
        self._factory = load(source.connector, where=where)
        try:
            self._factory(source.options, self._context())
        except LastwordError:
            raise
        except Exception as error:
            raise InvalidConfigError(
                f"{where}: the connector {source.connector!r} can't be created: {type(error).__name__}: {error}"
            ) from error

    @property
    def name(self) -> str:
        return self._source.name

    def problems(self) -> list[str]:
        connector = self._factory(self._source.options, self._context(create=False))
        try:
            self._appender = self._make_appender()
            return connector.check()
        except LastwordError as error:
            return [str(error)]
        finally:
            connector.close()

    def prepare(self) -> None:
        """Acquire the source's lock, unless it is held already."""
        if self._lock is None:
            self._lock = states.SourceLock.acquire(self._folder)

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def start(self) -> None:
        # Prometheus sees an increase only in a series that it has seen before.
        for each in (metrics.RECORDS, metrics.BYTES, metrics.ERRORS, metrics.RUNNING):
            each.labels(self._source.name)
        self._thread.start()

    def ask_to_stop(self) -> None:
        self._stop.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread to end; return whether it has."""
        if self._thread.ident is None:
            # It was locked, but never started.
            self.release()
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def status(self) -> dict[str, Any]:
        with self._status_lock:
            return {
                "source": self._source.name,
                "connector": self._source.connector,
                "topic": self._source.topic,
                "state": self._state,
                "error": self._error,
                "errors": self._errors,
                "records": self._records,
                "last_append_ms": self._last_append_ms,
                "position": self._position,
                "details": dict(self._facts),
                "time_ms": self._destination.clock.now_ms(),
            }

    # ------------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        name = self._source.name
        pause_ms = self._config.retry_first_ms
        try:
            while not self._stop.is_set():
                if states.is_paused(self._folder):
                    if self._state != "paused":
                        self._be("paused")
                    self.release()
                    self._watch()
                    self._stop.wait(POLL_S)
                    continue
                before = self._records
                try:
                    self.prepare()
                    # A source that is retried stays failing until it has brought something.
                    self._be("starting" if self._error is None else "failing")
                    self._read()
                except Exception as error:  # noqa: BLE001
                    # An exception of a connector must not stop the other sources, nor this one for good.
                    if self._records > before:
                        pause_ms = self._config.retry_first_ms
                    self._failed(error, pause_ms)
                    if not isinstance(error, UnavailableError):
                        self._watch()
                    self._rest(pause_ms / 1000)
                    pause_ms = min(pause_ms * 2, self._config.retry_max_ms)
                else:
                    pause_ms = self._config.retry_first_ms
        finally:
            self._be("stopped")
            self.release()
            logger.info("source %s has stopped", name)

    def _watch(self) -> None:
        """Let the connector report what the source costs outside. It reads nothing, so it can do no harm."""
        if monotonic_s() < self._next_watch_s:
            return
        self._next_watch_s = monotonic_s() + WATCH_S
        try:
            if self._watcher is None:
                self._watcher = self._factory(self._source.options, self._context())
            if isinstance(self._watcher, Watches):
                try:
                    self._watcher.look()
                finally:
                    self._watcher.close()
        except Exception as error:  # noqa: BLE001
            logger.debug("source %s can't be watched: %s", self._source.name, error)

    def _rest(self, left_s: float) -> None:
        """Wait after an error. Pausing ends the wait, so that pausing and resuming retries at once."""
        while left_s > 0 and not self._shall_end(min(left_s, POLL_S)):
            left_s -= POLL_S

    def _read(self) -> None:
        appender = self._appender = self._make_appender()
        position = appender.recover()
        self._position, self._records = position, appender.records
        self._needed.clear()
        connector = self._factory(self._source.options, self._context())
        chunks = connector.read(position)
        try:
            well_s = monotonic_s() + WELL_S
            for chunk in chunks:
                self._take(chunk, appender, connector)
                if chunk.records or self._error is None or monotonic_s() >= well_s:
                    # An empty chunk says only that reading has begun, as it may have before the last error.
                    self._error = None
                    self._be("running")
                if self._shall_end(0):
                    # Save the position of the empty chunks since the last append: they need not be read again.
                    if self._position is not None:
                        appender.moved(self._position)
                    return
        finally:
            # A generator holds its resources until it is closed.
            if isinstance(chunks, Generator):
                chunks.close()
            connector.close()

    def _make_appender(self) -> Appender:
        return Appender(
            self._destination, self._folder, source=self._source.name, connector=self._source.connector
        )

    def _take(self, chunk: Chunk, appender: Appender, connector: Connector) -> None:
        if monotonic_s() >= self._next_check_s:
            # Also while no records arrive: a source whose topic is gone must fail.
            self._next_check_s = monotonic_s() + TOPIC_CHECK_S
            for name in self._needed:
                appender.topic(name)
        if chunk.records:
            size_bytes = appender.append(chunk)
            metrics.RECORDS.labels(self._source.name).inc(len(chunk.records))
            metrics.BYTES.labels(self._source.name).inc(size_bytes)
            self._last_append_ms = self._destination.clock.now_ms()
            metrics.LAST_APPEND.labels(self._source.name).set(self._last_append_ms / 1000)
            self._records = appender.records
        elif chunk.position is not None and (self._position is None or appender.restored):
            appender.moved(chunk.position)
        self._position = chunk.position
        connector.appended(chunk.position)

    def _failed(self, error: Exception, pause_ms: int) -> None:
        text = " ".join(str(error).split()) or type(error).__name__
        if not isinstance(error, LastwordError):
            text = f"unexpected {type(error).__name__}: {text}"
            logger.debug("source %s", self._source.name, exc_info=error)
        # A repeated error is in the status; it need not fill the log.
        level = logging.INFO if text == self._error else logging.WARNING
        with self._status_lock:
            self._error = text
            self._errors += 1
        metrics.ERRORS.labels(self._source.name).inc()
        logger.log(level, "source %s: %s; retrying in %.1f s", self._source.name, text, pause_ms / 1000)
        self._be("failing")

    def _be(self, state: State) -> None:
        changed = state != self._state
        self._state = state
        metrics.RUNNING.labels(self._source.name).set(state == "running")
        now_ms = self._destination.clock.now_ms()
        if self._lock is None:
            # The process that holds the lock writes the status.
            return
        if changed or now_ms - self._saved_ms >= STATUS_MS:
            self._saved_ms = now_ms
            try:
                states.save_status(self._folder, self.status())
            except OSError as error:
                logger.warning("the status of source %s can't be written: %s", self._source.name, error)

    def _shall_end(self, wait_s: float) -> bool:
        return self._stop.wait(wait_s) or states.is_paused(self._folder)

    def _report(self, facts: Mapping[str, Any]) -> None:
        with self._status_lock:
            self._facts |= facts
        if (lag := facts.get("slot_lag_bytes")) is not None:
            metrics.SLOT_LAG.labels(self._source.name).set(lag)
        if self._state != "starting" or self._thread.ident is not None:
            self._be(self._state)

    def _context(self, *, create: bool = True) -> Context:
        return Context(
            source=self._source.name,
            topic=self._source.topic,
            clock=self._destination.clock,
            topics=DestinationReads(self._destination),
            groups=DestinationGroups(self._destination, self._folder),
            wait=self._shall_end,
            report=self._report,
            needs_topic=self._needs_topic if create else self._would_need_topic,
            was_reset=self._appender is not None and self._appender.was_reset,
            restored=self._appender.restored if self._appender is not None else None,
        )

    def _needs_topic(self, name: str, partitions: int | None) -> None:
        try:
            self._topic(name)
        except UnknownTopicError:
            if not self._config.auto_create:
                raise self._no_topic(name) from None
            count = partitions or self._config.partitions or self._destination.default_partitions()
            try:
                self._destination.create_topic(name, partitions=count, config=self._config.default_config)
            except TopicExistsError:
                # Another source has created it first.
                self._topic(name)
        self._needed.add(name)

    def _would_need_topic(self, name: str, partitions: int | None) -> None:  # noqa: ARG002
        try:
            self._topic(name)
        except UnknownTopicError:
            if not self._config.auto_create:
                raise self._no_topic(name) from None

    def _topic(self, name: str) -> None:
        """Raise UnknownTopicError if there is none, InvalidError if it is not the one that the source appended to."""
        if self._appender is not None:
            self._appender.topic(name)
        else:
            self._destination.topic(name)

    def _no_topic(self, name: str) -> InvalidError:
        return InvalidError(
            f"{self._source.where}: sources.{self._source.name}: there is no topic {name!r}; create it, or set "
            f"settings.topic.auto_create to true"
        )
