"""The states that reads returned, by partition, and the log ends that they may belong to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain

from lastword.testing.history.events import Fetch, Operation, Point, SeenRecord, StateRead, TimeTravel
from lastword.testing.history.findings import Findings
from lastword.testing.history.truth.clockline import NEVER
from lastword.testing.history.truth.entries import Entry, beats
from lastword.testing.history.truth.lives import Life
from lastword.testing.history.truth.partition import PartitionLog
from lastword.testing.history.truth.reading import Truth
from lastword.testing.history.truth.settings import Strategy
from lastword.testing.history.words import record_text

Interval = tuple[int, int]
"""Two log ends, both inclusive."""


@dataclass(slots=True, kw_only=True, eq=False)
class Shown:
    """The state of one partition that a read returned, and the log ends that it may belong to."""

    rule: str
    read: Operation
    began: int
    completed: int
    low: int
    high: int
    state: dict[bytes, bytes] = field(default_factory=dict)
    is_pass: bool = False


class Homes:
    """The partitions that may have each key."""

    def __init__(self, life: Life) -> None:
        self._homes: dict[bytes, list[PartitionLog]] = defaultdict(list)
        for log in life.partitions.values():
            maybes = {each.key for each in log.maybes.values() if each.key is not None}
            for key in log.by_key.keys() | log.doubts.keys() | maybes:
                self._homes[key].append(log)
        self.shared = {key for key, found in self._homes.items() if len(found) > 1}

    def of(self, key: bytes) -> list[PartitionLog]:
        return self._homes.get(key, [])


def deal(
    read: StateRead,
    life: Life,
    homes: Homes,
    shown: dict[PartitionLog, list[Shown]],
    truth: Truth,
    findings: Findings,
) -> None:
    """Split a state by the partitions that may have its keys."""
    assert read.state is not None
    completed = NEVER if read.completed is None else read.completed
    own: dict[int, Shown] = {}
    for number, log in life.partitions.items():
        if read.partitions is not None and number not in read.partitions:
            continue
        ends = _ends(log, read.as_of, read.invoked, completed)
        if ends is not None:
            own[number] = Shown(
                rule="last-word" if read.as_of is None else "fixed-past",
                read=read,
                began=read.invoked,
                completed=completed,
                low=ends[0],
                high=ends[1],
            )
    if len(life.partitions) == 1 and own:
        for number, each in own.items():
            each.state = dict(read.state)
            shown[life.partitions[number]].append(each)
        return
    for key, value in read.state.items():
        found = homes.of(key)
        if len(found) == 1 and found[0].number in own:
            own[found[0].number].state[key] = value
        elif truth.options.only_recorded and not any(_may_have(each, key, value) for each in found):
            findings.anomaly(
                "refused",
                f"The state of {read.topic} has {record_text(key, value)}, which was never sent there.",
                [(read, f"and saw {record_text(key, value)}")],
                topic=read.topic,
                key=key,
            )
    for number, each in own.items():
        shown[life.partitions[number]].append(each)


def _may_have(log: PartitionLog, key: bytes, value: bytes) -> bool:
    found = [*log.by_key.get(key, ()), *log.doubts.get(key, ()), *log.maybes.values()]
    return any(each.key == key and each.value == value for each in found)


def _ends(log: PartitionLog, point: Point | None, invoked: int, completed: int) -> Interval | None:
    """Return the lowest and the highest log end that a state may belong to, if they are known."""
    low, high = log.end_known_before(invoked), log.end_possible_at(completed)
    if point is None:
        return (low, high) if low <= high else (low, low)
    if point.offsets is not None:
        last = point.offsets.get(log.number)
        if last is None:
            return None
        end = last + 1
        return (end, end) if end <= low else (min(low, end), max(min(low, end), min(high, end)))
    if point.time_ms is None:
        return None
    marked = _end_at(log, point.time_ms, invoked, completed)
    return None if marked is None else (marked, marked)


def _end_at(log: PartitionLog, time_ms: int, invoked: int, completed: int) -> int | None:
    """Return the offset of the first record that is younger than a time, if that record is certain."""
    places = iter(range(len(log.offsets)))
    younger: Entry | None = None
    for place in places:
        entry = log.entries[log.offsets[place]]
        if entry.timestamp_ms is None:
            return None
        if entry.timestamp_ms > time_ms:
            younger = entry
            break
    if younger is None or younger.known_by >= invoked:
        return None
    if younger.taken_from <= completed and any(_may_be_older(log, place, time_ms) for place in places):
        # If that record is below the log start, a later one marks the end.
        return None
    unknown = chain(chain.from_iterable(log.doubts.values()), log.maybes.values())
    if any(
        each.since <= younger.known_by and (each.timestamp_ms is None or each.timestamp_ms > time_ms)
        for each in unknown
    ):
        return None
    return younger.offset


def _may_be_older(log: PartitionLog, place: int, time_ms: int) -> bool:
    timestamp_ms = log.entries[log.offsets[place]].timestamp_ms
    return timestamp_ms is None or timestamp_ms <= time_ms


def of_travel(log: PartitionLog, travel: TimeTravel) -> Shown | None:
    completed = NEVER if travel.completed is None else travel.completed
    ends = _ends(log, travel.as_of, travel.invoked, completed)
    strategy = log.strategy_at(completed)
    if ends is None or strategy is None:
        return None
    return Shown(
        rule="fixed-past",
        read=travel,
        began=travel.invoked,
        completed=completed,
        low=ends[0],
        high=ends[1],
        state=_folded(travel.records, strategy),
    )


def passes(log: PartitionLog) -> Iterable[Shown]:
    """Return the sessions that read everything, from the log start to the high watermark."""
    sessions: dict[str, list[Fetch]] = defaultdict(list)
    for fetch in log.fetches:
        if fetch.session is not None:
            sessions[fetch.session].append(fetch)
    for session in sessions.values():
        first, last = session[0], session[-1]
        start = 0 if first.log_start is None else first.log_start
        if first.from_offset > start or last.completed is None or last.high_watermark is None:
            continue
        at: int | None = first.from_offset
        for fetch in session:
            if fetch.from_offset != at:
                break
            at = fetch.next_offset
        else:
            strategy = log.strategy_at(last.completed)
            if at is None or at != last.high_watermark or strategy is None:
                continue
            records = [record for fetch in session for record in fetch.records]
            yield Shown(
                rule="last-word",
                read=last,
                began=first.invoked,
                completed=last.completed,
                low=at,
                high=at,
                state=_folded(records, strategy),
                is_pass=True,
            )


def _folded(records: Iterable[SeenRecord], strategy: Strategy) -> dict[bytes, bytes]:
    """Return the state that a client builds from records."""
    if strategy.name == "offset":
        state: dict[bytes, bytes] = {}
        for record in records:
            if record.key is not None:
                if record.value is None:
                    state.pop(record.key, None)
                else:
                    state[record.key] = record.value
        return state
    best: dict[bytes, Entry] = {}
    for record in records:
        if record.key is not None:
            entry = Entry(
                record.offset, record.key, record.value, record.headers, record.timestamp_ms, since=0
            )
            if record.key not in best or beats(entry, best[record.key], strategy):
                best[record.key] = entry
    return {key: entry.value for key, entry in best.items() if entry.value is not None}
