"""Units of staged records: all of one exactly once, whatever is killed at whichever step."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.clock import ManualClock
from tests.support.forks import killed_at
from tests.support.logs import open_log

from lastword import NewRecord, batch
from lastword.clock import new_uuid
from lastword.errors import InvalidError, InvalidRecordError, OffsetOutOfRangeError, WriteFailedError
from lastword.folder import disk
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.wal.staged import Piece, Sink, Unit, topic_folder

PARTITIONS = 3
STEPS = (
    "staged.proposed",
    "staged.checked",
    "staged.noted",
    "wal.written",
    "staged.written",
    "staged.synced",
    "staged.committed",
    "staged.cleared",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with open_log(tmp_path / "data", ManualClock(), {}) as log:
        log.create_topic("t", partitions=PARTITIONS, config={"max.message.bytes": 5_000})
    return tmp_path / "data"


def rows(unit: int, records: int = 60) -> pa.Table:
    """Rows of a unit, in several batches for each partition; each value says which it is."""
    numbers = range(records)
    return pa.table(
        {
            "key": [f"{unit}-{number}" for number in numbers],
            "value": [f"{unit}-{number}".ljust(500) for number in numbers],
            "partition": pa.array([number % PARTITIONS for number in numbers], pa.int32()),
        }
    )


def stage(topic: Topic, sink: Sink, unit: int, attempt: int = 0, **options: int) -> bool:
    """Stage a unit, as a task that is run for the `attempt`-th time does."""
    disk.make_folder(sink.folder)
    name = f"{unit}-{attempt}.batches"
    pieces: dict[int, list[Piece]] = {}
    table = rows(unit, **options)
    data = bytearray()
    # Tasks that run again may give their rows in another order.
    for partition, encoded in topic.encode_arrow(
        table if attempt == 0 else table.sort_by([("key", "descending")])
    ):
        pieces.setdefault(partition, []).append(Piece(name, len(data), len(encoded)))
        data += encoded
    (sink.folder / name).write_bytes(data)
    return sink.propose(Unit(number=unit, pieces=pieces))


def units(topic: Topic) -> Counter[str]:
    return Counter((record.value or b"").decode().strip() for record in topic.read())


def expected(*numbers: int) -> Counter[str]:
    return Counter(f"{unit}-{number}" for unit in numbers for number in range(60))


def sink_of(log: Log, name: str = "q") -> Sink:
    return Sink(log.path, log.topic("t").id, name)


def write_unit(folder: Path, unit: int, attempt: int = 0) -> None:
    with open_log(folder, ManualClock(), {}) as log:
        stage(log.topic("t"), sink_of(log), unit, attempt)
        log.topic("t").append_staged("q", unit)


def places() -> Iterator[tuple[str, int]]:
    for step in STEPS:
        for times in (
            range(1, PARTITIONS + 1)
            if step.startswith(("staged.noted", "wal", "staged.w", "staged.s"))
            else [1]
        ):
            yield step, times


def test_a_unit_is_appended_once_and_nothing_of_it_is_left(folder: Path) -> None:
    write_unit(folder, 1)
    write_unit(folder, 1, attempt=1)
    write_unit(folder, 2)
    with open_log(folder, ManualClock(), {}) as log:
        assert units(log.topic("t")) == expected(1, 2)
        sink = sink_of(log)
        assert sink.committed == 2
        assert [each.name for each in sink.folder.iterdir() if each.suffix != ".batches"] == [
            "committed.json"
        ]


def test_killed_at_every_step_and_repeated(folder: Path) -> None:
    """After each kill somebody else appends first, then the unit comes again, in another order."""
    done = []
    others = 0
    for unit, (step, times) in enumerate(places()):
        assert killed_at(step, lambda unit=unit: write_unit(folder, unit), times=times), (step, times)
        if unit % 2:
            with open_log(folder, ManualClock(), {}) as log:
                for partition in range(PARTITIONS):
                    log.topic("t").append("k", "other", partition=partition)
                    others += 1
        write_unit(folder, unit, attempt=1)
        done.append(unit)
        with open_log(folder, ManualClock(), {}) as log:
            found = units(log.topic("t"))
            assert found.pop("other", 0) == others
            assert found == expected(*done), (step, times)


def test_killed_again_while_what_was_left_is_finished(folder: Path) -> None:
    def open_topic() -> None:
        with open_log(folder, ManualClock(), {}) as log:
            log.topic("t")

    assert killed_at("staged.noted", lambda: write_unit(folder, 0), times=2)
    assert killed_at("staged.noted", open_topic)
    assert killed_at("staged.written", open_topic)
    write_unit(folder, 0, attempt=1)
    with open_log(folder, ManualClock(), {}) as log:
        assert units(log.topic("t")) == expected(0)


def test_a_torn_write_is_completed_where_it_broke_off(folder: Path) -> None:
    assert killed_at("staged.written", lambda: write_unit(folder, 0))
    with open_log(folder, ManualClock(), {}, read_only=True) as log:
        note = next(topic_folder(log.path, log.topic("t").id).glob("*/*.note"))
    wal = next(
        path
        for path in sorted(folder.rglob("wal.*.log"))
        if path.stat().st_size and path.parent.name == note.stem
    )
    with wal.open("r+b") as file:
        # In the middle of a batch that is not the first.
        file.truncate(wal.stat().st_size * 2 // 3)
    with open_log(folder, ManualClock(), {}) as log:
        log.topic("t").append("k", "other", partition=int(note.stem))
    write_unit(folder, 0, attempt=1)
    with open_log(folder, ManualClock(), {}) as log:
        found = units(log.topic("t"))
        assert found.pop("other") == 1
        assert found == expected(0)


def test_a_write_that_fails_is_completed_when_the_partition_is_reopened(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with open_log(folder, ManualClock(), {}) as log:
        topic = log.topic("t")
        stage(topic, sink_of(log), 0)
        with monkeypatch.context() as patch:
            patch.setattr(disk, "fdatasync", refuse)
            with pytest.raises(WriteFailedError):
                topic.append_staged("q", 0)
        with pytest.raises(WriteFailedError):
            topic.append_staged("q", 0)
        topic.reopen_partition(0)
        topic.append("k", "other", partition=0)
        topic.append_staged("q", 0)
        found = units(topic)
        assert found.pop("other") == 1
        assert found == expected(0)


def test_records_that_are_not_allowed_leave_nothing_and_can_be_staged_again(folder: Path) -> None:
    with open_log(folder, ManualClock(), {}) as log:
        topic = log.topic("t")
        stage(topic, sink_of(log), 0)
        log.alter_topic("t", set_config={"max.message.bytes": 100})
        with pytest.raises(InvalidRecordError):
            topic.append_staged("q", 0)
        assert units(topic) == Counter()
        log.alter_topic("t", unset=["max.message.bytes"])
        assert stage(topic, sink_of(log), 0, attempt=1)
        topic.append_staged("q", 0)
        assert units(topic) == expected(0)


def test_a_unit_that_nobody_staged_is_refused(folder: Path) -> None:
    with open_log(folder, ManualClock(), {}) as log:
        with pytest.raises(InvalidError, match="unit 7 has not been staged"):
            log.topic("t").append_staged("q", 7)
        with pytest.raises(InvalidError, match=r"'\.\./x'"):
            log.topic("t").append_staged("../x", 7)


def test_staged_files_that_are_gone_stop_the_partition_and_not_the_topic(folder: Path) -> None:
    assert killed_at("staged.noted", lambda: write_unit(folder, 0))
    for path in folder.rglob("*.batches"):
        path.unlink()
    with open_log(folder, ManualClock(), {}) as log:
        topic = log.topic("t")
        stopped = [each.partition for each in topic.describe().partitions if each.problem]
        assert len(stopped) == 1
        with pytest.raises(WriteFailedError, match="staged file"):
            topic.append("k", "v", partition=stopped[0])
        topic.append("k", "v", partition=(stopped[0] + 1) % PARTITIONS)


def test_a_deleted_topic_takes_what_was_staged_along(folder: Path) -> None:
    with open_log(folder, ManualClock(), {}) as log:
        stage(log.topic("t"), sink_of(log), 0)
        log.delete_topic("t")
        assert list(folder.glob("staging/*")) == []


def test_the_time_of_the_append_is_that_of_the_unit_where_the_topic_says_so(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_log(tmp_path / "own", clock, {}) as log:
        topic = log.create_topic(
            "t", partitions=PARTITIONS, config={"message.timestamp.type": "LogAppendTime"}
        )
        stage(topic, sink_of(log), 0)
        clock.move(5_000)
        topic.append_staged("q", 0)
        assert {record.timestamp_ms for record in topic.read()} == {clock.now_ms()}


def gap_batches(start: int, offsets: list[int]) -> bytes:
    """Records at offsets of their own, and batches without any for what is between and before."""
    data = bytearray()
    for offset in offsets:
        if offset > start:
            data += b"".join(
                batch.empty_batch(first, min(offset - 1, first + 2**31 - 1), 0)
                for first in range(start, offset, 2**31)
            )
        data += batch.encode([NewRecord(key=b"%d" % offset, value=b"v")], base_offset=offset, now_ms=1)
        start = offset + 1
    return bytes(data)


def write_gaps(folder: Path, number: int, start: int, offsets: list[int]) -> None:
    with open_log(folder, ManualClock(), {}) as log:
        sink = sink_of(log)
        disk.make_folder(sink.folder)
        data = gap_batches(start, offsets)
        (sink.folder / f"{number}.batches").write_bytes(data)
        pieces = {0: [Piece(f"{number}.batches", 0, len(data))]}
        sink.propose(Unit(number=number, pieces=pieces, checked=True, starts={0: start}))
        assert log.topic("t").append_staged("q", number) in (0, len(offsets))


def offsets_of(folder: Path) -> list[int]:
    with open_log(folder, ManualClock(), {}) as log:
        return [record.offset for record in log.topic("t").read()]


def test_offsets_with_gaps_are_recovered_sealed_and_read(folder: Path) -> None:
    write_gaps(folder, 1, 0, [7, 8, 20])
    write_gaps(folder, 2, 21, [100, 2**33])
    assert offsets_of(folder) == [7, 8, 20, 100, 2**33]
    with open_log(folder, ManualClock(), {}) as log:
        topic = log.topic("t")
        assert topic.extents()[0].log_end == 2**33 + 1
        topic.seal()
        assert topic.append("k", "v", partition=0).offset == 2**33 + 1
        assert [each.offset for each in topic.read(start=9, partition=0)] == [
            *(20, 100, 2**33),
            2**33 + 1,
        ]


@pytest.mark.parametrize("step", STEPS)
def test_offsets_with_gaps_outlive_a_kill(folder: Path, step: str) -> None:
    write_gaps(folder, 1, 0, [7, 8, 20])
    assert killed_at(step, lambda: write_gaps(folder, 2, 21, [30, 35, 36])) or step == "staged.checked"
    write_gaps(folder, 2, 21, [30, 35, 36])
    write_gaps(folder, 3, 37, [40])
    assert offsets_of(folder) == [7, 8, 20, 30, 35, 36, 40]


@pytest.mark.parametrize("times", [1, 2, 3])
def test_offsets_with_gaps_are_finished_where_a_kill_left_them(folder: Path, times: int) -> None:
    assert killed_at("wal.written", lambda: write_gaps(folder, 1, 0, [7, 8, 20]), times=times)
    assert offsets_of(folder) == [7, 8, 20]


def test_a_unit_that_belongs_elsewhere_is_refused_and_nothing_happens(folder: Path) -> None:
    write_gaps(folder, 1, 0, [7])
    with pytest.raises(OffsetOutOfRangeError, match=r"belong at offset 5 .* log end is 8"):
        write_gaps(folder, 2, 5, [9])
    with open_log(folder, ManualClock(), {}) as log:
        assert log.topic("t").append("k", "v", partition=0).offset == 8


class TestSweep:
    DAY_MS = 86_400_000

    @staticmethod
    def age(folder: Path, now_ms: int) -> None:
        """Make everything in a folder, and the folder, a little older than two days."""
        for path in (*folder.rglob("*"), folder):
            os.utime(path, ns=(0, (now_ms - 2 * TestSweep.DAY_MS - 1) * 1_000_000))

    def test_a_write_that_was_killed_leaves_nothing(self, folder: Path, clock: ManualClock) -> None:
        with open_log(folder, clock) as log:
            killed = sink_of(log, f"job-{new_uuid().hex}")
            disk.make_folder(killed.folder)
            (killed.folder / "0.batches").write_bytes(b"staged")
            self.age(killed.folder, clock.now_ms() + 2 * self.DAY_MS)
            proposed = sink_of(log, f"job-{new_uuid().hex}")
            stage(log.topic("t"), proposed, 0)
            self.age(proposed.folder, clock.now_ms() + 2 * self.DAY_MS)
            log.run_retention()
            assert killed.folder.exists() and proposed.folder.exists()
            self.age(killed.folder, clock.now_ms())
            self.age(proposed.folder, clock.now_ms())
            log.run_retention()
            assert not (log.path / "staging").exists() or not any((log.path / "staging").iterdir())

    def test_what_may_go_on_is_kept(self, folder: Path, clock: ManualClock) -> None:
        with open_log(folder, clock) as log:
            topic, sink = log.topic("t"), sink_of(log)
            stage(topic, sink, 0)
            topic.append_staged("q", 0)
            (sink.folder / "orphan.batches").write_bytes(b"of a task that failed")
            stage(topic, sink, 1)
            self.age(sink.folder, clock.now_ms())
            log.run_retention()
            assert sink.committed == 0
            assert topic.append_staged("q", 1) == 60
            stage(topic, sink, 2)
            sink.withdraw()
            self.age(sink.folder, clock.now_ms())
            log.run_retention()
            assert [path.name for path in sink.folder.iterdir()] == ["committed.json"]

    def test_half_of_a_unit_in_the_log_keeps_the_other(self, folder: Path, clock: ManualClock) -> None:
        name = f"job-{new_uuid().hex}"

        def write() -> None:
            with open_log(folder, clock) as log:
                stage(log.topic("t"), sink_of(log, name), 0)
                log.topic("t").append_staged(name, 0)

        assert killed_at("staged.noted", write, times=2)
        with open_log(folder, clock) as log:
            self.age(sink_of(log, name).folder, clock.now_ms())
            log.run_retention()
            log.topic("t").append_staged(name, 0)
            assert units(log.topic("t")) == expected(0)

    def test_that_a_write_was_appended_is_remembered(self, folder: Path, clock: ManualClock) -> None:
        """Whoever was told that it failed may repeat it by its name."""
        name = f"job-{new_uuid().hex}"
        with open_log(folder, clock) as log:
            sink = sink_of(log, name)
            stage(log.topic("t"), sink, 0)
            log.topic("t").append_staged(name, 0)
            self.age(sink.folder, clock.now_ms())
            log.run_retention()
            assert not stage(log.topic("t"), sink, 0, attempt=1)
            assert log.topic("t").append_staged(name, 0) == 0

    def test_a_topic_that_is_being_written_to_is_left_alone(self, folder: Path, clock: ManualClock) -> None:
        with open_log(folder, clock) as log:
            sink = sink_of(log, f"job-{new_uuid().hex}")
            disk.make_folder(sink.folder)
            (sink.folder / "0.batches").write_bytes(b"staged")
            self.age(sink.folder, clock.now_ms())
            with log.lease_for_staging(log.topic("t").id):
                log.run_retention()
                assert (sink.folder / "0.batches").exists()
            log.run_retention()
            assert not sink.folder.exists()
