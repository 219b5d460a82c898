"""Appends a source's records together with its position.

The log's writer appends the staged units of lastword.wal.staged exactly once. Besides them each source has one file,
`connect/<source>/unit.json`: the number of its last unit, the position after it, and the topics that the unit has
records for. The steps of a unit:

1. withdraw the rest of a unit that was never journaled;
2. stage the records of each topic, and propose them under the unit's number;
3. replace unit.json. From now on this unit takes effect, and no other can take its place;
4. have each topic's writer append its part.

Killed before 3: the source is read again from the position before; nothing of the unit is in the log. Killed after 3:
`recover`, called before anything is read, has every missing part appended; the position is the one after the unit. The
writer knows which parts it has (committed.json), so nothing is appended twice.

A topic that was deleted meanwhile, or deleted and recreated, takes its part with it. The journal has the id of each topic
that the source has appended to since it began: if a topic has another id by now, `topic` refuses it, because it would
have later records only.

Records with offsets keep them. Their batches begin at the log end of the partition, and span the offsets between that
and the records: the WAL allows gaps only inside batches, so a wrong offset can't pass for one. The expected log end of
each partition is part of the unit. If another client appends to the partition, the writer refuses the unit, and the
source stops.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from lastword import batch
from lastword.batch.partitioner import RoundRobin, partitions_of
from lastword.connect.destination import Destination
from lastword.connect.protocol import Chunk, Position, SourceRecord
from lastword.errors import (
    InvalidError,
    InvalidRecordError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from lastword.folder import disk, state_file
from lastword.folder.paths import JOURNAL_FILE
from lastword.folder.steps import reached
from lastword.log.encoding import BATCH_BYTES
from lastword.log.topic import Topic
from lastword.maintenance.backup.belongings import SINK_OF_SOURCE, appending
from lastword.record import HEADERS_TYPE, PAYLOAD_SCHEMA, TimestampType
from lastword.wal.staged import Piece, Sink, Unit

"""The number of offsets that one batch can span."""
_WAY_OUT: Final = (
    "Mirror into an empty topic that has no other writer; or, after `lastword connect reset`, give the records new "
    "offsets (`offsets: new`)."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JournaledUnit:
    """The last unit of a source: all of it is in the log, or will be before the next one."""

    number: int = 0
    position: Position | None = None
    topics: dict[str, str]
    connector: str = ""
    records: int = 0
    """The number of records that the source has appended in its life."""
    ends: dict[str, dict[str, int]] = field(default_factory=dict)
    """By topic id and partition, the log ends where records keep their offsets. Keys in JSON are strings."""
    known: dict[str, str] = field(default_factory=dict)
    """The ids, by name, of all topics that have records of the source since it began."""
    reset: bool = False
    """Whether the position was forgotten, and there is no new one yet."""
    restored: str = ""
    """The backup that the position comes from, until the source has advanced from it."""


class Appender:
    """Appends the chunks of one source, one at a time. Its owner holds the source's lock."""

    def __init__(self, destination: Destination, folder: Path, *, source: str, connector: str) -> None:
        self._destination = destination
        self._folder = folder
        self._sink = f"{SINK_OF_SOURCE}{source}"
        self._source = source
        self._connector = connector
        self._turns = RoundRobin()
        self._checked: set[tuple[UUID, int]] = set()
        self._last = self._load()
        if self._last.connector not in ("", connector):
            raise InvalidError(
                f"The source {source!r} was read by the connector {self._last.connector!r} before, and {connector!r} "
                f"can't understand its position. Give it another name, or forget its position with "
                f"`lastword connect reset {source}`."
            )

    @property
    def records(self) -> int:
        return self._last.records

    @property
    def was_reset(self) -> bool:
        """Whether the source starts over: its topics may have records from before the reset."""
        return self._last.reset

    def topic(self, name: str) -> Topic:
        """Return a topic by name. Raise InvalidError if it is no longer the one that the source has appended to."""
        known = self._last.known.get(name)
        try:
            found = self._destination.topic(name)
        except UnknownTopicError:
            if known is None:
                raise
            found = None
        if known is None or (found is not None and found.id == UUID(known)):
            assert found is not None
            return found
        what = "was deleted" if found is None else "was deleted and recreated"
        raise InvalidError(
            f"The topic {name!r} {what} since the source {self._source!r} appended to it: its earlier records are gone, "
            f"and only later ones would follow. `lastword connect pause {self._source}`, `reset {self._source}` and "
            f"`resume {self._source}` read everything again."
        )

    @property
    def restored(self) -> str | None:
        """The backup that the position comes from, if the source has not advanced since."""
        return self._last.restored or None

    def recover(self) -> Position | None:
        """Finish the last unit if necessary; return the position to read from, None at the very start."""
        with appending(self._folder):
            self._finish(self._last)
        return self._last.position

    def append(self, chunk: Chunk) -> int:
        """Append a chunk; return the bytes that were staged for it."""
        # A backup that is taking the log end waits for a whole append, and then keeps the next one waiting.
        with appending(self._folder):
            return self._append(chunk)

    def _append(self, chunk: Chunk) -> int:
        by_topic: dict[str, list[SourceRecord]] = {}
        for record in chunk.records:
            by_topic.setdefault(record[0], []).append(record)
        topics = {name: self.topic(name) for name in by_topic}
        sinks = {name: Sink(self._destination.path, topic.id, self._sink) for name, topic in topics.items()}
        number = 1 + max([self._last.number, *(sink.committed or 0 for sink in sinks.values())])
        size_bytes = 0
        ends = {topic_id: dict(own) for topic_id, own in self._last.ends.items()}
        for name, records in by_topic.items():
            own = ends.setdefault(topics[name].id.hex, {})
            size_bytes += self._stage(topics[name], sinks[name], number, records, own)
        ids = {name: topic.id.hex for name, topic in topics.items()}
        unit = JournaledUnit(
            number=number,
            position=chunk.position,
            topics=ids,
            known=self._last.known | ids,
            connector=self._connector,
            records=self._last.records + len(chunk.records),
            ends={topic_id: own for topic_id, own in ends.items() if own},
        )
        self._save(unit)
        reached("connect.journaled")
        self._last = unit
        self._finish(unit)
        return size_bytes

    def moved(self, position: Position) -> None:
        """Save a position that came without records."""
        self._last = replace(
            self._last, position=position, connector=self._connector, reset=False, restored=""
        )
        self._save(self._last)

    def _stage(
        self,
        topic: Topic,
        sink: Sink,
        number: int,
        records: Sequence[SourceRecord],
        ends: dict[str, int],
    ) -> int:
        """Stage the records of one topic and update `ends`; return the bytes staged."""
        disk.make_folder(sink.folder)
        if sink.unit is not None:
            # It was never journaled, or `recover` would have had it appended.
            sink.withdraw()
        keeps_offsets = records[0].offset is not None
        limits = replace(topic.limits(self._destination.clock.now_ms()), gaps_allowed=keeps_offsets)
        payload = _payload(records, limits.now_ms)
        targets = self._partitions(topic, payload, records)
        batch_bytes = min(BATCH_BYTES, topic.settings.max_message_bytes)
        name = f"unit-{number}.batches"
        pieces: dict[int, list[Piece]] = {}
        starts: dict[int, int] = {}
        at = 0
        fd = os.open(sink.folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            used = np.unique(targets).tolist()
            for partition in used:
                own = payload if len(used) == 1 else payload.filter(pa.array(targets == partition))
                if not keeps_offsets:
                    offsets = pa.array(np.arange(own.num_rows), pa.int64())
                    own = own.set_column(0, PAYLOAD_SCHEMA.field(0), offsets)
                encoded = batch.encode_arrow(own, batch_bytes=batch_bytes)
                _check(encoded, limits, topic.name)
                if keeps_offsets:
                    starts[partition] = self._start(topic, partition, ends, own.column(0)[0].as_py())
                    encoded = _spanning(encoded, starts[partition])
                    ends[str(partition)] = own.column(0)[-1].as_py() + 1
                disk.write_pieces(fd, encoded)
                size_bytes = sum(map(len, encoded))
                pieces[partition] = [Piece(name, at, size_bytes)]
                at += size_bytes
            disk.sync_data(fd)
        finally:
            os.close(fd)
        disk.sync_folder(sink.folder)
        reached("connect.staged")
        # Checked here, before it is journaled: after that the unit can't be refused, however late it is appended.
        sink.propose(Unit(number=number, pieces=pieces, checked=True, starts=starts))
        return at

    def _start(self, topic: Topic, partition: int, ends: dict[str, int], first: int) -> int:
        """Return the offset at which a partition must end for records from `first` on to keep their offsets."""
        start = ends.get(str(partition), 0)
        if (topic.id, partition) not in self._checked:
            # Checked once, for a clear error before anything is journaled; the writer checks it each time.
            with closing(topic.partition_reader(partition)) as reader:
                end = reader.extent().log_end
            if end != start:
                raise _taken(topic.name, partition, start, end)
            self._checked.add((topic.id, partition))
        if first < start:
            raise _taken(topic.name, partition, first, start)
        return start

    def _partitions(
        self, topic: Topic, payload: pa.RecordBatch, records: Sequence[SourceRecord]
    ) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        highest = max((each.partition for each in records if each.partition is not None), default=0)
        if highest >= topic.partitions:
            raise InvalidError(
                f"a record of the source is for partition {highest} of topic {topic.name!r}, which has "
                f"{topic.partitions}: add some with `lastword topic alter {topic.name} --partitions {highest + 1}`"
            )
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
                if self._destination.topic(name).id != UUID(topic_id):
                    continue
            except UnknownTopicError:
                continue
            try:
                self._destination.append_staged(name, self._sink, unit.number)
            except OffsetOutOfRangeError as error:
                if unit.connector:
                    raise InvalidError(f"topic {name!r}: {error}. {_WAY_OUT}") from error
                # The source was reset since: a unit that can't be appended at its offsets is given up.
                Sink(self._destination.path, UUID(topic_id), self._sink).withdraw()
            reached("connect.appended")

    def _load(self) -> JournaledUnit:
        found = state_file.load(
            self._folder / JOURNAL_FILE,
            lambda saved: JournaledUnit(**{"known": saved["topics"], **saved}),
            f"It has the position of the source {self._source!r}; `lastword connect reset {self._source}` lets it start over.",
        )
        return found or JournaledUnit(topics={})

    def _save(self, unit: JournaledUnit) -> None:
        state_file.save(self._folder / JOURNAL_FILE, asdict(unit))


def forget_position(folder: Path) -> bool:
    """Let a source start over; return False if it never began. Units keep their numbers, as topics remember them."""
    path = folder / JOURNAL_FILE
    if not path.exists():
        return False
    # If it is damaged: the next unit's number is also above those that its topics have seen.
    number, topics = state_file.load_if_whole(path, lambda saved: (saved["number"], saved["topics"])) or (
        0,
        {},
    )
    state_file.save(path, {"number": number, "topics": topics, "known": {}, "reset": True})
    return True


def _spanning(batches: Sequence[bytes], start: int) -> list[bytes]:
    """Return the batches, with empty ones inserted to span each gap between them, from `start` on."""
    spanning: list[bytes] = []
    for each in batches:
        header = batch.read_header(each)
        assert header is not None
        spanning += [*batch.empty_batches(start, header.base_offset, lambda _: 0), each]
        start = header.next_offset
    return spanning


def _taken(topic: str, partition: int, start: int, end: int) -> InvalidError:
    return InvalidError(
        f"topic {topic!r} partition {partition}: records can't keep their offsets: they continue at {start}, but the "
        f"log ends at {end}, so another client has appended to it. {_WAY_OUT}"
    )


def _check(batches: Sequence[bytes], limits: batch.Limits, topic: str) -> None:
    try:
        for each in batches:
            batch.validate(each, limits)
    except InvalidRecordError as error:
        raise type(error)(f"topic {topic!r} does not accept a record of the source: {error}") from error


def _payload(records: Sequence[SourceRecord], now_ms: int) -> pa.RecordBatch:
    """Return the records in record.PAYLOAD_SCHEMA, with the offsets that they keep, if any."""
    rows = len(records)
    _, keys, values, times, headers, _, offsets = zip(*records, strict=True)
    if any(headers):
        listed = [[{"key": k, "value": v} for k, v in each] if each else None for each in headers]
        headers_column = pa.array(listed, HEADERS_TYPE)
    else:
        headers_column = pa.nulls(rows, HEADERS_TYPE)
    stamps = np.fromiter((now_ms if each is None else each for each in times), np.int64, rows) * 1000
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.zeros(rows, np.int64) if offsets[0] is None else offsets, pa.int64()),
            pa.array(stamps, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
            pa.array(np.full(rows, int(TimestampType.CREATE), np.int32)),
            pa.array(keys, pa.binary()),
            pa.array(values, pa.binary()),
            headers_column,
        ],
        schema=PAYLOAD_SCHEMA,
    )
