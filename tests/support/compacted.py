"""A compacted topic with its model beside it: whatever is done to one is done to the other, and they are compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.support.clock import ManualClock
from tests.support.compaction_model import NO_TIMESTAMP, Extent, Partition, Policy, Row, Verdict, state_of
from tests.support.logs import open_log

from lastword.compaction.engine import InlineEngine, Job, Result
from lastword.compaction.reports import CompactionReport
from lastword.log import Log
from lastword.record import NewRecord, Record
from lastword.segments.model import Positions, Segment
from lastword.segments.rows import to_records, with_partition
from lastword.segments.table import SegmentTable

INLINE = "lastword.compaction.inline:InlineCompactionServiceFactory"
INLINE_CONFIG: dict[str, object] = {"compaction.service.factory": INLINE, "wal.sync": "none"}


def topic_config(policy: Policy) -> dict[str, object]:
    """A model's policy as a topic's settings."""
    names = [name for name, given in (("compact", policy.compacts), ("delete", policy.deletes)) if given]
    config: dict[str, object] = {
        "cleanup.policy": ",".join(names),
        "compaction.strategy": policy.strategy,
        "min.cleanable.dirty.ratio": policy.min_ratio,
        "dirty.ratio.basis": policy.ratio_basis,
        "min.compaction.lag.ms": policy.min_lag_ms,
        "delete.retention.ms": policy.delete_retention_ms,
        "tombstone.clock": policy.tombstone_clock,
        "min.rewrite.ratio": policy.min_rewrite_ratio,
        "compaction.at.seal": policy.at_seal,
        "retention.ms": -1 if policy.retention_ms is None else policy.retention_ms,
    }
    if policy.max_lag_ms is not None:
        config["max.compaction.lag.ms"] = policy.max_lag_ms
    if policy.strategy == "header":
        config |= {
            "compaction.strategy.header": policy.header,
            "compaction.strategy.header.format": policy.header_format,
            "compaction.strategy.header.missing": "lowest",
        }
    return config


def segments_of(table: SegmentTable, partition: int) -> list[Segment]:
    return table.plan(table.snapshot(), partition)


def extents_of(table: SegmentTable, partition: int) -> list[Extent]:
    return [
        Extent(segment.first_offset, segment.last_offset, segment.size_bytes)
        for segment in segments_of(table, partition)
    ]


def sealed_records(table: SegmentTable, partition: int) -> list[Record]:
    """Everything that is in a partition's sealed files, below the log start too."""
    return [
        record
        for segment in segments_of(table, partition)
        for records in table.read(segment)
        for record in to_records(with_partition(records, partition))
    ]


