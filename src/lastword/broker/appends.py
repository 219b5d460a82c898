"""Appends produced batches to the WAL.

A few threads do this. Each partition belongs to one of them, so its batches stay in order. A thread repeats:
1. take the batches that have arrived, from any connection;
2. check each batch and write it to its partition's WAL;
3. sync each WAL that was written to, once (`wal.sync=group`);
4. hand all results to the event loop in one call.

So the loop neither checks batches nor waits for a disk, and the busier it is, the more batches share a sync.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Final

from lastword import batch, metrics
from lastword.broker.errors import ErrorCode, code_of
from lastword.broker.partitions import TopicView
from lastword.clock import Clock
from lastword.errors import InvalidRecordError, LastwordError
from lastword.log.topic import Topic
from lastword.wal.writer import PartitionWriter, Produced

logger = logging.getLogger(__name__)

THREADS: Final = 2
GROUP_BYTES: Final = 8 << 20
"""A group larger than this is written before more batches are taken, so that its answers don't wait too long."""


@dataclass(slots=True, eq=False)
class Append:
    """A batch for one partition, and its result."""

    topic: Topic
    partition: int
    data: memoryview
    done: Callable[[], None]
    """Called on the loop."""
    view: TopicView | None = None
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None
    base_offset: int = -1
    append_time_ms: int = -1
    record_errors: tuple[tuple[int, str], ...] = ()
    """The records that caused the batch to be refused, and the problem with each."""


class Appends:
    """The threads that append."""

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._threads = [_AppendThread(clock, loop, number) for number in range(THREADS)]

    def put(self, append: Append) -> None:
        """Queue a batch. Its `done` is called when it can be answered."""
        self._threads[(append.topic.id.int + append.partition) % THREADS].put(append)

    def close(self) -> None:
        """Process every queued batch, then stop the threads."""
        for thread in self._threads:
            thread.close()


class _AppendThread:
    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop, number: int) -> None:
        self._clock = clock
        self._loop = loop
        self._queue: SimpleQueue[list[Append] | None] = SimpleQueue()
        self._pending: list[Append] = []
        self._thread = threading.Thread(target=self._run, name=f"lastword-append-{number}", daemon=True)
        self._thread.start()

    def put(self, append: Append) -> None:
        # Handed over once per loop iteration, so that the thread is not woken for each batch.
        if not self._pending:
            self._loop.call_soon(self._hand_over)
        self._pending.append(append)

    def _hand_over(self) -> None:
        pending, self._pending = self._pending, []
        self._queue.put(pending)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            taken, is_last = self._take()
            if taken:
                self._append(taken)
                self._loop.call_soon_threadsafe(_deliver, taken)
            if is_last:
                return

    def _take(self) -> tuple[list[Append], bool]:
        appends = self._queue.get()
        taken: list[Append] = []
        size_bytes = 0
        while appends is not None:
            taken += appends
            size_bytes += sum(len(append.data) for append in appends)
            if size_bytes >= GROUP_BYTES:
                return taken, False
            try:
                appends = self._queue.get_nowait()
            except Empty:
                return taken, False
        return taken, True

    def _append(self, appends: Sequence[Append]) -> None:
        now_ms = self._clock.now_ms()
        limits: dict[Topic, batch.Limits] = {}
        by_writer: dict[PartitionWriter, tuple[list[Append], list[Produced]]] = {}
        for append in appends:
            try:
                writer, produced = _checked(append, limits, now_ms)
            except LastwordError as error:
                _fail(append, error)
            except Exception as error:
                # One faulty batch must not stop the thread.
                logger.exception("a batch for %s-%d failed", append.topic.name, append.partition)
                _fail(append, error)
            else:
                own = by_writer.get(writer)
                if own is None:
                    own = by_writer[writer] = ([], [])
                own[0].append(append)
                own[1].append(produced)
        ends = {writer: self._write(writer, *own) for writer, own in by_writer.items()}
        for writer, end_offset in ends.items():
            try:
                writer.wait_durable(end_offset)
                by_writer[writer][0][0].topic.check_owned()
            except LastwordError as error:
                for append in by_writer[writer][0]:
                    _fail(append, error)
            except Exception as error:
                logger.exception("can't sync batches in %s", writer.folder)
                for append in by_writer[writer][0]:
                    _fail(append, error)

    def _write(self, writer: PartitionWriter, appends: Sequence[Append], produced: Sequence[Produced]) -> int:
        """Write the batches of a partition. Return the offset up to which the WAL must become durable."""
        try:
            results = writer.stage_produced(produced)
        except LastwordError as error:
            for append in appends:
                _fail(append, error)
            return 0
        except Exception as error:
            # For example, a file can't be opened or read. No state was kept that is not in the WAL.
            logger.exception("can't write batches in %s", writer.folder)
            for append in appends:
                _fail(append, error)
            return 0
        end_offset = records = size_bytes = 0
        for append, each, result in zip(appends, produced, results, strict=True):
            if isinstance(result, Exception):
                _fail(append, result)
                continue
            append.base_offset = result.base_offset
            if each.append_time_ms is not None:
                append.append_time_ms = result.timestamp_ms
            end_offset = max(end_offset, result.end_offset)
            if not result.is_duplicate:
                records += each.header.record_count
                size_bytes += each.header.size_bytes
        topic = appends[0].topic.name
        metrics.RECORDS_APPENDED.labels(topic).inc(records)
        metrics.BYTES_APPENDED.labels(topic).inc(size_bytes)
        return end_offset


def _checked(
    append: Append, limits: dict[Topic, batch.Limits], now_ms: int
) -> tuple[PartitionWriter, Produced]:
    topic = append.topic
    own = limits.get(topic)
    if own is None:
        own = limits[topic] = topic.limits(now_ms, max_timestamp_corrected=True)
    header = batch.validate(append.data, own)
    if own.log_append_time:
        produced = Produced(header, append.data, now_ms, None)
    else:
        corrected_ms = batch.corrected_max_timestamp(append.data, header)
        produced = Produced(header, append.data, None, corrected_ms)
    return topic.writer(append.partition), produced


def _fail(append: Append, error: Exception) -> None:
    append.code = code_of(error)
    append.message = str(error) if isinstance(error, LastwordError) else None
    append.base_offset = append.append_time_ms = -1
    append.record_errors = error.records if isinstance(error, InvalidRecordError) else ()


def _deliver(appends: Sequence[Append]) -> None:
    for append in appends:
        try:
            append.done()
        except Exception:
            # One answer that can't be encoded must not delay the others.
            logger.exception("can't answer a produce to %s-%d", append.topic.name, append.partition)
