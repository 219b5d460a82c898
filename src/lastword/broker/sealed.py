"""Sealed segments for fetches: encoded as record batches on threads, read ahead, and cached.

A *chunk* is some megabytes of batches for consecutive offsets. Chunks are made by *streams*. A stream reads a
partition's segments from some offset on, and continues if the next requested offset is its own position. When a
chunk is served, the following ones are made ahead, so that a replaying consumer does not wait for each one.

Chunks and streams are dropped as soon as a commit is seen that may have removed records from under them.
Batches are not compressed: every consumer can read them, and neither side spends time on it. Where the network is the
limit, snappy or lz4 would halve the bytes.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

import pyarrow as pa

from lastword import batch
from lastword.batch.header import only_header
from lastword.log.topic import Topic
from lastword.segments.model import Snapshot, resume_if_moved

if TYPE_CHECKING:
    from lastword.segments.table import SegmentTable

logger = logging.getLogger(__name__)

CHUNK_BYTES: Final = 4 << 20
READ_AHEAD_BYTES: Final = 16 << 20
STREAMS: Final = 64
BATCH_BYTES: Final = 512 << 10
THREADS: Final = 2

Partition = tuple[UUID, int]


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Batches for the offsets from `first_offset` up to `next_offset` (exclusive), and the end offset of each batch."""

    first_offset: int
    next_offset: int
    batches: tuple[bytes, ...]
    ends: tuple[int, ...]
    size_bytes: int

    def read(self, offset: int, max_bytes: int, *, at_least_one: bool) -> tuple[list[bytes], int]:
        """Return the batches that end after an offset, as far as they fit, and the offset after them."""
        found: list[bytes] = []
        size_bytes = 0
        at = bisect_right(self.ends, offset)
        for each in self.batches[at:]:
            if size_bytes + len(each) > max_bytes and (found or not at_least_one):
                break
            found.append(each)
            size_bytes += len(each)
            at += 1
        return found, self.ends[at - 1] if at else self.first_offset


Stream = Generator[Chunk, None, None]


