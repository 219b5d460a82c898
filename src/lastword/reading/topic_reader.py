"""Readers of a topic: several partitions as one sequence, and named readers that remember their positions.

A named reader's positions are one small file, replaced as a whole at each commit:
`readers/<topic id>/<name>.json`. The path has the topic's id, so that a topic that was deleted and recreated
does not inherit them. Consumer groups of Kafka's clients keep their offsets elsewhere. Compaction needs their
positions and when they were last seen, which are in `readers/<topic id>/groups/`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Self
from urllib.parse import quote

import pyarrow as pa

from lastword.clock import Clock
from lastword.compaction.holds import ReaderPosition
from lastword.errors import ClosedError, InvalidError, UnknownPartitionError
from lastword.folder import disk, state_file
from lastword.folder.paths import GROUPS_FOLDER, READERS_FOLDER
from lastword.reading.reader import PartitionReader
from lastword.record import Record
from lastword.segments.rows import to_records

# A file name has at most 255 bytes, and the longest one here is the reader's name with '.json.tmp'.
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,240}")
_SHORTEST_WAIT_MS = 2
_LONGEST_WAIT_MS = 50
_NOTE_EVERY_MS = 60_000


class CommittedPositions:
    """The positions of a named reader: the offset that it reads next in each partition."""

    def __init__(self, data_folder: Path, topic_id: str, name: str) -> None:
        if not _LEGAL_NAME.fullmatch(name) or name in (".", ".."):
            raise InvalidError(
                f"{name!r} is not a name for a reader: 1 to 240 of the characters a-z, A-Z, 0-9, '.', '_' and '-'."
            )
        self.name = name
        self._path = data_folder / READERS_FOLDER / topic_id / f"{name}.json"

    def load(self) -> dict[int, int]:
        found = state_file.load(
            self._path,
            lambda saved: {int(partition): int(offset) for partition, offset in saved["positions"].items()},
            f"Remove it to let the reader {self.name!r} begin again.",
        )
        return found or {}

    def save(self, positions: Mapping[int, int], now_ms: int) -> None:
        disk.make_folder(self._path.parent)
        content = {
            "version": 1,
            "positions": {str(partition): offset for partition, offset in sorted(positions.items())},
            "committed_ms": now_ms,
        }
        state_file.save(self._path, content)
        self.touch(now_ms)

    def touch(self, now_ms: int) -> None:
        """Note that the reader is active, if it has committed positions."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._path, ns=(now_ms * 1_000_000, now_ms * 1_000_000))

    def active_ms(self) -> int:
        """Return when the reader last committed or polled."""
        return self._path.stat().st_mtime_ns // 1_000_000


def reader_names(data_folder: Path, topic_id: str) -> list[str]:
    """Return the named readers that have committed positions on a topic."""
    folder = data_folder / READERS_FOLDER / topic_id
    return sorted(path.stem for path in folder.glob("*.json")) if folder.exists() else []


def committed_positions(data_folder: Path, topic_id: str) -> list[ReaderPosition]:
    """Return the positions of every named reader and group, for jobs that must keep records that they have not read."""
    found: list[ReaderPosition] = []
    for name in reader_names(data_folder, topic_id):
        committed = CommittedPositions(data_folder, topic_id, name)
        active_ms = committed.active_ms()
        found += [
            ReaderPosition(reader=name, partition=partition, position=position, active_ms=active_ms)
            for partition, position in committed.load().items()
        ]
    return found + group_positions(data_folder, topic_id)


def group_positions(data_folder: Path, topic_id: str) -> list[ReaderPosition]:
    """Return the positions of a topic's groups."""
    folder = data_folder / READERS_FOLDER / topic_id / GROUPS_FOLDER
    paths = sorted(folder.glob("*.json")) if folder.exists() else []
    return [position for path in paths for position in _positions_in(path)]


def save_group_positions(
    data_folder: Path, topic_id: str, group_id: str, positions: Mapping[int, tuple[int, int]]
) -> None:
    """Save a group's position in each partition of a topic, and when it was last seen. Without positions, forget it."""
    folder = data_folder / READERS_FOLDER / topic_id / GROUPS_FOLDER
    path = folder / f"{_file_name(group_id)}.json"
    if not positions:
        path.unlink(missing_ok=True)
        return
    content = {
        "version": 1,
        "group": group_id,
        "positions": {str(partition): each for partition, each in sorted(positions.items())},
    }
    disk.make_folder(folder)
    state_file.save(path, content)


def _positions_in(path: Path) -> list[ReaderPosition]:
    found = state_file.load(
        path,
        lambda saved: [
            ReaderPosition(
                reader=saved["group"], partition=int(partition), position=position, active_ms=active_ms
            )
            for partition, (position, active_ms) in saved["positions"].items()
        ],
        "Remove it: the broker writes it again at its next start.",
    )
    return found or []


