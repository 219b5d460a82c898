"""A small log with compaction by all rules, whose clients record what they see: legal histories, by construction.

Every step is done at one moment, except that an operation may be open over other steps: its request is recorded, other
things happen, it has its effect, other things happen, its answer is recorded. A server has its own clock, which jumps.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import count

from lastword.testing.history import (
    History,
    Point,
    ProducedRecord,
    Recorder,
    RestartKind,
    SeenRecord,
)

SECOND = 1000
TOPIC = "users"


class Clock:
    def __init__(self) -> None:
        self.time_ms = 1_000_000_000

    def now_ms(self) -> int:
        return self.time_ms


@dataclass(slots=True)
class Stored:
    """A record, and whether it has been passed by a run of compaction: since when a tombstone has a deadline."""

    record: SeenRecord
    appended_ms: int
    deadline_ms: int | None = None


@dataclass(slots=True)
class Partition:
    stored: list[Stored] = field(default_factory=list)
    """The table's records and the tail."""
    log_start: int = 0
    first_dirty: int = 0
    sealed_end: int = 0
    log_end: int = 0
    past: dict[int, dict[bytes, bytes]] = field(default_factory=dict)

    def copy(self) -> Partition:
        return Partition(
            [Stored(each.record, each.appended_ms, each.deadline_ms) for each in self.stored],
            self.log_start,
            self.first_dirty,
            self.sealed_end,
            self.log_end,
            dict(self.past),
        )


