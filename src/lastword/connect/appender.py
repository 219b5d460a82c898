"""Makes a source's records and its position part of the log together.

Beside the staged units of lastword.staged, which the log's writer appends exactly once, there is one file a source,
`connect/<source>/unit.json`: the number of its last unit, the position after it, and the topics that it has records
for. A unit of a source, by its steps:

1. what is left of a unit that was never journaled is withdrawn;
2. the records of each topic are staged and proposed under the unit's number;
3. unit.json is replaced. From now on this unit happens, and nothing else can happen in its place;
4. each topic's writer appends its part.

Killed before 3: the source is read again from the position before; nothing of the unit is in the log. Killed after 3:
`recover`, called before anything is read, has every part appended that has not been; the position is the one after the
unit. The writer knows which parts it has (committed.json), so nothing is appended twice.

A topic that was deleted meanwhile, or deleted and created again, takes its part with it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from lastword import batch, disk
from lastword.connect.protocol import Chunk, Position, SourceRecord
from lastword.connect.target import Target
from lastword.errors import CorruptError, InvalidError, InvalidRecordError, UnknownTopicError
from lastword.partitioner import Turns, partitions_of
from lastword.record import HEADERS_TYPE, PAYLOAD_SCHEMA, TimestampType
from lastword.staged import Piece, Sink, Unit
from lastword.steps import reached
from lastword.topic import BATCH_BYTES, Topic

JOURNAL: Final = "unit.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournaledUnit:
    """The last unit of a source: all of it is in the log, or will be before the next one."""

    number: int = 0
    position: Position | None = None
    topics: dict[str, str]
    connector: str = ""
    records: int = 0
    """That the source has appended in its life."""


class Appender:
    """Appends the chunks of one source. One at a time; whoever has it holds the source's lock."""

    def __init__(self, target: Target, folder: Path, *, source: str, connector: str) -> None:
        self._target = target
        self._folder = folder
        self._sink = f"connect-{source}"
        self._source = source
        self._connector = connector
        self._turns = Turns()
        self._last = self._load()
        if self._last.connector not in ("", connector):
            raise InvalidError(
                f"The source {source!r} was read by the connector {self._last.connector!r} before, whose position "
                f"{connector!r} can't understand. Give it another name, or forget its position with "
                f"`lastword connect reset {source}`."
            )

    @property
    def records(self) -> int:
        return self._last.records

    def recover(self) -> Position | None:
        """Finish the last unit if it must be; the position to read from, None at the very start."""
        self._finish(self._last)
        return self._last.position

    def append(self, chunk: Chunk) -> int:
        """Append a chunk; the bytes of its keys and values."""
        by_topic: dict[str, list[SourceRecord]] = {}
        for record in chunk.records:
            by_topic.setdefault(record[0], []).append(record)
        topics = {name: self._target.topic(name) for name in by_topic}
        sinks = {name: Sink(self._target.path, topic.id, self._sink) for name, topic in topics.items()}
        number = 1 + max([self._last.number, *(sink.committed or 0 for sink in sinks.values())])
        size_bytes = 0
        for name, records in by_topic.items():
            size_bytes += self._stage(topics[name], sinks[name], number, records)
        unit = JournaledUnit(
            number=number,
            position=chunk.position,
            topics={name: topic.id.hex for name, topic in topics.items()},
            connector=self._connector,
            records=self._last.records + len(chunk.records),
        )
        self._save(unit)
        reached("connect.journaled")
        self._last = unit
        self._finish(unit)
        return size_bytes

    def moved(self, position: Position) -> None:
        """Keep a position that comes without records."""
        self._last = JournaledUnit(
            number=self._last.number,
            position=position,
            topics=self._last.topics,
            connector=self._connector,
            records=self._last.records,
        )
        self._save(self._last)

    def _stage(self, topic: Topic, sink: Sink, number: int, records: Sequence[SourceRecord]) -> int:
        disk.make_folder(sink.folder)
        if sink.unit is not None:
            # It was never journaled, or `recover` would have had it appended.
            sink.withdraw()
        limits = topic.limits(self._target.clock.now_ms())
        payload = _payload(records, limits.now_ms)
        targets = self._partitions(topic, payload, records)
        batch_bytes = min(BATCH_BYTES, topic.settings.max_message_bytes)
        name = f"unit-{number}.batches"
        pieces: dict[int, list[Piece]] = {}
        at = 0
        fd = os.open(sink.folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            used = np.unique(targets).tolist()
            for partition in used:
                own = payload if len(used) == 1 else payload.filter(pa.array(targets == partition))
                offsets = pa.array(np.arange(own.num_rows), pa.int64())
                encoded = batch.encode_arrow(
                    own.set_column(0, PAYLOAD_SCHEMA.field(0), offsets), batch_bytes=batch_bytes
                )
                _check(encoded, limits, topic.name)
                disk.write_pieces(fd, encoded)
                size_bytes = sum(map(len, encoded))
                pieces[partition] = [Piece(name, at, size_bytes)]
                at += size_bytes
            disk.sync_data(fd)
        finally:
            os.close(fd)
        disk.sync_folder(sink.folder)
        reached("connect.staged")
        # Checked here, before the journal: what is in there can't be refused any more, however late it is appended.
        sink.propose(Unit(number=number, pieces=pieces, checked=True))
        return at

    def _partitions(
        self, topic: Topic, payload: pa.RecordBatch, records: Sequence[SourceRecord]
    ) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        if topic.partitions == 1:
            return np.zeros(len(records), np.int32)
        chosen = partitions_of(payload.column("key"), topic.partitions, self._turns)
        for index, record in enumerate(records):
            if record.partition is not None:
                chosen[index] = record.partition
        return chosen

    def _finish(self, unit: JournaledUnit) -> None:
        for name, topic_id in unit.topics.items():
            try:
                if self._target.topic(name).id != UUID(topic_id):
                    continue
            except UnknownTopicError:
                continue
            self._target.append_staged(name, self._sink, unit.number)
            reached("connect.appended")

    def _load(self) -> JournaledUnit:
        path = self._folder / JOURNAL
        try:
            saved: dict[str, Any] = json.loads(path.read_bytes())
            return JournaledUnit(**saved)
        except FileNotFoundError:
            return JournaledUnit(topics={})
        except (ValueError, TypeError) as error:
            raise CorruptError(
                f"{path} is not what was written there: {error}. It has the position of the source {self._source!r}.",
                path=str(path),
            ) from error

    def _save(self, unit: JournaledUnit) -> None:
        saved = {
            "number": unit.number,
            "position": unit.position,
            "topics": unit.topics,
            "connector": unit.connector,
            "records": unit.records,
        }
        disk.replace_file(self._folder / JOURNAL, json.dumps(saved).encode())


def forget_position(folder: Path) -> bool:
    """Let a source begin again. Units keep their numbers, because topics remember them. False if it never began."""
    path = folder / JOURNAL
    try:
        saved = json.loads(path.read_bytes())
    except FileNotFoundError:
        return False
    except ValueError:
        path.unlink()
        return True
    disk.replace_file(path, json.dumps({"number": saved["number"], "topics": saved["topics"]}).encode())
    return True


def _check(batches: Sequence[bytes], limits: batch.Limits, topic: str) -> None:
    try:
        for each in batches:
            batch.validate(each, limits)
    except InvalidRecordError as error:
        raise type(error)(f"topic {topic!r} does not take a record of the source: {error}") from error


def _payload(records: Sequence[SourceRecord], now_ms: int) -> pa.RecordBatch:
    """Records in record.PAYLOAD_SCHEMA, without their offsets."""
    rows = len(records)
    _, keys, values, times, headers, _ = zip(*records, strict=True)
    if any(headers):
        listed = [[{"key": k, "value": v} for k, v in each] if each else None for each in headers]
        headers_column = pa.array(listed, HEADERS_TYPE)
    else:
        headers_column = pa.nulls(rows, HEADERS_TYPE)
    stamps = np.fromiter((now_ms if each is None else each for each in times), np.int64, rows) * 1000
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.zeros(rows, np.int64)),
            pa.array(stamps, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            pa.array(np.full(rows, int(TimestampType.CREATE), np.int32)),
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            headers_column,
        ],
        schema=PAYLOAD_SCHEMA,
    )
