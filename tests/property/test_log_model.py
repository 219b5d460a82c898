"""A log against a plain model of it: lists of records with a log start.

Anything may happen in any order: appends, rolls, seals, retention, deletion of records, the deleter, expiry and
collection, restarts, and deaths of the process with a torn or an unanswered batch at the end of the WAL. After
each step the whole replay, the extents and the state view are what the model says, and a reader that goes along
has seen every record once.

`LASTWORD_PROPERTY_EXAMPLES=500` runs longer, on other examples each time.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.clock import HOUR_MS, ManualClock
from tests.support.logs import abandon, open_log, wal_path
from tests.support.memory import make_memory_folder

from lastword import batch
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.record import NewRecord, Record

EXAMPLES = os.environ.get("LASTWORD_PROPERTY_EXAMPLES")
PARTITIONS = 2
RETENTION_MS = 5 * HOUR_MS

STRATEGIES = {
    "offset": {},
    "first": {},
    "timestamp": {},
    "header": {
        "compaction.strategy.header": "v",
        "compaction.strategy.header.format": "text",
        "compaction.strategy.header.missing": "lowest",
    },
}

Row = tuple[int, bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]
"""Offset, key, value, timestamp and headers."""


def row_of(record: Record) -> Row:
    return record.offset, record.key, record.value, record.timestamp_ms, record.headers


@dataclass
class PartitionModel:
    """Every record there ever was, and where the log starts now."""

    rows: list[Row] = field(default_factory=list)
    log_start: int = 0
    log_end: int = 0
    seen: int = 0
    """How far the reader has come."""

    def add(self, records: list[NewRecord], now_ms: int) -> None:
        for record in records:
            timestamp_ms = now_ms if record.timestamp_ms is None else record.timestamp_ms
            self.rows.append((self.log_end, record.key, record.value, timestamp_ms, record.headers))
            self.log_end += 1

    @property
    def readable(self) -> list[Row]:
        return [row for row in self.rows if row[0] >= self.log_start]

    def winners(self, strategy: str) -> dict[bytes, Row]:
        won: dict[bytes, Row] = {}
        for row in self.readable:
            key = row[1]
            if key is not None and (key not in won or beats(row, won[key], strategy)):
                won[key] = row
        return won


def beats(row: Row, other: Row, strategy: str) -> bool:
    """Whether a row takes the place of one that came before it."""
    match strategy:
        case "offset":
            return True
        case "first":
            return False
        case "timestamp":
            return row[3] >= other[3]
        case _:
            return version(row) >= version(other)


def version(row: Row) -> int:
    named = [value for name, value in row[4] if name == "v"]
    return int(named[-1]) if named and named[-1] not in (None, b"x") else -(2**63)


def state_of(partitions: list[PartitionModel], strategy: str) -> dict[bytes, bytes]:
    best: dict[bytes, tuple[int, int, bytes | None]] = {}
    for number, partition in enumerate(partitions):
        for key, row in partition.winners(strategy).items():
            if key not in best or (row[3], number) > best[key][:2]:
                best[key] = (row[3], number, row[2])
    return {key: value for key, (_, _, value) in best.items() if value is not None}


keys = st.sampled_from([b"a", b"b", b"c", b"", None])
payloads = st.one_of(st.none(), st.binary(max_size=6))
headers = st.lists(
    st.tuples(st.sampled_from(["v", "w"]), st.sampled_from([b"1", b"2", b"-3", b"x", None])), max_size=2
).map(tuple)
ages_ms = st.sampled_from([None, -1, 0, HOUR_MS, 3 * HOUR_MS, 6 * HOUR_MS])
new_rows = st.lists(st.tuples(keys, payloads, headers, ages_ms), min_size=1, max_size=4)
partitions = st.integers(0, PARTITIONS - 1)


class LogMachine(RuleBasedStateMachine):
    folder: Path
    log: Log
    topic: Topic

    @initialize(
        strategy=st.sampled_from(list(STRATEGIES)),
        local_retention_ms=st.sampled_from([0, 2 * HOUR_MS]),
        segment_bytes=st.sampled_from([14, 300, 1 << 30]),
        sync=st.sampled_from(["group", "none", "interval:600000"]),
    )
    def start(self, strategy: str, local_retention_ms: int, segment_bytes: int, sync: str) -> None:
        self.folder = make_memory_folder()
        self.clock = ManualClock()
        self.strategy = strategy
        self.model = [PartitionModel() for _ in range(PARTITIONS)]
        self.sync = sync
        self.open()
        self.topic = self.log.create_topic(
            "t",
            partitions=PARTITIONS,
            config={
                "cleanup.policy": "compact,delete",
                "compaction.at.seal": False,
                "compaction.strategy": strategy,
                "retention.ms": RETENTION_MS,
                "local.retention.ms": local_retention_ms,
                "segment.bytes": segment_bytes,
                **STRATEGIES[strategy],
            },
        )
        self.reader = self.topic.reader("r")

    def open(self) -> None:
        self.log = open_log(self.folder / "d", self.clock, {"wal.sync": self.sync})

    def reopen(self) -> None:
        self.open()
        self.topic = self.log.topic("t")
        self.reader = self.topic.reader("r")
        for number, partition in enumerate(self.model):
            partition.seen = max(self.reader.positions[number], 0)

    def records(
        self, rows: list[tuple[bytes | None, bytes | None, tuple[object, ...], int | None]]
    ) -> list[NewRecord]:
        now_ms = self.clock.now_ms()
        return [
            NewRecord(
                key=key,
                value=value,
                headers=own_headers,  # type: ignore[arg-type]
                timestamp_ms=age_ms if age_ms is None or age_ms < 0 else now_ms - age_ms,
            )
            for key, value, own_headers, age_ms in rows
        ]

    @rule(partition=partitions, rows=new_rows)
    def append(
        self, partition: int, rows: list[tuple[bytes | None, bytes | None, tuple[object, ...], int | None]]
    ) -> None:
        records = self.records(rows)
        positions = self.topic.append_many(records, partition=partition)
        first = self.model[partition].log_end
        assert [each.offset for each in positions] == list(range(first, first + len(records)))
        self.model[partition].add(records, self.clock.now_ms())

    @rule(partition=partitions)
    def roll(self, partition: int) -> None:
        self.topic.partition(partition).writer.roll()

    @rule()
    def seal(self) -> None:
        assert self.topic.seal().problems == ()
        described = self.topic.describe().partitions
        assert [each.sealed_end for each in described] == [each.log_end for each in self.model]

    @rule()
    def seal_rolled(self) -> None:
        assert self.topic.seal_rolled().problems == ()

    @rule(hours=st.sampled_from([0, 1, 3, 24]))
    def maintain(self, hours: int) -> None:
        """Retention, the deleter, expiry and collection."""
        self.clock.move(hours * HOUR_MS)
        now_ms = self.clock.now_ms()
        report = self.log.run_retention()
        assert report.problems == () and report.wal.errors == ()
        (plan,) = report.removed
        for number, log_start in plan.log_starts:
            partition = self.model[number]
            assert partition.log_start < log_start <= partition.log_end
            gone = [row for row in partition.readable if row[0] < log_start]
            assert all(now_ms - row[3] > RETENTION_MS for row in gone if row[3] >= 0)
            partition.log_start = log_start

    @rule(partition=partitions, share=st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    def delete_records(self, partition: int, share: float) -> None:
        model = self.model[partition]
        before = model.log_start + int((model.log_end - model.log_start) * share)
        assert self.topic.delete_records({partition: before}) == {partition: before}
        model.log_start = before

    @rule(max_records=st.sampled_from([1, 2, 100]), commits=st.booleans())
    def poll(self, max_records: int, commits: bool) -> None:
        """What comes next is what the model has next, but for what is below the log start by now."""
        polled = self.reader.poll(max_records=max_records)
        for record in polled:
            model = self.model[record.partition]
            assert row_of(record) == model.rows[record.offset]
            assert record.offset == model.seen or model.seen < record.offset <= model.log_start
            model.seen = record.offset + 1
        if not polled:
            assert all(max(each.seen, each.log_start) == each.log_end for each in self.model)
        if commits:
            self.reader.commit()

    @rule()
    def restart(self) -> None:
        self.reader.close()
        self.log.close()
        self.reopen()

    @rule(
        torn=st.sampled_from([b"", b"\x00", b"torn" * 20]),
        unanswered=st.lists(st.tuples(partitions, new_rows), max_size=2),
        removes_state=st.booleans(),
    )
    def die(
        self,
        torn: bytes,
        unanswered: list[tuple[int, list[tuple[bytes | None, bytes | None, tuple[object, ...], int | None]]]],
        removes_state: bool,
    ) -> None:
        """The page cache outlives the process: what was written whole is there afterwards."""
        for partition, rows in unanswered:
            records = self.records(rows)
            self.topic.partition(partition).writer.stage(batch.encode(records, now_ms=self.clock.now_ms()))
            self.model[partition].add(records, self.clock.now_ms())
        self.reader.close()
        abandon(self.log)
        for partition in range(PARTITIONS):
            active = max(wal_path(self.topic, partition).glob("wal.*.log"))
            with active.open("ab") as file:
                file.write(torn)
            if removes_state:
                (wal_path(self.topic, partition) / "wal.state").unlink()
        self.reopen()

    @precondition(lambda self: all(each.log_end for each in self.model))
    @rule()
    def lose_the_checkpoints(self) -> None:
        self.reader.close()
        abandon(self.log)
        for partition in range(PARTITIONS):
            (wal_path(self.topic, partition) / "writer.json").unlink()
        self.reopen()

    @invariant()
    def the_log_is_what_the_model_says(self) -> None:
        extents = self.topic.extents()
        for number, model in enumerate(self.model):
            assert (extents[number].log_start, extents[number].log_end) == (model.log_start, model.log_end)
            assert [row_of(each) for each in self.topic.read(partition=number)] == model.readable
        table = self.topic.state()
        found = dict(zip(table.column("key").to_pylist(), table.column("value").to_pylist(), strict=True))
        assert len(found) == table.num_rows
        assert found == state_of(self.model, self.strategy)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.reader.close()
            self.log.close()
            shutil.rmtree(self.folder)


TestLogModel = LogMachine.TestCase
TestLogModel.settings = settings(
    max_examples=int(EXAMPLES or 15),
    stateful_step_count=25,
    deadline=None,
    derandomize=EXAMPLES is None,
    suppress_health_check=list(HealthCheck),
)
