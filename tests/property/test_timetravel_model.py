"""Views as of a time against a plain list of every record that was ever appended.

The log end at a time is the first offset, from the log start on, whose record is younger. A view is what the records
before it make, or an error; and it is an error only where every snapshot that is kept may lack a younger record.

`LASTWORD_PROPERTY_EXAMPLES=500` runs longer, on other examples each time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.clock import HOUR_MS, ManualClock
from tests.support.compacted import INLINE_CONFIG
from tests.support.logs import open_log
from tests.support.memory import make_memory_folder

from lastword.errors import InvalidError
from lastword.reading.timetravel import AsOf
from lastword.record import NewRecord
from lastword.segments.model import Positions

EXAMPLES = os.environ.get("LASTWORD_PROPERTY_EXAMPLES")
MINUTE_MS = 60_000

CONFIG = {
    **INLINE_CONFIG,
    "snapshot.retention.ms": 2 * HOUR_MS,
    "collect.grace.ms": 0,
    "local.retention.ms": 0,
}


@dataclass(frozen=True)
class Row:
    timestamp_ms: int
    key: bytes
    value: bytes | None


class TimeTravel(RuleBasedStateMachine):
    """One partition of a compacted topic; its past is asked for after every few steps."""

    @initialize(at_seal=st.booleans())
    def start(self, at_seal: bool) -> None:
        self.folder = make_memory_folder()
        self.clock = ManualClock()
        self.began_ms = self.clock.now_ms()
        self.log = open_log(self.folder / "data", self.clock, CONFIG)
        self.topic = self.log.create_topic(
            "t",
            config={
                "cleanup.policy": "compact",
                "min.cleanable.dirty.ratio": 0,
                "delete.retention.ms": HOUR_MS,
                "compaction.at.seal": at_seal,
            },
        )
        self.rows: list[Row] = []
        self.log_start = 0

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.log.close()
            shutil.rmtree(self.folder)

    @rule(
        records=st.lists(
            st.tuples(st.integers(0, 3), st.booleans(), st.sampled_from([0, 0, 0, -20, 30])),
            min_size=1,
            max_size=5,
        )
    )
    def append(self, records: list[tuple[int, bool, int]]) -> None:
        rows = [
            Row(
                self.clock.now_ms() + minutes * MINUTE_MS,
                b"k%d" % key,
                b"v%d" % (len(self.rows) + place) if has_value else None,
            )
            for place, (key, has_value, minutes) in enumerate(records)
        ]
        self.topic.append_many(
            [NewRecord(key=row.key, value=row.value, timestamp_ms=row.timestamp_ms) for row in rows]
        )
        self.rows += rows
        self.clock.move(MINUTE_MS)

    @rule()
    def seal(self) -> None:
        self.topic.seal()

    @rule(seal=st.booleans())
    def compact(self, seal: bool) -> None:
        self.log.compact(asked_for=True, seal=seal)

    @rule(hours=st.sampled_from([0.1, 1.5, 2.5]))
    def let_time_pass(self, hours: float) -> None:
        self.clock.move(hours * HOUR_MS)

    @rule()
    def maintain(self) -> None:
        """Snapshots expire, their files go, and the WAL goes as far as it is sealed."""
        self.log.run_retention()

    @precondition(lambda self: self.rows)
    @rule(share=st.floats(0, 0.5))
    def delete_records(self, share: float) -> None:
        self.log_start = max(self.log_start, int(len(self.rows) * share))
        self.topic.delete_records({0: self.log_start})

    @invariant()
    def the_past_is_as_it_was(self) -> None:
        times = {row.timestamp_ms for row in self.rows} | {self.began_ms - 1, self.clock.now_ms()}
        for time_ms in times:
            end = self.end_at(time_ms)
            self.check(AsOf(time_ms=time_ms), end, lambda at, t=time_ms, e=end: self.can_show(at, t, e))
        for end in range(self.log_start, len(self.rows) + 1, 2):
            if end:
                self.check(AsOf(offset=end - 1), end, lambda at, e=end: self.can_show_offset(at, e))

    def check(self, point: AsOf, end: int, can_show: Callable[[Positions], bool]) -> None:
        try:
            state = self.topic.state(as_of=point).to_pylist()
        except InvalidError:
            kept = [snapshot.positions[0] for snapshot in self.topic.history()]
            assert not any(map(can_show, kept)), "it could be shown"
            return
        assert {row["key"]: row["value"] for row in state} == self.state_before(end)
        shown = [row for batch in self.topic.read_as_of(point) for row in batch.to_pylist()]
        offsets = [row["offset"] for row in shown]
        assert offsets == sorted(offsets)
        assert all(self.log_start <= offset < end for offset in offsets)
        assert {row["offset"] for row in state} <= set(offsets)
        for row in shown:
            known = self.rows[row["offset"]]
            assert (row["key"], row["value"]) == (known.key, known.value)

    def end_at(self, time_ms: int) -> int:
        for offset in range(self.log_start, len(self.rows)):
            if self.rows[offset].timestamp_ms > time_ms:
                return offset
        return len(self.rows)

    def can_show(self, at: Positions, time_ms: int, end: int) -> bool:
        """Whether no record that a snapshot may lack was younger, and the WAL still has what comes after it."""
        if at.first_dirty > self.log_start and self.any_younger(0, at.first_dirty, time_ms):
            return False
        for each in at.rounds:
            # The first of them is not hidden if all of them are younger.
            if end > each.start and self.any_younger(each.start, each.end, time_ms):
                return self.wal_has(each.start)
        # The end itself has to be seen.
        return end < max(at.sealed_end, self.log_start) or self.wal_has(at.sealed_end)

    def can_show_offset(self, at: Positions, end: int) -> bool:
        if at.first_dirty > end:
            return False
        inside = next((each.start for each in at.rounds if each.start < end < each.end), at.sealed_end)
        return end <= max(inside, self.log_start) or self.wal_has(inside)

    def wal_has(self, offset: int) -> bool:
        with closing(self.topic.partition_reader(0)) as reader:
            return reader.wal_start() <= max(offset, self.log_start)

    def any_younger(self, start: int, end: int, time_ms: int) -> bool:
        return any(row.timestamp_ms > time_ms for row in self.rows[start:end])

    def state_before(self, end: int) -> dict[bytes, bytes]:
        state = {row.key: row.value for row in self.rows[self.log_start : end]}
        return {key: value for key, value in state.items() if value is not None}


TimeTravel.TestCase.settings = settings(
    max_examples=int(EXAMPLES or 20),
    stateful_step_count=12,
    derandomize=EXAMPLES is None,
    phases=(Phase.explicit, Phase.generate) if EXAMPLES else tuple(Phase),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestTimeTravel = TimeTravel.TestCase
