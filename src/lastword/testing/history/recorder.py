"""A recorder records the requests and responses of clients, from any number of threads.

    recorder = Recorder(path="client-1.jsonl")
    with recorder.produce("users", 0, [ProducedRecord(key=b"alice", value=b"v1")], process="client 1") as op:
        op.acknowledged(client.send(...))

Each block records one operation. Its outcome is in doubt until the block sets it. If an exception leaves the block, the
outcome is in doubt, unless the type of the exception is one of `refusals`. Exceptions are never swallowed.

Processes on one machine record into a file each, and `History.read` merges the files. Their common order is the machine's
monotonic clock (`time.monotonic_ns`), which all processes share and which restarts with the machine. A request is
written to the file before it is sent, so the file of a killed process has it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TextIO, TypeVar

from lastword.testing.history.events import (
    DeleteRecords,
    Erase,
    Fetch,
    OffsetCommit,
    OffsetRead,
    Operation,
    Outcome,
    Point,
    Positions,
    Produce,
    ProducedRecord,
    Restart,
    RestartKind,
    Restore,
    SeenRecord,
    StateRead,
    Takeover,
    TimeTravel,
    TopicCreated,
    TopicDeleted,
    TopicSettings,
)
from lastword.testing.history.history import History
from lastword.testing.history.lines import write_completion, write_operation

_P = TypeVar("_P", bound="Pending")


class Clock(Protocol):
    """The server's clock."""

    def now_ms(self) -> int: ...