@dataclass
class Model:
    """A topic on a server, with clients that are recorded."""

    rng: random.Random
    settings: dict[str, str]
    partitions: int = 2
    keys: tuple[bytes, ...] = (b"alice", b"bob", b"carol")

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.recorder = Recorder(clock=self.clock, order=count().__next__)
        self.values = count()
        self.sessions = count()
        self.lag_ms = int(self.settings.get("min.compaction.lag.ms", 0))
        self.delete_retention_ms = int(self.settings["delete.retention.ms"])
        self.strategy = self.settings.get("compaction.strategy", "offset")
        self.offsets: dict[str, int] = {}
        self.delayed: list[tuple[int, list[ProducedRecord]]] = []
        self.backup: tuple[int, int, list[Partition], dict[str, int]] | None = None
        self.create()

    @property
    def history(self) -> History:
        return self.recorder.history()

    def create(self) -> None:
        with self.recorder.topic_created(
            TOPIC, self.settings, partitions=self.partitions, process="admin"
        ) as op:
            self.logs = [Partition() for _ in range(self.partitions)]
            self.offsets = {}
            op.ok()

    # ---------------------------------------------------------------------------------------------- records

    def records(self, keys: tuple[bytes, ...] | None = None) -> list[ProducedRecord]:
        found = []
        for _ in range(self.rng.choice((1, 1, 2, 3))):
            value = None if self.rng.random() < 0.25 else b"v%d" % next(self.values)
            found.append(
                ProducedRecord(
                    key=self.rng.choice(keys or (*self.keys, None)),
                    value=value if value is not None or keys else b"v%d" % next(self.values),
                    timestamp_ms=self.clock.now_ms() - self.rng.choice((0, 0, 5 * SECOND)),
                    headers=(("h", b"x"),) if self.rng.random() < 0.2 else (),
                )
            )
        return found

    def append(self, partition: int, records: list[ProducedRecord]) -> int:
        log = self.logs[partition]
        base = log.log_end
        for each in records:
            seen = SeenRecord(
                offset=log.log_end,
                key=each.key,
                value=each.value,
                timestamp_ms=each.timestamp_ms,
                headers=each.headers,
            )
            log.stored.append(Stored(seen, self.clock.now_ms()))
            log.log_end += 1
            log.past[log.log_end] = self.state_of(log)
        return base

    def home(self) -> tuple[int, list[ProducedRecord]]:
        """Choose a partition and records whose keys belong there."""
        partition = self.rng.randrange(self.partitions)
        own = tuple(key for key in self.keys if key[0] % self.partitions == partition)
        records = self.records(own or None)
        if not own:
            records = [
                ProducedRecord(
                    key=None, value=each.value or b"v%d" % next(self.values), timestamp_ms=each.timestamp_ms
                )
                for each in records
            ]
        return partition, records

    def produce(self) -> None:
        """Append; with luck beside other things, with a lost answer, a refusal, or an effect that comes later."""
        partition, records = self.home()
        how = self.rng.random()
        with self.recorder.produce(TOPIC, partition, records, process="p") as op:
            if how < 0.08:
                op.refused("no")
                return
            if how < 0.3:
                self.meanwhile()
            if how < 0.16:
                self.delayed.append((partition, records))
                return
            base = self.append(partition, records)
            if how < 0.3:
                self.meanwhile()
            if how < 0.24:
                op.doubt("timeout")
            else:
                op.acknowledged(base)

    def arrive(self) -> None:
        """Let a produce in doubt have its effect after its client gave up, or never."""
        if self.delayed:
            partition, records = self.delayed.pop()
            if self.rng.random() < 0.7:
                self.append(partition, records)

    def meanwhile(self) -> None:
        """Do something inside of another operation."""
        self.rng.choice((self.compact, self.fetch, self.read_state, self.tick, self.quick_produce))()

    def quick_produce(self) -> None:
        partition, records = self.home()
        with self.recorder.produce(TOPIC, partition, records, process="p2") as op:
            op.acknowledged(self.append(partition, records))

    # ------------------------------------------------------------------------------------------- maintenance

    def tick(self) -> None:
        self.clock.time_ms += self.rng.choice((10, SECOND, 11 * SECOND, 40 * SECOND, -3 * SECOND))

    def wins(self, one: SeenRecord, other: SeenRecord) -> bool:
        if self.strategy == "first":
            return one.offset < other.offset
        if self.strategy == "timestamp":
            return (one.timestamp_ms or 0, one.offset) > (other.timestamp_ms or 0, other.offset)
        return one.offset > other.offset

    def compact(self) -> None:
        """Seal everything that is old enough, and run the cleaner over it."""
        now_ms = self.clock.now_ms()
        for log in self.logs:
            dirty = log.log_end
            for each in log.stored:
                if now_ms - (each.record.timestamp_ms or 0) < self.lag_ms:
                    dirty = min(dirty, each.record.offset)
            dirty = max(dirty, log.first_dirty)
            log.sealed_end = max(log.sealed_end, dirty)
            mine = [each for each in log.stored if each.record.offset < dirty]
            best: dict[bytes, SeenRecord] = {}
            for each in mine:
                key = each.record.key
                if key is not None and (key not in best or self.wins(each.record, best[key])):
                    best[key] = each.record
            left = []
            for each in mine:
                key = each.record.key
                if key is not None and best[key] is not each.record:
                    continue
                if key is not None and each.record.value is None and self.strategy == "offset":
                    if each.deadline_ms is None:
                        each.deadline_ms = now_ms + self.delete_retention_ms
                    elif now_ms >= each.deadline_ms:
                        continue
                left.append(each)
            log.stored = left + log.stored[len(mine) :]
            log.first_dirty = dirty

    def delete_records(self) -> None:
        partition = self.rng.randrange(self.partitions)
        log = self.logs[partition]
        before = self.rng.randint(log.log_start, log.log_end)
        with self.recorder.delete_records(TOPIC, partition, before, process="admin") as op:
            log.log_start = max(before, log.log_start)
            log.stored = [each for each in log.stored if each.record.offset >= log.log_start]
            log.past.clear()
            op.ok() if self.rng.random() < 0.7 else op.doubt()

    def erase(self) -> None:
        key = self.rng.choice(self.keys)
        with self.recorder.erase(TOPIC, [key], process="admin") as op:
            for log in self.logs:
                log.stored = [each for each in log.stored if each.record.key != key]
                log.past.clear()
            op.ok() if self.rng.random() < 0.7 else op.doubt()

    def recreate(self) -> None:
        with self.recorder.topic_deleted(TOPIC, process="admin") as op:
            op.ok() if self.rng.random() < 0.7 else op.doubt()
        self.delayed.clear()
        self.backup = None
        self.create()

    def restart(self) -> None:
        kind = self.rng.choice(list(RestartKind))
        with self.recorder.restart(kind, process="admin") as op:
            if kind is not RestartKind.CLEAN and self.settings.get("wal.sync", "group") != "group":
                for log in self.logs:
                    self.cut(log, self.rng.randint(log.sealed_end, log.log_end))
            self.delayed.clear()
            op.ok()

    def cut(self, log: Partition, end: int) -> None:
        end = max(end, log.log_start)
        log.stored = [each for each in log.stored if each.record.offset < end]
        log.past = {number: state for number, state in log.past.items() if number <= end}
        log.log_end = end

    def take_over(self) -> None:
        with self.recorder.takeover(process="admin") as op:
            for log in self.logs:
                self.cut(log, self.rng.randint(log.sealed_end, log.log_end))
            self.delayed.clear()
            op.ok()

    def back_up(self) -> None:
        began = self.recorder.now()
        logs = [log.copy() for log in self.logs]
        self.backup = (began, self.recorder.now(), logs, dict(self.offsets))

    def restore(self) -> None:
        if self.backup is not None:
            began, ended, logs, offsets = self.backup
            with self.recorder.restore(began, ended, process="admin") as op:
                self.logs = [log.copy() for log in logs]
                self.offsets = dict(offsets)
                self.delayed.clear()
                op.ok()

    # ------------------------------------------------------------------------------------------------ reads

    def state_of(self, log: Partition) -> dict[bytes, bytes]:
        best: dict[bytes, SeenRecord] = {}
        for each in log.stored:
            key = each.record.key
            if key is not None and (key not in best or self.wins(each.record, best[key])):
                best[key] = each.record
        return {key: record.value for key, record in best.items() if record.value is not None}

    def fetch(self) -> None:
        """Read a partition in one session, in one or more steps, from its start to its end."""
        partition = self.rng.randrange(self.partitions)
        session = f"s{next(self.sessions)}"
        at = self.logs[partition].log_start
        for _ in range(self.rng.choice((1, 1, 3))):
            with self.recorder.fetch(TOPIC, partition, at, session=session, process="c") as op:
                log = self.logs[partition]
                at = max(at, log.log_start)
                most = self.rng.choice((2, 100))
                shown = [each.record for each in log.stored if each.record.offset >= at][:most]
                after = log.log_end if len(shown) < most else shown[-1].offset + 1
                op.returned(
                    shown,
                    max(after, at),
                    log_start=log.log_start,
                    high_watermark=log.log_end,
                    first_dirty=log.first_dirty,
                )
                at = max(after, at)

    def read_state(self) -> None:
        with self.recorder.state_read(TOPIC, process="c") as op:
            op.returned({key: value for log in self.logs for key, value in self.state_of(log).items()})

    def look(self) -> None:
        partition = self.rng.randrange(self.partitions)
        with self.recorder.positions(TOPIC, partition, process="admin") as op:
            log = self.logs[partition]
            op.returned(
                log_start=log.log_start,
                first_dirty=log.first_dirty,
                sealed_end=log.sealed_end,
                log_end=log.log_end,
            )

    def look_back(self) -> None:
        partition = self.rng.randrange(self.partitions)
        log = self.logs[partition]
        if log.past and self.strategy == "offset":
            end = self.rng.choice(sorted(log.past))
            point = Point(offsets={partition: end - 1})
            with self.recorder.state_read(TOPIC, partitions=[partition], as_of=point, process="c") as op:
                op.returned(log.past[end])

    def commit(self) -> None:
        offset = self.rng.randrange(100)
        with self.recorder.offset_commit("g", TOPIC, 0, offset, process="c") as op:
            self.offsets["g"] = offset
            op.ok() if self.rng.random() < 0.7 else op.doubt()

    def read_commit(self) -> None:
        with self.recorder.offset_read("g", TOPIC, 0, process="c") as op:
            op.returned(self.offsets.get("g"))

    # ---------------------------------------------------------------------------------------------- all of it

    def run(self, steps: int) -> None:
        often = [
            self.produce,
            self.produce,
            self.produce,
            self.fetch,
            self.compact,
            self.tick,
            self.read_state,
        ]
        rare = [
            self.arrive,
            self.look,
            self.look_back,
            self.commit,
            self.read_commit,
            self.delete_records,
            self.erase,
            self.recreate,
            self.restart,
            self.take_over,
            self.back_up,
            self.restore,
        ]
        for _ in range(steps):
            self.rng.choice(often if self.rng.random() < 0.75 else rare)()
        for _ in range(2):
            self.fetch()
        self.read_state()

    def run_calmly(self, steps: int) -> None:
        """Without doubts that stay open, deletions and cuts: nearly everything can be decided."""
        calm = [
            self.quick_produce,
            self.fetch,
            self.compact,
            self.tick,
            self.read_state,
            self.look_back,
            self.look,
        ]
        for _ in range(steps):
            self.rng.choice([*calm, self.quick_produce, self.refuse])()
        self.fetch()
        self.read_state()

    def refuse(self) -> None:
        partition, records = self.home()
        with self.recorder.produce(TOPIC, partition, records, process="p") as op:
            op.refused("no")
