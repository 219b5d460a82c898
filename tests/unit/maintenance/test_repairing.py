"""Topics whose table can't be read go back to an older state of it, if nothing is lost by that."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.support.logs import (
    Killed,
    abandon,
    fill,
    kill_at,
    no_hook,  # noqa: F401 - a fixture that every test uses
    open_log,
    values,
)

from lastword.errors import CorruptError, InvalidError
from lastword.log import Log


def pointer_of(log: Log, name: str) -> Path:
    return Path(log.topic(name).table._table.metadata_location.removeprefix("file://"))  # type: ignore[attr-defined]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "d"


def damaged(folder: Path, clock: ManualClock, *, partitions: int | None = None) -> Path:
    """A log with three records sealed, two sealed later, one in the WAL alone; the last metadata file is damaged."""
    with open_log(folder, clock) as log:
        topic = log.create_topic("t", config={"retention.ms": 12345, "local.retention.ms": 0})
        fill(topic, 0, 3)
        topic.seal()
        fill(topic, 3, 5)
        topic.seal()
        if partitions is not None:
            log.alter_topic("t", partitions=partitions)
            fill(topic, 100, 102, partition=partitions - 1)
        fill(topic, 5, 6)
        path = pointer_of(log, "t")
    path.write_bytes(path.read_bytes()[:100])
    return path


def test_it_goes_back_and_what_the_wal_has_is_sealed_again(folder: Path, clock: ManualClock) -> None:
    damaged(folder, clock)
    with open_log(folder, clock) as log:
        with pytest.raises(CorruptError):
            log.topic("t")
        plan = log.plan_repair("t")
        assert plan.chosen is not None and plan.chosen.snapshot is not None
        assert plan.chosen.snapshot.positions[0].sealed_end == 3
        assert plan.lost == ()
        with pytest.raises(CorruptError):
            log.topic("t")

        log.repair_topic("t")

        assert values(log.topic("t").read()) == [0, 1, 2, 3, 4, 5]
        fill(log.topic("t"), 6, 7)
        log.topic("t").seal()
        log.run_retention()
        assert dict(log.topic("t").config)["retention.ms"] == "12345"
    with open_log(folder, clock) as log:
        assert values(log.topic("t").read()) == [0, 1, 2, 3, 4, 5, 6]
        assert log.topic("t").describe().partitions[0].sealed_end == 7


def test_it_is_refused_where_records_would_be_lost(folder: Path, clock: ManualClock) -> None:
    with open_log(folder, clock) as log:
        topic = log.create_topic("t", config={"local.retention.ms": 0})
        fill(topic, 0, 3)
        topic.seal()
        fill(topic, 3, 5)
        topic.seal()
        clock.move(1)
        assert log.run_retention(steps=["delete"]).wal.deletions
        path = pointer_of(log, "t")
    content = path.read_bytes()
    path.write_bytes(content[:100])
    with open_log(folder, clock) as log:
        assert [
            (each.partition, each.first_offset, each.end_offset) for each in log.plan_repair("t").lost
        ] == [(0, 3, 5)]
        with pytest.raises(InvalidError, match="offsets 3 to 4 of partition 0 would be lost"):
            log.repair_topic("t")
        with pytest.raises(CorruptError):
            log.topic("t")
    path.write_bytes(content)
    with open_log(folder, clock) as log:
        assert values(log.topic("t").read()) == [0, 1, 2, 3, 4]


def test_a_missing_file_and_older_ones_that_are_damaged_too(folder: Path, clock: ManualClock) -> None:
    path = damaged(folder, clock)
    path.unlink()
    older = sorted(path.parent.glob("*.metadata.json"))
    older[-1].write_bytes(b"")
    with open_log(folder, clock) as log:
        plan = log.plan_repair("t")
        assert [each.problem for each in plan.states] == ["it is damaged too", None]
        log.repair_topic("t")
        assert values(log.topic("t").read()) == [0, 1, 2, 3, 4, 5]


def test_partitions_that_were_added_since_are_added_again(folder: Path, clock: ManualClock) -> None:
    damaged(folder, clock, partitions=3)
    with open_log(folder, clock) as log:
        log.repair_topic("t")
        assert log.topic("t").partitions == 3
        assert sorted(values(log.topic("t").read())) == [0, 1, 2, 3, 4, 5, 100, 101]


def test_a_state_whose_files_are_gone_can_not_be_used(folder: Path, clock: ManualClock) -> None:
    path = damaged(folder, clock)
    min(path.parent.parent.rglob("*.parquet"), key=lambda each: each.stat().st_mtime_ns).unlink()
    with open_log(folder, clock) as log:
        first, second = log.plan_repair("t").states
        assert "1 of its files is gone" in str(first.problem)
        assert second.problem is None


def test_nothing_is_done_to_a_table_that_can_be_read(log: Log) -> None:
    log.create_topic("t")
    for act in (log.plan_repair, log.repair_topic):
        with pytest.raises(InvalidError, match="nothing to repair"):
            act("t")


def test_killed_in_its_midst_nothing_is_lost(folder: Path, clock: ManualClock) -> None:
    damaged(folder, clock, partitions=3)
    log = open_log(folder, clock)
    kill_at("go_back.done")
    with pytest.raises(Killed):
        log.repair_topic("t")
    abandon(log)
    with open_log(folder, clock) as log:
        assert log.topic("t").partitions == 3
        assert sorted(values(log.topic("t").read())) == [0, 1, 2, 3, 4, 5, 100, 101]