class _MachineClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class Recorder:
    """Records operations in memory and, if it has a path, appends them to a file.

    `order` returns the numbers of the order. A simulation passes a counter, to get the same numbers in each run.
    `keep=False` keeps nothing in memory, for long runs with a file.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        path: str | Path | None = None,
        order: Callable[[], int] = time.monotonic_ns,
        refusals: tuple[type[BaseException], ...] = (),
        keep: bool = True,
    ) -> None:
        self._clock = clock or _MachineClock()
        self._order = order
        self.refusals = refusals
        self._keep = keep
        self._lock = threading.Lock()
        self._last = -1
        self._operations: dict[int, Operation] = {}
        self._file: TextIO | None = None if path is None else Path(path).open("a", encoding="utf-8")  # noqa: SIM115

    def history(self) -> History:
        """Return the operations recorded so far, including those that have not returned."""
        with self._lock:
            return History.of(self._operations.values())

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ----------------------------------------------------------------------------------------------- topics

    def topic_created(
        self,
        topic: str,
        settings: Mapping[str, str],
        *,
        partitions: int | None = None,
        process: str | None = None,
    ) -> Pending:
        return self._begin(
            Pending, TopicCreated, process, topic=topic, settings=dict(settings), partitions=partitions
        )

    def topic_deleted(self, topic: str, *, process: str | None = None) -> Pending:
        return self._begin(Pending, TopicDeleted, process, topic=topic)

    def topic_settings(
        self, topic: str, settings: Mapping[str, str | None], *, process: str | None = None
    ) -> Pending:
        return self._begin(Pending, TopicSettings, process, topic=topic, settings=dict(settings))

    # ---------------------------------------------------------------------------------------------- records

    def produce(
        self, topic: str, partition: int, records: Iterable[ProducedRecord], *, process: str | None = None
    ) -> PendingProduce:
        return self._begin(
            PendingProduce, Produce, process, topic=topic, partition=partition, records=tuple(records)
        )

    def fetch(
        self,
        topic: str,
        partition: int,
        from_offset: int,
        *,
        session: str | None = None,
        process: str | None = None,
    ) -> PendingFetch:
        return self._begin(
            PendingFetch,
            Fetch,
            process,
            topic=topic,
            partition=partition,
            from_offset=from_offset,
            session=session,
        )

    def positions(self, topic: str, partition: int, *, process: str | None = None) -> PendingPositions:
        return self._begin(PendingPositions, Positions, process, topic=topic, partition=partition)

    def state_read(
        self,
        topic: str,
        *,
        partitions: Sequence[int] | None = None,
        as_of: Point | None = None,
        process: str | None = None,
    ) -> PendingState:
        chosen = None if partitions is None else tuple(partitions)
        return self._begin(PendingState, StateRead, process, topic=topic, partitions=chosen, as_of=as_of)

    def time_travel(
        self, topic: str, partition: int, as_of: Point, *, process: str | None = None
    ) -> PendingTimeTravel:
        return self._begin(
            PendingTimeTravel, TimeTravel, process, topic=topic, partition=partition, as_of=as_of
        )

    def erase(self, topic: str, keys: Iterable[bytes], *, process: str | None = None) -> Pending:
        return self._begin(Pending, Erase, process, topic=topic, keys=tuple(keys))

    def delete_records(
        self, topic: str, partition: int, before_offset: int, *, process: str | None = None
    ) -> Pending:
        return self._begin(
            Pending, DeleteRecords, process, topic=topic, partition=partition, before_offset=before_offset
        )

    # ----------------------------------------------------------------------------------------------- groups

    def offset_commit(
        self, group: str, topic: str, partition: int, offset: int, *, process: str | None = None
    ) -> Pending:
        return self._begin(
            Pending, OffsetCommit, process, group=group, topic=topic, partition=partition, offset=offset
        )

    def offset_read(
        self, group: str, topic: str, partition: int, *, process: str | None = None
    ) -> PendingOffset:
        return self._begin(PendingOffset, OffsetRead, process, group=group, topic=topic, partition=partition)

    # ---------------------------------------------------------------------------------------------- servers

    def restart(self, kind: RestartKind, *, process: str | None = None) -> Pending:
        return self._begin(Pending, Restart, process, kind=RestartKind(kind))

    def restore(
        self,
        backup_invoked: int,
        backup_completed: int,
        *,
        topics: Iterable[str] | None = None,
        process: str | None = None,
    ) -> Pending:
        return self._begin(
            Pending,
            Restore,
            process,
            backup_invoked=backup_invoked,
            backup_completed=backup_completed,
            topics=None if topics is None else tuple(topics),
        )

    def takeover(self, *, topics: Iterable[str] | None = None, process: str | None = None) -> Pending:
        return self._begin(Pending, Takeover, process, topics=None if topics is None else tuple(topics))

    def now(self) -> int:
        """Take the next number of the order, such as the one before a backup and the one after it."""
        with self._lock:
            return self._next()

    # -------------------------------------------------------------------------------------------- recording

    def _next(self) -> int:
        self._last = max(self._last + 1, self._order())
        return self._last

    def _begin(self, pending: type[_P], form: type[Operation], process: str | None, /, **given: Any) -> _P:
        name = process or threading.current_thread().name
        with self._lock:
            operation = form(process=name, invoked=self._next(), invoked_ms=self._clock.now_ms(), **given)
            if self._keep:
                self._operations[operation.invoked] = operation
            if self._file is not None:
                write_operation(self._file, operation)
                self._file.flush()
        return pending(self, operation)

    def complete(self, before: Operation, results: Mapping[str, Any]) -> None:
        """Record the outcome of an operation. Its block calls this."""
        now_ms = self._clock.now_ms()
        with self._lock:
            after = replace(before, completed=self._next(), completed_ms=now_ms, **results)
            if self._keep:
                self._operations[after.invoked] = after
            if self._file is not None:
                write_completion(self._file, before, after)
                self._file.flush()


class Pending:
    """An operation that has not ended. If its block sets no outcome, it ends in doubt."""

    def __init__(self, recorder: Recorder, operation: Operation) -> None:
        self._recorder = recorder
        self._operation = operation
        self._results: dict[str, Any] | None = None

    @property
    def invoked(self) -> int:
        """The number at which it was invoked."""
        return self._operation.invoked

    def ok(self) -> None:
        """Record that the operation succeeded."""
        self._end(Outcome.OK)

    def refused(self, error: object = None) -> None:
        """Record that the operation certainly had no effect and will have none."""
        self._end(Outcome.REFUSED, error=None if error is None else str(error))

    def doubt(self, error: object = None, *, is_over: bool = False) -> None:
        """Record that the outcome is unknown. With `is_over`, no effect can follow from now on."""
        self._end(Outcome.DOUBT, error=None if error is None else str(error), is_over=is_over)

    def _end(self, outcome: Outcome, **results: Any) -> None:
        self._results = {"outcome": outcome, **results}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        if error is not None and self._results is None:
            if isinstance(error, self._recorder.refusals):
                self.refused(repr(error))
            else:
                self.doubt(repr(error))
        self._recorder.complete(self._operation, self._results or {"outcome": Outcome.DOUBT})


class PendingProduce(Pending):
    def acknowledged(self, base_offset: int | None = None) -> None:
        """Record that all records were appended. `base_offset` is the offset of the first, if the log returned it."""
        self._end(Outcome.OK, base_offset=base_offset)


class PendingFetch(Pending):
    def returned(
        self,
        records: Iterable[SeenRecord],
        next_offset: int,
        *,
        log_start: int | None = None,
        high_watermark: int | None = None,
        first_dirty: int | None = None,
    ) -> None:
        """Record that the log returned all its records from `from_offset` up to `next_offset`."""
        self._end(
            Outcome.OK,
            records=tuple(records),
            next_offset=next_offset,
            log_start=log_start,
            high_watermark=high_watermark,
            first_dirty=first_dirty,
        )


class PendingPositions(Pending):
    def returned(
        self,
        *,
        log_start: int | None = None,
        first_dirty: int | None = None,
        sealed_end: int | None = None,
        log_end: int | None = None,
    ) -> None:
        self._end(
            Outcome.OK, log_start=log_start, first_dirty=first_dirty, sealed_end=sealed_end, log_end=log_end
        )


class PendingState(Pending):
    def returned(self, state: Mapping[bytes, bytes]) -> None:
        self._end(Outcome.OK, state=dict(state))


class PendingTimeTravel(Pending):
    def returned(self, records: Iterable[SeenRecord]) -> None:
        self._end(Outcome.OK, records=tuple(records))


class PendingOffset(Pending):
    def returned(self, offset: int | None) -> None:
        self._end(Outcome.OK, offset=offset)