class SealedData:
    """The chunks and streams of all partitions. Used on the event loop; threads do the work."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._used_bytes = 0
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="lastword-sealed")
        # The chunks of each partition with their sorted offsets, and all chunks in the order of their last use.
        self._chunks: dict[Partition, dict[int, Chunk]] = {}
        self._starts: dict[Partition, list[int]] = {}
        self._used: OrderedDict[tuple[Partition, int], Chunk] = OrderedDict()
        self._streams: OrderedDict[tuple[Partition, int], Stream] = OrderedDict()
        self._loading: dict[tuple[Partition, int], asyncio.Future[Chunk | None]] = {}
        self._snapshots: dict[UUID, int | None] = {}
        self._changes: dict[UUID, int] = {}

    def update(self, topic: Topic, snapshot: Snapshot) -> None:
        """Note a topic's snapshot: data of an older one may have been compacted, erased or deleted."""
        known = self._snapshots.get(topic.id, -1)
        if known != snapshot.id:
            self._snapshots[topic.id] = snapshot.id
            # Sealing only adds.
            if known != -1 and not (snapshot.operation == "seal" and snapshot.parent_id == known):
                self.forget(topic.id)

    def forget(self, topic_id: UUID) -> None:
        """Drop all chunks and streams of a topic."""
        self._changes[topic_id] = self._changes.get(topic_id, 0) + 1
        for key in [each for each in self._used if each[0][0] == topic_id]:
            self._drop(key)
        for key in [each for each in self._streams if each[0][0] == topic_id]:
            self._streams.pop(key).close()

    def find(self, topic: Topic, partition: int, offset: int) -> Chunk | None:
        """Return the chunk that contains an offset, if it has been made."""
        key = (topic.id, partition)
        starts = self._starts.get(key)
        if not starts:
            return None
        at = bisect_right(starts, offset) - 1
        if at < 0:
            return None
        chunk = self._chunks[key][starts[at]]
        if offset >= chunk.next_offset:
            return None
        self._used.move_to_end((key, chunk.first_offset))
        return chunk

    def load(self, topic: Topic, partition: int, offset: int) -> asyncio.Future[Chunk | None]:
        """Load the chunk that begins at an offset; None if the table ends there. Errors are those of the read."""
        key = ((topic.id, partition), offset)
        loading = self._loading.get(key)
        if loading is None:
            stream = self._streams.pop(key, None)
            loop = asyncio.get_running_loop()
            work = loop.run_in_executor(self._threads, self._next, topic, partition, offset, stream)
            # As of now: a commit seen before the next loop iteration may have removed records from under the stream.
            changes = self._changes.get(topic.id, 0)
            loading = asyncio.ensure_future(self._loaded(topic, partition, offset, work, changes))
            self._loading[key] = loading
            loading.add_done_callback(lambda done: self._done(key, done))
        return loading

    def served(self, topic: Topic, partition: int, chunk: Chunk) -> None:
        """Read ahead after a consumer got data of a chunk, so that the next chunks are there before it asks."""
        self._read_ahead(topic, partition, chunk.next_offset, 0)

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        for stream in self._streams.values():
            stream.close()

    def _read_ahead(self, topic: Topic, partition: int, offset: int, ahead_bytes: int) -> None:
        while ahead_bytes < min(READ_AHEAD_BYTES, self._limit_bytes // 4):
            chunk = self.find(topic, partition, offset)
            if chunk is None:
                key = ((topic.id, partition), offset)
                # Only where a stream already stands: the end of the sealed data needs no second look.
                if key in self._streams and key not in self._loading:
                    self.load(topic, partition, offset)
                return
            ahead_bytes += chunk.size_bytes
            offset = chunk.next_offset

    async def _loaded(
        self,
        topic: Topic,
        partition: int,
        offset: int,
        work: asyncio.Future[tuple[Chunk, Stream] | None],
        changes: int,
    ) -> Chunk | None:
        made = await work
        if made is None:
            return None
        chunk, stream = made
        key = (topic.id, partition)
        if self._changes.get(topic.id, 0) != changes:
            stream.close()
            self._loading.pop((key, offset), None)
            return await self.load(topic, partition, offset)
        self._keep(key, chunk)
        self._streams[key, chunk.next_offset] = stream
        while len(self._streams) > STREAMS:
            self._streams.popitem(last=False)[1].close()
        return chunk

    def _done(self, key: tuple[Partition, int], done: asyncio.Future[Chunk | None]) -> None:
        self._loading.pop(key, None)
        # A chunk that was read ahead may have no waiter.
        if not done.cancelled() and (error := done.exception()) is not None:
            logger.debug("reading ahead: %s", error)

    def _keep(self, key: Partition, chunk: Chunk) -> None:
        if chunk.first_offset in self._chunks.get(key, {}):
            self._drop((key, chunk.first_offset))
        own = self._chunks.setdefault(key, {})
        own[chunk.first_offset] = chunk
        self._starts[key] = sorted(own)
        self._used[key, chunk.first_offset] = chunk
        self._used_bytes += chunk.size_bytes
        while self._used_bytes > self._limit_bytes and len(self._used) > 1:
            self._drop(next(iter(self._used)))

    def _drop(self, key: tuple[Partition, int]) -> None:
        chunk = self._used.pop(key)
        self._used_bytes -= chunk.size_bytes
        own = self._chunks[key[0]]
        del own[chunk.first_offset]
        if own:
            self._starts[key[0]] = sorted(own)
        else:
            del self._chunks[key[0]], self._starts[key[0]]

    def _next(
        self, topic: Topic, partition: int, offset: int, stream: Stream | None
    ) -> tuple[Chunk, Stream] | None:
        """Return the chunk at an offset, and the stream that continues after it. Runs on a thread."""
        stream = stream or read_sealed(topic.table, partition, offset)
        chunk = next(stream, None)
        return None if chunk is None else (chunk, stream)


def read_sealed(table: SegmentTable, partition: int, offset: int) -> Stream:
    """Yield the sealed records of a partition from an offset on, in chunks without gaps between them."""

    def rest() -> Stream:
        nonlocal offset
        snapshot = table.snapshot()
        at = snapshot.positions[partition]
        epoch_of = _Epochs(at.epochs)
        for segment in table.plan(snapshot, partition, offset):
            for records in table.read(segment, None, offset):
                for rows in _slices(records):
                    chunk = _encode(rows, offset, epoch_of)
                    offset = chunk.next_offset
                    yield chunk
        # Where compaction removed the last records, empty batches lead a consumer to the next offset.
        if offset < at.sealed_end:
            yield _chunk(offset, batch.empty_batches(offset, at.sealed_end, epoch_of))

    return resume_if_moved(rest, f"Partition {partition}")


def _slices(records: pa.RecordBatch) -> list[pa.RecordBatch]:
    rows = records.num_rows
    if rows == 0:
        return []
    parts = max(1, -(-int(records.nbytes) // CHUNK_BYTES))
    step = max(1, -(-rows // parts))
    return [records.slice(first, step) for first in range(0, rows, step)]


def _encode(rows: pa.RecordBatch, offset: int, epoch_of: Callable[[int], int]) -> Chunk:
    # The last record's epoch, if there are several: a consumer that is past a batch asks where the batch's epoch
    # ends, and assumes that the log was truncated if that is before its position.
    last_offset = rows.column("offset")[-1].as_py()
    return _chunk(
        offset, batch.encode_arrow(rows, leader_epoch=epoch_of(last_offset), batch_bytes=BATCH_BYTES)
    )


def _chunk(first_offset: int, batches: list[bytes]) -> Chunk:
    ends = tuple(only_header(each).next_offset for each in batches)
    return Chunk(first_offset, ends[-1], tuple(batches), ends, sum(map(len, batches)))


class _Epochs:
    """The leader epoch of an offset."""

    def __init__(self, epochs: tuple[tuple[int, int], ...]) -> None:
        self._epochs = epochs

    def __call__(self, offset: int) -> int:
        at = bisect_right(self._epochs, offset, key=lambda each: each[1]) - 1
        return self._epochs[max(at, 0)][0] if self._epochs else 0
