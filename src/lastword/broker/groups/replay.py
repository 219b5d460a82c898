"""Reads groups and their offsets from the internal topic, even if a part of it can't be read.

1. The topic is read from its beginning, and the last record of each key counts. A damaged range of the WAL, an
   unreadable segment or an invalid record is noted, and reading continues after it.
2. A key whose last readable record comes before such a place may have had a later one there. For an offset there is
   a second source: the position that compaction uses (holds.py). The first commit of a partition, and each that
   moves back, is in its file before it is answered. The others follow, so the file is never ahead of the commits. Its
   position replaces the record. Without it, the older record counts.
3. A process that may write appends the known state again, after the damage. So it is also known at the next start,
   even if `lastword wal repair` has skipped the damage.

So no committed offset is lost and none is too high: consumers may read records again, but skip none. Members of a group
whose record is lost rejoin. An offset or a group whose deletion is lost reappears.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from lastword.broker.groups.holds import read_positions
from lastword.broker.groups.records import (
    CommittedOffset,
    OffsetKey,
    SavedGroup,
    group_record,
    offset_record,
    parse,
)
from lastword.errors import CorruptError
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.record import NewRecord, Record
from lastword.segments.rows import to_records
from lastword.wal.repair import DamagedRange

GROUPS_TOPIC = "__lastword_groups"

Key = str | OffsetKey
Value = SavedGroup | CommittedOffset


@dataclass(frozen=True, slots=True)
class Lost:
    """Offsets of the topic that can't be read (the end is exclusive), and the reason."""

    first_offset: int
    end_offset: int
    problem: str

    def __str__(self) -> str:
        return f"offsets {self.first_offset} to {self.end_offset - 1} can't be read: {self.problem}"


@dataclass(slots=True)
class Replayed:
    """The last record of each key with its offset, None for a deletion, and the offsets that could not be read."""

    last: dict[Key, tuple[int, Value | None]] = field(default_factory=dict)
    lost: list[Lost] = field(default_factory=list)

    @property
    def entries(self) -> list[tuple[Key, Value]]:
        """The current groups and offsets."""
        return [(key, value) for key, (_, value) in self.last.items() if value is not None]

    @property
    def sure_from(self) -> int:
        """The end of the unreadable offsets: from there on, the last record of a key is certain."""
        return max((each.end_offset for each in self.lost), default=0)

    def doubtful(self) -> list[NewRecord]:
        """Return the records to write again, because no reliable record confirms them."""
        sure_from = self.sure_from
        entries = [
            _record(key, value)
            for key, (offset, value) in self.last.items()
            if offset < sure_from and value is not None
        ]
        return [NewRecord(key=key, value=value) for key, value in entries]


def replay(topic: Topic) -> Replayed:
    """Read the topic."""
    found = Replayed()
    with closing(topic.partition_reader(0)) as reader:
        extent = reader.extent()
        offset = extent.log_start
        while offset < extent.log_end:
            try:
                for records in reader.replay(offset, extent.log_end):
                    for record in to_records(records):
                        _take(found, record)
                        offset = record.offset + 1
                break
            except CorruptError as error:
                damaged = _next_damage(topic, offset)
                if damaged is None:
                    raise
                found.lost.append(Lost(damaged.first_offset, damaged.end_offset, str(error)))
                reader.step_over(damaged)
                offset = damaged.end_offset
    return found


def _next_damage(topic: Topic, offset: int) -> DamagedRange | None:
    """Return the first damage from an offset on. Each call checks everything: damage is rare, the topic is small."""
    damage = [each for _, each in (*topic.sealed_damage(), *topic.wal_damage()) if each.end_offset > offset]
    return min(damage, key=lambda each: each.end_offset, default=None)


def with_positions(found: Replayed, folder: Path, names: Mapping[UUID, str]) -> Replayed:
    """Return the result with the positions that compaction uses, where a later commit may be lost."""
    if not found.lost:
        return found
    last = dict(found.last)
    for (group_id, topic_id), positions in read_positions(folder, names).items():
        for partition, (position, active_ms) in positions.items():
            key = OffsetKey(group_id, topic_id, partition)
            offset, value = last.get(key, (-1, None))
            is_same = isinstance(value, CommittedOffset) and value.offset == position
            if offset < found.sure_from and not is_same:
                last[key] = (
                    offset,
                    CommittedOffset(topic=names[topic_id], offset=position, committed_ms=active_ms),
                )
    return Replayed(last, found.lost)


def write_again(log: Log) -> None:
    """Append the known state of groups after the unreadable offsets, so that those can be skipped."""
    topic = log.topic(GROUPS_TOPIC)
    names = {info.id: info.name for info in log.topic_infos()}
    records = with_positions(replay(topic), log.path, names).doubtful()
    if records:
        topic.append_internal(records)


def problems(lost: Iterable[Lost]) -> list[str]:
    """Return a message for each unreadable range, with the way to resolve it."""
    return [
        f"{GROUPS_TOPIC}: {str(each).removesuffix('.')}. Commits in this range fall back to positions from some "
        f"seconds earlier, so consumers may read records again. `lastword wal repair {GROUPS_TOPIC} --skip` skips it"
        for each in lost
    ]


def _record(key: Key, value: Value) -> tuple[bytes, bytes | None]:
    if isinstance(value, CommittedOffset):
        assert isinstance(key, OffsetKey)
        return offset_record(key, value)
    assert isinstance(key, str)
    return group_record(key, value)


def _take(found: Replayed, record: Record) -> None:
    try:
        key, value = parse(record, topic=GROUPS_TOPIC)
    except CorruptError as error:
        found.lost.append(Lost(record.offset, record.offset + 1, str(error)))
    else:
        found.last[key] = (record.offset, value)