class Twin:
    """The topic `t` of a log of its own, and its model."""

    def __init__(
        self,
        folder: Path,
        policy: Policy,
        *,
        partitions: int = 1,
        config: Mapping[str, object] | None = None,
        broker: Mapping[str, object] | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.policy = policy
        self.log: Log = open_log(
            folder,
            self.clock,
            {
                **INLINE_CONFIG,
                "reader.hold.ms": policy.hold_ms,
                "reader.hold.max.ms": policy.hold_max_ms,
                **(broker or {}),
            },
        )
        self.topic = self.log.create_topic(
            "t", partitions=partitions, config={**topic_config(policy), **(config or {})}
        )
        self.table: SegmentTable = self.log._topics.load("t")
        self.models = [Partition(policy) for _ in range(partitions)]

    def close(self) -> None:
        self.log.close()

    def __enter__(self) -> Twin:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def now_ms(self) -> int:
        return self.clock.now_ms()

    def positions(self, partition: int = 0) -> Positions:
        return self.table.snapshot().positions[partition]

    # ------------------------------------------------------------------------------------------- doing

    def append(self, *records: NewRecord, partition: int = 0) -> None:
        for place, record in zip(self.topic.append_many(records, partition=partition), records, strict=True):
            stamp = self.now_ms if record.timestamp_ms is None else record.timestamp_ms
            self.models[partition].append(
                Row(
                    offset=place.offset,
                    timestamp_ms=stamp,
                    age_ms=self.now_ms if stamp == NO_TIMESTAMP else stamp,
                    key=record.key,
                    value=record.value,
                    headers=record.headers,
                )
            )

    def seal(self) -> None:
        assert not self.topic.seal().problems
        for partition, model in enumerate(self.models):
            model.seal((record.offset for record in sealed_records(self.table, partition)), self.now_ms)

    def move(self, duration_ms: int) -> None:
        self.clock.move(duration_ms)

    def delete_before(self, partition: int, offset: int) -> None:
        extents = extents_of(self.table, partition)
        self.topic.delete_records({partition: offset})
        self.models[partition].delete_before(offset, extents)

    def retain(self) -> None:
        extents = [extents_of(self.table, partition) for partition in range(len(self.models))]
        self.log.run_retention()
        for model, own in zip(self.models, extents, strict=True):
            model.retain(own, self.now_ms)

    def commit_reader(self, name: str, positions: Mapping[int, int]) -> None:
        with self.topic.reader(name) as reader:
            for partition, offset in positions.items():
                reader.seek(partition, offset)
            reader.commit()
            for partition, offset in reader.positions.items():
                self.models[partition].commit(name, offset, self.now_ms)

    def due(self) -> dict[int, str]:
        """What is due by the plan of the log, and why."""
        return {plan.partition: plan.reason for plan in self.log.plan_compaction(["t"])}

    def expected_reasons(self) -> list[set[str]]:
        """For each partition every reason for which it is due, by the model."""
        return [
            model.due(extents_of(self.table, partition), self.now_ms)
            for partition, model in enumerate(self.models)
        ]

    def compact(self, *, asked_for: bool = False, force: bool = False) -> CompactionReport:
        """Compact, and compare what it did with what the model says."""
        before = [self._verdict(partition) for partition in range(len(self.models))]
        sealed_before = [sealed_records(self.table, partition) for partition in range(len(self.models))]
        snapshot_before = self.table.snapshot().id
        report = self.log.compact(["t"], asked_for=asked_for, force=force)
        assert not report.problems, report.problems
        done = {each.partition: each for each in report.partitions}
        for partition, verdict in enumerate(before):
            if partition not in done:
                assert sealed_records(self.table, partition) == sealed_before[partition]
                continue
            self._compare_run(partition, verdict, sealed_before[partition])
        if not done:
            assert self.table.snapshot().id == snapshot_before
        self.check()
        return report

    def _verdict(self, partition: int) -> Verdict:
        return self.models[partition].judge(extents_of(self.table, partition), self.now_ms)

    def _compare_run(self, partition: int, verdict: Verdict, before: Sequence[Record]) -> None:
        model = self.models[partition]
        after = sealed_records(self.table, partition)
        left = {record.offset for record in after}
        must_stay = {record.offset for record in before if record.offset not in verdict.gone}
        assert must_stay <= left, {"lost": sorted(must_stay - left)}
        extra = left - must_stay
        unexpected = {offset: verdict.gone.get(offset, "?") for offset in extra - verdict.may_wait}
        assert not unexpected, {"should have gone": unexpected}
        # What stays is as it was, and in its order.
        assert after == [record for record in before if record.offset in left]
        model.ran(verdict, left, self.now_ms)

    # ---------------------------------------------------------------------------------------- comparing

    def check(self) -> None:
        """Everything that can be read is what the model has."""
        extents = self.topic.extents()
        for partition, model in enumerate(self.models):
            at = self.positions(partition)
            assert (at.log_start, at.first_dirty, at.sealed_end) == (
                model.log_start,
                model.first_dirty,
                model.sealed_end,
            )
            assert (extents[partition].log_start, extents[partition].log_end) == (
                model.log_start,
                model.log_end,
            )
            read = [
                (record.offset, record.timestamp_ms, record.key, record.value, record.headers)
                for record in self.topic.read(partition=partition)
            ]
            assert read == [
                (row.offset, row.timestamp_ms, row.key, row.value, row.headers) for row in model.visible()
            ]
            self._check_memory(model, at)
        assert self.state() == {
            key: (partition, row.offset, row.value) for key, (partition, row) in state_of(self.models).items()
        }

    def state(self) -> dict[bytes, tuple[int, int, bytes]]:
        return {
            row["key"]: (row["partition"], row["offset"], row["value"])
            for row in self.topic.state().to_pylist()
        }

    def _check_memory(self, model: Partition, at: Positions) -> None:
        """Deadlines are ranges in order below the first dirty offset, and cover every tombstone that was passed."""
        end = 0
        for deadline in at.deadlines:
            assert end <= deadline.start < deadline.end <= at.first_dirty, at
            end = deadline.end
        for row in model.rows:
            if (
                not row.is_tombstone
                or row.offset < model.log_start
                or row.offset not in model.first_passed_ms
            ):
                continue
            covering = [each for each in at.deadlines if each.start <= row.offset < each.end]
            assert len(covering) == 1, (row, at)
            if model.policy.tombstone_clock == "compaction":
                assert covering[0].deadline_ms == model.deadlines[row.offset]
            else:
                assert covering[0].deadline_ms <= model.expiry_ms(row)


def keyed(*pairs: tuple[str, str | None], timestamp_ms: int | None = None) -> list[NewRecord]:
    return [
        NewRecord(
            key=key.encode(), value=None if value is None else value.encode(), timestamp_ms=timestamp_ms
        )
        for key, value in pairs
    ]


def filled(twin: Twin, segments: int = 3, *, partition: int = 0) -> None:
    for number in range(segments):
        twin.append(
            *keyed(("a", str(number)), ("b", str(number)), (f"own{number}", "x")), partition=partition
        )
        twin.seal()


def offsets(twin: Twin, partition: int = 0) -> list[int]:
    return [record.offset for record in sealed_records(twin.table, partition)]


def alter(twin: Twin, **changes: object) -> None:
    twin.policy = replace(twin.policy, **changes)  # type: ignore[arg-type]
    names = [
        name for name, given in (("compact", twin.policy.compacts), ("delete", twin.policy.deletes)) if given
    ]
    twin.log.alter_topic("t", set_config={"cleanup.policy": ",".join(names)})
    for model in twin.models:
        model.policy = twin.policy


class Meanwhile(InlineEngine):
    """Does something once, after units were carried out and before anything is committed."""

    def __init__(self, *acts: Callable[[], object]) -> None:
        super().__init__()
        self.acts = list(acts)
        self.jobs: list[Job] = []

    def run(self, jobs: Sequence[Job]) -> list[Result]:
        self.jobs += jobs
        results = super().run(jobs)
        if self.acts:
            self.acts.pop(0)()
        return results


def meanwhile(twin: Twin, *acts: Callable[[], object]) -> Meanwhile:
    engine = Meanwhile(*acts)
    twin.log.compaction.factory()._engine = engine  # type: ignore[attr-defined]
    return engine
