"""A backup of a log, and the log that is made of it: the same records at the same offsets, and nothing shared."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.support.compacted import INLINE_CONFIG
from tests.support.logs import Killed, fill, kill_at, no_hook, open_log, values, wal_seqs
from tests.support.marks import commit_foreign_deletes, mark_offsets
from tests.support.other_engines import ENGINES, read_by

import lastword
from lastword.errors import (
    CorruptError,
    InvalidError,
    LockedError,
    TopicExistsError,
    UnavailableError,
)
from lastword.folder import steps
from lastword.log import Log
from lastword.reading.topic_reader import committed_positions
from lastword.record import Record
from lastword.segments.catalog import sqlite_properties

assert no_hook
CLOUD_FIRST = {**INLINE_CONFIG, "local.retention.ms": 0}


@pytest.fixture
def to(tmp_path: Path) -> Path:
    return tmp_path / "backups"


def reopened(tmp_path: Path, clock: ManualClock, to: Path, name: str = "restored", **options: object) -> Log:
    lastword.restore(to, tmp_path / name, clock=clock, **options)  # type: ignore[arg-type]
    return open_log(tmp_path / name, clock)


def content(log: Log, topic: str = "t") -> list[Record]:
    return list(log.topic(topic).read())


def files_of(place: Path) -> set[str]:
    return {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}


def at_step(step: str, act: object) -> None:
    """Do something the first time that a step is reached."""

    def hook(name: str) -> None:
        if name == step:
            steps.install(None)
            act()  # type: ignore[operator]

    steps.install(hook)


# ------------------------------------------------------------------------------------------------- the whole


def test_sealed_and_unsealed_records_come_back_at_their_offsets(
    tmp_path: Path, clock: ManualClock, to: Path
) -> None:
    with open_log(tmp_path / "data", clock, INLINE_CONFIG) as log:
        topic = log.create_topic(
            "t", partitions=2, config={"cleanup.policy": "compact", "segment.bytes": 2000}
        )
        fill(topic, 0, 20)
        topic.append(None, "null key", headers=(("h", b"1"),), partition=1)
        topic.append("k3", None, partition=0)
        topic.seal()
        log.compact(["t"], asked_for=True)
        fill(topic, 20, 25, partition=1)
        fill(topic, 25, 30)
        before, described = content(log), topic.describe()
        state = topic.state().to_pylist()
        report = log.backup(to)
        assert report.problems == () and report.copied_files == len(report.backup.topics[0].pieces) > 0
    with reopened(tmp_path, clock, to) as restored:
        assert content(restored) == before
        assert restored.topic("t").state().to_pylist() == state
        again = restored.topic("t").describe()
        assert restored.topic("t").id == topic.id and restored.topic("t").config == topic.config
        for old, new in zip(described.partitions, again.partitions, strict=True):
            assert (new.log_start, new.first_dirty, new.sealed_end, new.log_end) == (
                old.log_start,
                old.first_dirty,
                old.sealed_end,
                old.log_end,
            )
        assert restored.topic("t").append("new", "one", partition=0).offset == described.partitions[0].log_end
        assert restored.topic("t").seal().problems == ()
        restored.compact(["t"], asked_for=True)


def test_marked_rows_stay_gone_for_every_engine(tmp_path: Path, clock: ManualClock, to: Path) -> None:
    with open_log(tmp_path / "data", clock, CLOUD_FIRST) as log:
        topic = log.create_topic("t")
        for first in (0, 10, 20):
            fill(topic, first, first + 10)
            topic.seal()
        mark_offsets(topic.table, [1, 2, 11])
        log.backup(to)
        mark_offsets(topic.table, [3])
        first, second, third = topic.table.plan(topic.table.snapshot())
        # Another engine's marks, in one file for two segments.
        commit_foreign_deletes(topic.table, [{second.path: [5], third.path: [9, 0]}])
        before = content(log)
        gone = {1, 2, 3, 11, 15, 20, 29}
        assert [each.offset for each in before] == [each for each in range(30) if each not in gone]
        report = log.backup(to)
        # The data files are there already.
        assert report.copied_files == 2
    shutil.move(tmp_path / "data", tmp_path / "away")
    with reopened(tmp_path, clock, to) as restored:
        assert content(restored) == before
        properties = sqlite_properties(restored.path / "catalog.db")
        for engine in ENGINES:
            assert read_by(engine, properties, "t") == [(0, each.offset) for each in before], engine
        assert [path for path in files_of(restored.path) if "foreign" in path] == []
    saved = json.loads(next(path for path in to.rglob("*.json")).read_text())
    assert saved["lastword.backup"] == 2


def test_the_positions_come_along_with_all_that_compaction_remembers(
    tmp_path: Path, clock: ManualClock, to: Path
) -> None:
    with open_log(tmp_path / "data", clock, INLINE_CONFIG) as log:
        own = {"cleanup.policy": "compact", "compaction.strategy": "timestamp"}
        topic = log.create_topic("t", config=own)
        fill(topic, 0, 5)
        topic.append("k1", None)
        topic.seal()
        log.compact(["t"], asked_for=True)
        positions = topic.history()[-1].positions
        assert positions[0].deadlines and positions[0].runs
        log.backup(to)
    with reopened(tmp_path, clock, to) as restored:
        assert restored.topic("t").history()[-1].positions == positions


def test_many_commits_while_it_is_copied(tmp_path: Path, clock: ManualClock, to: Path) -> None:
    with open_log(tmp_path / "data", clock, INLINE_CONFIG) as log:
        topic = log.create_topic("t")
        other = log.create_topic("u")
        other.append(b"a", b"b")
        other.seal()
        fill(topic, 0, 20)
        topic.seal()

        def an_hour() -> None:
            for number in range(20, 32):
                clock.move(300_000)
                fill(topic, number, number + 1)
                topic.seal()
                log.run_retention()

        at_step("backup.pinned", an_hour)
        log.backup(to)
    with reopened(tmp_path, clock, to) as restored:
        assert values(content(restored))[:20] == list(range(20))
        assert restored.topics() == ["t", "u"]


def test_cloud_first_nothing_is_in_neither(tmp_path: Path, clock: ManualClock, to: Path) -> None:
    """Sealed and deleted between the look at the WAL and the pin: the snapshot has it."""
    with open_log(tmp_path / "data", clock, CLOUD_FIRST) as log:
        topic = log.create_topic("t", config={"segment.bytes": 200})
        fill(topic, 0, 10)
        assert len(wal_seqs(topic)) > 3

        def seal_and_delete() -> None:
            topic.seal()
            log.run_retention()
            fill(topic, 10, 12)

        at_step("backup.wal.copied", seal_and_delete)
        report = log.backup(to)
        assert report.problems == ()
        assert len(wal_seqs(topic)) == 1
    with reopened(tmp_path, clock, to) as restored:
        assert values(content(restored)) == list(range(10))
        fill(restored.topic("t"), 10, 15)
        assert restored.topic("t").seal().problems == ()
        restored.run_retention()
        assert values(content(restored)) == list(range(15))


def test_records_that_were_sealed_after_the_copy_of_the_wal(
    tmp_path: Path, clock: ManualClock, to: Path
) -> None:
    with open_log(tmp_path / "data", clock, CLOUD_FIRST) as log:
        topic = log.create_topic("t")
        fill(topic, 0, 5)

        def go_on() -> None:
            fill(topic, 5, 8)
            topic.seal()

        at_step("backup.wals.copied", go_on)
        report = log.backup(to)
        assert report.backup.topics[0].wals[0].files == ()
    with reopened(tmp_path, clock, to) as restored:
        assert values(content(restored)) == list(range(8))
        assert restored.topic("t").append("k", "v").offset == 8


def test_a_partition_that_is_reopened_under_the_copy_loses_nothing(
    tmp_path: Path, clock: ManualClock, to: Path
) -> None:
    with open_log(tmp_path / "data", clock) as log:
        topic = log.create_topic("t")
        fill(topic, 0, 5)

        def fail_and_reopen() -> None:
            with topic.partition(0).writer._changed:
                topic.partition(0).writer._active.fail("write to", OSError("no more"))
            topic.reopen_partition(0)

        # The file that is being looked at goes aside, and another one takes its place.
        at_step("backup.belongings.read", lambda: at_step("backup.wal.looked", fail_and_reopen))
        report = log.backup(to)
        assert report.problems == ()
    with reopened(tmp_path, clock, to) as restored:
        assert values(content(restored)) == list(range(5))


def test_a_log_that_was_killed_is_copied_up_to_what_it_has_acknowledged(
    tmp_path: Path, clock: ManualClock, to: Path
) -> None:
    with open_log(tmp_path / "data", clock) as log:
        topic = log.create_topic("t")
        fill(topic, 0, 5)
        active = next(topic.partition(0).folder.glob("wal.*.log"))
        with active.open("ab") as file:
            file.write(active.read_bytes()[:50])
        with open_log(tmp_path / "data", clock, read_only=True) as beside:
            beside.backup(to)
    with reopened(tmp_path, clock, to) as restored:
        assert values(content(restored)) == list(range(5))


# ------------------------------------------------------------------------------------------------ incremental


def test_a_second_run_copies_only_what_is_new(tmp_path: Path, clock: ManualClock, to: Path) -> None:
    with open_log(tmp_path / "data", clock) as log:
        topic = log.create_topic("t")
        for first in (0, 10, 20):
            fill(topic, first, first + 10)
            topic.seal()
        first_run = log.backup(to)
        assert (first_run.copied_files, first_run.reused_files) == (3, 0)
        clock.move(1000)
        fill(topic, 30, 40)
        topic.seal()
        second = log.backup(to)
        assert (second.copied_files, second.reused_files) == (1, 3)
        clock.move(-10_000)
        third = log.backup(to)
        assert (third.copied_files, third.reused_files) == (0, 4)
        # Newer ones come last, also after the clock was put back.
        manifests, problems = lastword.backups(to)
        assert [each.id for each in manifests] == [
            first_run.backup.id,
            second.backup.id,
            third.backup.id,
        ] and problems == []
    with reopened(tmp_path, clock, to, "old", backup=first_run.backup.id) as old:
        assert values(content(old)) == list(range(30))
    with reopened(tmp_path, clock, to, "new") as new:
        assert values(content(new)) == list(range(40))


def test_files_that_the_place_has_lost_are_copied_again(tmp_path: Path, clock: ManualClock, to: Path) -> None:
    with open_log(tmp_path / "data", clock) as log:
        topic = log.create_topic("t", config={"segment.bytes": 200})
        fill(topic, 0, 5)
        topic.seal()
        fill(topic, 5, 10)
        log.backup(to)
        clock.move(1000)
        next(to.glob("data/**/*.parquet")).unlink()
        rolled = sorted(to.glob("wal/**/*.log"))[0]
        rolled.write_bytes(rolled.read_bytes()[:-1])
        log.backup(to)
    with reopened(tmp_path, clock, to) as restored:
        assert values(content(restored)) == list(range(10))


def test_keep_removes_older_backups_and_files_that_none_names(
    tmp_path: Path, clock: ManualClock, to: Path
) -> None:
    config = {**INLINE_CONFIG, "snapshot.retention.ms": 1}
    with open_log(tmp_path / "data", clock, config) as log:
        topic = log.create_topic("t", config={"cleanup.policy": "compact"})
        for _ in range(4):
            clock.move(10_000)
            for _ in range(10):
                topic.append("k", "v" * 100)
            topic.seal()
            log.compact(["t"], force=True)
            report = log.backup(to, keep=2)
        assert len(report.removed_backups) == 1 and report.removed_files > 0
        assert len(list((to / "backups").iterdir())) == 2
        named = {piece.path for each in lastword.backups(to)[0] for piece in each.pieces()}
        assert {each for each in files_of(to) if not each.startswith("backups/")} == named
        kept = [each.id for each in lastword.backups(to)[0]]
        before = content(log)
    with reopened(tmp_path, clock, to) as restored:
        assert content(restored) == before
    with reopened(tmp_path, clock, to, "older", backup=kept[0]) as older:
        assert [record.key for record in content(older)] == [b"k"]
    with open_log(tmp_path / "data", clock, config) as log, pytest.raises(InvalidError, match="at least 1"):
        log.backup(to, keep=0)


def test_one_backup_at_a_time(tmp_path: Path, clock: ManualClock, to: Path) -> None:
    with open_log(tmp_path / "data", clock) as log:
        log.create_topic("t").append("k", "v")

        def another() -> None:
            with pytest.raises(LockedError, match="is its backup"):
                log.backup(to)

        at_step("backup.pinned", another)
        log.backup(to)


def test_an_asker_that_has_gone_away_leaves_earlier_backups_as_they_were(
    tmp_path: Path, clock: ManualClock, to: Path
) -> None:
    with open_log(tmp_path / "data", clock) as log:
        topic = log.create_topic("t")
        fill(topic, 0, 5)
        topic.seal()
        first = log.backup(to).backup.id
        fill(topic, 5, 9)
        with pytest.raises(UnavailableError, match="cancelled"):
            log.backup(to, stop=lambda: True)
        assert [each.id for each in lastword.backups(to)[0]] == [first]


# ------------------------------------------------------------------------------------------------ nothing shared


def test_nothing_that_is_done_to_the_restored_log_touches_the_original(
    tmp_path: Path, clock: ManualClock, to: Path
) -> None:
    with open_log(tmp_path / "data", clock) as log:
        topic = log.create_topic("t")
        fill(topic, 0, 10)
        topic.seal()
        fill(topic, 10, 12)
        log.backup(to)
    untouched = files_of(tmp_path / "data")
    with reopened(tmp_path, clock, to) as restored:
        restored.delete_topic("t")
        restored.create_topic("t").append("k", "v")
    assert files_of(tmp_path / "data") - {"locks/writer.lock"} == untouched - {"locks/writer.lock"}
    with open_log(tmp_path / "data", clock) as log:
        assert values(content(log)) == list(range(12))
    with reopened(tmp_path, clock, to, "again") as again:
        assert values(content(again)) == list(range(12))


def test_a_restored_log_does_not_need_the_original(tmp_path: Path, clock: ManualClock, to: Path) -> None:
    with open_log(tmp_path / "data", clock) as log:
        fill(log.create_topic("ns.t", partitions=3), 0, 10)
        log.topic("ns.t").seal()
        log.backup(to)
    shutil.rmtree(tmp_path / "data")
    moved = tmp_path / "elsewhere"
    shutil.move(to, moved)
    with reopened(tmp_path, clock, moved) as restored:
        assert values(content(restored, "ns.t")) == list(range(10))


def test_leader_epochs_are_above_any_that_were_and_offsets_below_the_end_keep_theirs(
    tmp_path: Path, clock: ManualClock, to: Path
) -> None:
    with open_log(tmp_path / "data", clock) as log:
        topic = log.create_topic("t", partitions=2)
        fill(topic, 0, 5)
        log.backup(to)
        [epochs, idle] = [each.writer.epochs for each in topic.all_partitions()]
    with reopened(tmp_path, clock, to) as restored:
        [now, now_idle] = [each.writer.epochs for each in restored.topic("t").all_partitions()]
        assert now[:-1] == epochs and now[-1][0] > epochs[-1][0] + 100 and now[-1][1] == 5
        assert now_idle[-1][0] > idle[-1][0] + 100
        # Sealing takes them into the table.
        fill(restored.topic("t"), 5, 6)
        restored.topic("t").seal()
        assert restored.topic("t").history()[-1].positions[0].epochs == now


def test_readers_stay_where_they_were(tmp_path: Path, clock: ManualClock, to: Path) -> None:
    with open_log(tmp_path / "data", clock) as log:
        topic = log.create_topic("t")
        fill(topic, 0, 10)
        with topic.reader("r") as reader:
            reader.poll(max_records=4)
            reader.commit()
        seen_ms = clock.now_ms()
        clock.move(60_000)

        # What is committed while it is copied is of records that may not be in it.
        def commit_more() -> None:
            fill(topic, 10, 20)
            with topic.reader("r") as reader:
                while reader.poll():
                    reader.commit()

        at_step("backup.belongings.read", commit_more)
        log.backup(to)
    with reopened(tmp_path, clock, to) as restored:
        # When it was last there counts for what is kept for it.
        [position] = committed_positions(restored.path, topic.id.hex)
        assert (position.position, position.active_ms) == (4, seen_ms)
        with restored.topic("t").reader("r") as reader:
            assert values(reader.poll())[0] == 4


# ------------------------------------------------------------------------------------------------ what is wrong


def test_a_target_that_is_not_empty_is_refused(tmp_path: Path, clock: ManualClock, to: Path) -> None:
    with open_log(tmp_path / "data", clock) as log:
        log.create_topic("t").append("k", "v")
        log.backup(to)
    with pytest.raises(InvalidError, match=r"is not empty \(.* is there\)"):
        lastword.restore(to, tmp_path / "data", clock=clock)
    with pytest.raises(InvalidError, match="no backup in"):
        lastword.restore(tmp_path / "nothing", tmp_path / "r", clock=clock)
    with pytest.raises(InvalidError, match=r"no backup 'x' in .* Backups there: 2"):
        lastword.restore(to, tmp_path / "r", backup="x", clock=clock)
    assert not (tmp_path / "r").exists()


@pytest.fixture
def two_files(tmp_path: Path, clock: ManualClock, to: Path) -> Iterator[list[Path]]:
    with open_log(tmp_path / "data", clock) as log:
        topic = log.create_topic("t")
        fill(topic, 0, 5)
        topic.seal()
        fill(topic, 5, 9)
        log.backup(to)
    yield [next(to.glob("data/**/*.parquet")), next(to.glob("wal/**/*.log"))]


@pytest.mark.parametrize("which", [0, 1])
def test_a_file_that_is_missing_or_cut_is_named_before_anything_is_restored(
    tmp_path: Path, clock: ManualClock, to: Path, two_files: list[Path], which: int
) -> None:
    damaged = two_files[which]
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1])
    with pytest.raises(CorruptError, match=f"{damaged.name} has .* bytes instead of"):
        lastword.restore(to, tmp_path / "r", clock=clock)
    damaged.unlink()
    with pytest.raises(CorruptError, match=f"{damaged.name} is missing"):
        lastword.restore(to, tmp_path / "r", clock=clock)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("which", [0, 1])
def test_a_file_that_is_damaged_leaves_a_restore_that_can_not_be_opened(
    tmp_path: Path, clock: ManualClock, to: Path, two_files: list[Path], which: int
) -> None:
    damaged = two_files[which]
    whole = damaged.read_bytes()
    damaged.write_bytes(b"x" + whole[1:])
    with pytest.raises(CorruptError, match=f"{damaged.name} is damaged: its checksum is wrong"):
        lastword.restore(to, tmp_path / "r", clock=clock)
    with pytest.raises(InvalidError, match="unfinished restore"):
        open_log(tmp_path / "r", clock)
    damaged.write_bytes(whole)
    with reopened(tmp_path, clock, to, "r") as restored:
        assert values(content(restored)) == list(range(9))


def test_a_damaged_manifest_is_told_and_nothing_beside_it_is_removed(
    tmp_path: Path, clock: ManualClock, to: Path
) -> None:
    with open_log(tmp_path / "data", clock) as log:
        topic = log.create_topic("t")
        fill(topic, 0, 5)
        topic.seal()
        first = log.backup(to).backup.id
        manifest = to / "backups" / f"{first}.json"
        text = json.loads(manifest.read_text())
        text["manifest"]["folder"] = "/another"
        manifest.write_text(json.dumps(text))
        clock.move(1000)
        report = log.backup(to, keep=1)
        assert report.removed_backups == () and "checksum" in report.problems[0]
    assert len(lastword.backups(to)[1]) == 1
    with pytest.raises(CorruptError, match="is damaged: its checksum is wrong"):
        lastword.restore(to, tmp_path / "r", backup=first, clock=clock)
    with reopened(tmp_path, clock, to) as restored:
        assert values(content(restored)) == list(range(5))


def test_a_topic_that_can_not_be_copied_is_named_and_the_others_are_there(
    tmp_path: Path, clock: ManualClock, to: Path
) -> None:
    with open_log(tmp_path / "data", clock) as log:
        for name in ("good", "lost"):
            topic = log.create_topic(name)
            fill(topic, 0, 5)
        next(topic.partition(0).folder.glob("wal.*.log")).unlink()
        report = log.backup(to)
        assert [each.info.name for each in report.backup.topics] == ["good"]
        assert "topic 'lost' is not in the backup: No WAL file" in report.problems[0]
        # No older backup goes for one that lacks a topic.
        clock.move(1000)
        assert log.backup(to, keep=1).removed_backups == ()
    with reopened(tmp_path, clock, to) as restored:
        assert restored.topics() == ["good"]


def test_a_topic_that_is_deleted_meanwhile_is_not_in_it(tmp_path: Path, clock: ManualClock, to: Path) -> None:
    with open_log(tmp_path / "data", clock) as log:
        for name in ("a", "b"):
            fill(log.create_topic(name), 0, 5)
            log.topic(name).seal()
        at_step("backup.pinned", lambda: log.delete_topic("b"))
        report = log.backup(to)
        assert report.problems == () and [each.info.name for each in report.backup.topics] == ["a"]


def test_an_erasure_under_the_copy_is_in_the_backup(tmp_path: Path, clock: ManualClock, to: Path) -> None:
    with open_log(tmp_path / "data", clock, INLINE_CONFIG) as log:
        topic = log.create_topic("t", config={"cleanup.policy": "compact"})
        fill(topic, 0, 5)
        topic.seal()
        fill(topic, 5, 8)
        at_step("backup.pinned", lambda: log.erase("t", [b"k3", b"k6"]))
        assert log.backup(to).problems == ()
        log.backup(to, keep=1)
    assert [each for each in files_of(to) if b"k3" in (to / each).read_bytes()] == []
    with reopened(tmp_path, clock, to) as restored:
        assert values(content(restored)) == [0, 1, 2, 4, 5, 7]


def test_an_erasure_that_is_not_done_goes_on_in_the_restored_log(
    tmp_path: Path, clock: ManualClock, to: Path
) -> None:
    with open_log(tmp_path / "data", clock, INLINE_CONFIG) as log:
        topic = log.create_topic("t", config={"cleanup.policy": "compact"})
        fill(topic, 0, 5)
        kill_at("erase.noted")
        with pytest.raises(Killed):
            log.erase("t", [b"k3"])
        log.backup(to)
    lastword.restore(to, tmp_path / "restored", clock=clock)
    with open_log(tmp_path / "restored", clock, INLINE_CONFIG) as restored:
        fill(restored.topic("t"), 3, 4)
        restored.finish_erasures()
        # What was appended since is not what was to be erased.
        assert values(content(restored)) == [0, 1, 2, 4, 3]
        assert list((restored.path / "erasing").iterdir()) == []


def test_a_place_belongs_to_one_log(tmp_path: Path, clock: ManualClock, to: Path) -> None:
    for name in ("one", "two"):
        with open_log(tmp_path / name, clock) as log:
            log.create_topic("t").append("k", "v")
            if name == "one":
                log.backup(to)
            else:
                with pytest.raises(InvalidError, match=f"backups of another log, {tmp_path / 'one'} on"):
                    log.backup(to)


# ------------------------------------------------------------------------------------------------ settings


def test_two_logs_that_begin_at_a_new_place_at_once(tmp_path: Path, clock: ManualClock, to: Path) -> None:
    with open_log(tmp_path / "one", clock) as one, open_log(tmp_path / "two", clock) as two:
        for log in (one, two):
            log.create_topic("t").append("k", log.path.name)
            log.topic("t").seal()
        at_step("backup.copied", lambda: two.backup(to))
        with pytest.raises(InvalidError, match=f"backups of another log, {tmp_path / 'two'} on"):
            one.backup(to)
    with reopened(tmp_path, clock, to) as log:
        assert [record.value for record in content(log)] == [b"two"]


@pytest.mark.parametrize("path", ["data/photos/cat.jpg", "wal/notes", "wal/default/t/0/1.log"])
def test_a_folder_with_files_of_others_is_refused_and_left_alone(
    tmp_path: Path, clock: ManualClock, to: Path, path: str
) -> None:
    (to / path).parent.mkdir(parents=True)
    (to / path).write_text("precious")
    with open_log(tmp_path / "log", clock) as log:
        log.create_topic("t").append("k", "v")
        with pytest.raises(InvalidError, match=f"in use by something else: {path} is there"):
            log.backup(to)
    assert files_of(to) == {path}


def test_the_settings_come_along_but_for_the_place_of_the_originals_tables(
    tmp_path: Path, clock: ManualClock, to: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "lastword.yaml").write_text(
        f"# ours\ncatalog:\n  uri: sqlite:///{tmp_path}/shared.db\n  type: sql\n  s3.region: us-east-1\n"
        f"warehouse: {tmp_path}/warehouse\nsegment.bytes: 12345\n"
    )
    with lastword.open(tmp_path / "data", clock=clock) as log:
        fill(log.create_topic("t"), 0, 5)
        log.topic("t").seal()
        log.backup(to)
    lastword.restore(to, tmp_path / "r", clock=clock, warehouse=str(tmp_path / "w2"))
    text = (tmp_path / "r" / "lastword.yaml").read_text()
    assert "shared.db" not in text and "s3.region" in text and "12345" in text
    with lastword.open(tmp_path / "r", clock=clock) as restored:
        assert restored.config.catalog == {"s3.region": "us-east-1"}
        assert values(content(restored)) == list(range(5))
        restored.delete_topic("t")
    with lastword.open(tmp_path / "data", clock=clock) as log:
        assert values(content(log)) == list(range(5))


def test_settings_without_places_are_kept_to_the_letter(tmp_path: Path, clock: ManualClock, to: Path) -> None:
    (tmp_path / "given.yaml").write_text("# why\nsegment.bytes: 12345  # because\n")
    with lastword.open(tmp_path / "data", config=tmp_path / "given.yaml", clock=clock) as log:
        log.create_topic("t").append("k", "v")
        log.backup(to)
    lastword.restore(to, tmp_path / "r", clock=clock)
    own = tmp_path / "r" / "lastword.yaml"
    assert own.read_text() == "# why\nsegment.bytes: 12345  # because\n"
    # There may be secrets in it.
    assert own.stat().st_mode & 0o077 == 0
    assert [path for path in to.rglob("*") if path.is_file() and path.stat().st_mode & 0o077] == []


def test_a_catalog_that_has_the_topic_and_a_warehouse_that_has_its_files_are_refused(
    tmp_path: Path, clock: ManualClock, to: Path
) -> None:
    shared = {
        "catalog": {"type": "sql", "uri": f"sqlite:///{tmp_path}/shared.db"},
        "warehouse": str(tmp_path / "w"),
    }
    with open_log(tmp_path / "data", clock, shared) as log:
        fill(log.create_topic("t"), 0, 5)
        log.topic("t").seal()
        log.backup(to)
    with pytest.raises(TopicExistsError, match="already has a topic 't'"):
        lastword.restore(to, tmp_path / "r", config=shared, clock=clock)
    shutil.rmtree(tmp_path / "r")
    for _ in range(2):
        # Also when it is asked for again: what was refused has begun nothing that could be resumed.
        with pytest.raises(InvalidError, match="of another log that has the topic 't'"):
            lastword.restore(to, tmp_path / "r", warehouse=str(tmp_path / "w"), clock=clock)
    with open_log(tmp_path / "data", clock, shared) as log:
        assert values(content(log)) == list(range(5))