def _file_name(group_id: str) -> str:
    """Return a file name for a group's id, which may be any text: escaped, or hashed if that is too long."""
    escaped = quote(group_id, safe="")
    # No escaped name has a '+', and none may be '.' or '..'.
    return f"+{escaped}" if len(escaped) <= 200 else f"++{sha256(group_id.encode()).hexdigest()}"


class Reader:
    """Reads partitions from their positions on. Not safe for use by several threads.

    Within a partition records come in offset order. Across partitions there is no order.
    """

    def __init__(
        self,
        partitions: Mapping[int, PartitionReader],
        positions: Mapping[int, int],
        clock: Clock,
        committed: CommittedPositions | None = None,
    ) -> None:
        self._partitions = dict(partitions)
        self._positions = dict(positions)
        self._clock = clock
        self._committed = committed
        self._noted_ms = 0
        self._streams: dict[int, Iterator[pa.RecordBatch]] = {}
        self._turn = sorted(self._partitions)
        self._left: pa.RecordBatch | None = None
        self._closed = False

    @property
    def positions(self) -> dict[int, int]:
        """The offset of each partition that `poll` returns next."""
        return dict(self._positions)

    def poll_arrow(self, *, max_records: int | None = None, timeout_s: float = 0.0) -> pa.RecordBatch | None:
        """Return the next records of one partition, in record.RECORD_SCHEMA; None if none arrive in time."""
        self._note_activity()
        left_ms = timeout_s * 1000
        deadline_ms = self._clock.now_ms() + left_ms
        wait_ms = _SHORTEST_WAIT_MS
        while True:
            if (records := self._next_records()) is not None:
                return self._take(records, max_records)
            # Not longer than what was left before: the clock may have been put back.
            left_ms = min(left_ms, deadline_ms - self._clock.now_ms())
            if left_ms <= 0:
                return None
            slept_ms = min(wait_ms, left_ms)
            self._clock.sleep_ms(slept_ms)
            left_ms -= slept_ms
            wait_ms = min(wait_ms * 2, _LONGEST_WAIT_MS)

    def poll(self, *, max_records: int = 500, timeout_s: float = 0.0) -> list[Record]:
        """Return the next records; an empty list if none arrive in time."""
        records = self.poll_arrow(max_records=max_records, timeout_s=timeout_s)
        return [] if records is None else list(to_records(records))

    def seek(self, partition: int, offset: int) -> None:
        """Continue at another offset of a partition."""
        if partition not in self._partitions:
            raise UnknownPartitionError(
                f"This reader does not read partition {partition}; it reads {sorted(self._partitions)}."
            )
        self._partitions[partition].check(offset)
        self._positions[partition] = offset
        self._streams.pop(partition, None)
        if self._left is not None and self._left.column("partition")[0].as_py() == partition:
            self._left = None

    def commit(self) -> None:
        """Save the positions, so that the next reader of this name begins there."""
        if self._committed is None:
            raise InvalidError("Only a named reader can commit; get one with topic.reader(name).")
        self._committed.save(self._positions, self._clock.now_ms())

    def close(self) -> None:
        self._closed = True
        self._streams.clear()
        for partition in self._partitions.values():
            partition.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _note_activity(self) -> None:
        now_ms = self._clock.now_ms()
        if self._committed is not None and now_ms - self._noted_ms >= _NOTE_EVERY_MS:
            self._committed.touch(now_ms)
            self._noted_ms = now_ms

    def _next_records(self) -> pa.RecordBatch | None:
        if self._closed:
            raise ClosedError("The reader has been closed.")
        if self._left is not None:
            return self._left
        # A stream ends at the log end of when it began. So streams that had begun earlier get a second look,
        # after the others have had their turn.
        for partition in [*self._turn, *(each for each in self._turn if each in self._streams)]:
            records = next(self._stream(partition), None)
            if records is not None:
                return records
            self._streams.pop(partition, None)
            self._turn.remove(partition)
            self._turn.append(partition)
        return None

    def _stream(self, partition: int) -> Iterator[pa.RecordBatch]:
        stream = self._streams.get(partition)
        if stream is None:
            reader = self._partitions[partition]
            stream = reader.replay(self._positions[partition], reader.extent().log_end)
            self._streams[partition] = stream
        return stream

    def _take(self, records: pa.RecordBatch, max_records: int | None) -> pa.RecordBatch:
        self._left = None
        if max_records is not None and records.num_rows > max_records:
            self._left = records.slice(max_records)
            records = records.slice(0, max_records)
        partition = records.column("partition")[0].as_py()
        self._positions[partition] = records.column("offset")[-1].as_py() + 1
        return records
