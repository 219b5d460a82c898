"""Leaving damage behind, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.support.logs import (
    Killed,
    WalFolder,
    fill,
    kill_at,
    no_hook,  # noqa: F401 - a fixture that every test uses
    numbered,
    offsets,
    one_batch,
    open_log,
    values,
    wal_path,
)

from lastword.errors import CorruptError
from lastword.log import Log
from lastword.wal import checkpoint as checkpoints
from lastword.wal import repair
from lastword.wal.repair import DamagedRange

SIZE = len(one_batch("0"))


def two_files(wal: WalFolder) -> None:
    """Offsets 0 to 4 in the first file, 5 to 9 in the second; 10 in the active one."""
    with wal.opened() as writer:
        for first in (0, 5):
            wal.fill(writer, first, first + 5)
            writer.roll()
        wal.fill(writer, 10, 11)


def inspect(wal: WalFolder, from_offset: int = 0) -> list[DamagedRange]:
    return repair.inspect(wal.folder, wal.checkpoint, from_offset=from_offset)


def skip(wal: WalFolder) -> None:
    repair.skip(wal.folder, wal.checkpoint, inspect(wal))


def rewrite(path: Path, change: Callable[[bytearray], object]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def set_byte(position: int, value: int) -> Callable[[bytearray], object]:
    return lambda data: data.__setitem__(position, value)


DAMAGE: dict[str, tuple[Callable[[Path], object], set[int]]] = {
    "a record's byte": (lambda path: rewrite(path, set_byte(2 * SIZE - 1, 0xFF)), {1}),
    "a batch's length": (lambda path: rewrite(path, set_byte(SIZE + 10, 0x7F)), {1}),
    "the magic byte": (lambda path: rewrite(path, set_byte(SIZE + 16, 9)), {1}),
    "a base offset too high": (lambda path: rewrite(path, set_byte(SIZE + 7, 3)), {1}),
    "a base offset too low": (lambda path: rewrite(path, set_byte(2 * SIZE + 7, 0)), {2}),
    "the first batch": (lambda path: rewrite(path, set_byte(SIZE - 1, 0xFF)), {0}),
    "the last batch": (lambda path: rewrite(path, set_byte(5 * SIZE - 1, 0xFF)), {4}),
    "two places": (
        lambda path: rewrite(
            path, lambda data: (set_byte(SIZE - 1, 0xFF)(data), set_byte(3 * SIZE, 9)(data))
        ),
        {0, 3},
    ),
    "zeros over a batch and a half": (
        lambda path: rewrite(
            path, lambda data: data.__setitem__(slice(SIZE, SIZE * 5 // 2), bytes(SIZE * 3 // 2))
        ),
        {1, 2},
    ),
    "bytes that are missing in the middle": (
        lambda path: rewrite(path, lambda data: data.__delitem__(slice(SIZE, SIZE + 9))),
        {1},
    ),
    "a whole batch that is missing in the middle": (
        lambda path: rewrite(path, lambda data: data.__delitem__(slice(SIZE, 2 * SIZE))),
        {1},
    ),
    "truncated in a batch": (lambda path: os.truncate(path, 3 * SIZE + 7), {3, 4}),
    "truncated between batches": (lambda path: os.truncate(path, 3 * SIZE), {3, 4}),
    "empty": (lambda path: os.truncate(path, 0), {0, 1, 2, 3, 4}),
    "missing": (Path.unlink, {0, 1, 2, 3, 4}),
}


@pytest.mark.parametrize("name", DAMAGE)
class TestDamage:
    def test_it_is_shown_with_the_offsets_that_are_lost(self, wal: WalFolder, name: str) -> None:
        two_files(wal)
        damage, lost = DAMAGE[name]
        damage(wal.path(1))

        found = inspect(wal)

        assert {offset for each in found for offset in range(each.first_offset, each.end_offset)} == lost
        assert all(each.path == wal.path(1) and each.problem for each in found)

    def test_skipping_keeps_everything_else(self, wal: WalFolder, name: str) -> None:
        two_files(wal)
        damage, lost = DAMAGE[name]
        damage(wal.path(1))

        skip(wal)

        assert wal.read() == [each for each in numbered(0, 11) if each[0] not in lost]
        for offset in range(11):
            assert wal.read(offset) == [each for each in numbered(offset, 11) if each[0] not in lost]

    def test_it_is_done_once(self, wal: WalFolder, name: str) -> None:
        two_files(wal)
        DAMAGE[name][0](wal.path(1))
        skip(wal)
        before = wal.checkpoint, wal.aside

        assert inspect(wal) == []
        skip(wal)

        assert (wal.checkpoint, wal.aside) == before

    def test_the_damaged_file_is_kept_aside(self, wal: WalFolder, name: str) -> None:
        two_files(wal)
        DAMAGE[name][0](wal.path(1))
        damaged = wal.path(1).read_bytes() if wal.path(1).exists() else None

        skip(wal)

        if damaged is None:
            assert wal.aside == []
        else:
            assert (wal.folder / "aside" / "wal.0000000001.log.damaged").read_bytes() == damaged


def test_a_whole_wal_has_no_damage_and_is_never_read_at_once(
    wal: WalFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_files(wal)
    read: list[str] = []
    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path.suffix) or real(path))

    assert inspect(wal) == []
    assert ".log" not in read


def test_what_is_sealed_is_not_looked_at(wal: WalFolder) -> None:
    two_files(wal)
    wal.path(1).unlink()

    assert inspect(wal, from_offset=5) == []
    assert [each.end_offset for each in inspect(wal, from_offset=4)] == [5]


def test_a_hole_before_the_first_file(wal: WalFolder) -> None:
    two_files(wal)
    saved = wal.checkpoint
    checkpoints.save_writer(wal.folder, replace(saved, files=saved.files[1:]))
    wal.path(1).unlink()

    (hole,) = inspect(wal, from_offset=2)
    assert (hole.is_hole, hole.first_offset, hole.end_offset) == (True, 2, 5)
    repair.skip(wal.folder, wal.checkpoint, [hole])

    assert inspect(wal, from_offset=2) == []
    assert wal.read(2) == numbered(5, 11)
    with wal.opened() as writer:
        writer.roll()
        wal.fill(writer, 11, 12)
    assert wal.read(2) == numbered(5, 12)


@pytest.mark.parametrize("step", ["wal.repair.written", "wal.repair.replaced", "wal.repair.noted"])
def test_a_repair_that_is_killed_is_done_again(wal: WalFolder, step: str) -> None:
    two_files(wal)
    wal.flip(1, 2 * SIZE - 1)
    kill_at(step)
    with pytest.raises(Killed):
        skip(wal)
    skip(wal)

    assert inspect(wal) == []
    assert [offset for offset, _ in wal.read()] == [0, *range(2, 11)]


class TestInALog:
    def damaged(self, log: Log) -> None:
        topic = log.create_topic("t")
        for first in (0, 5):
            fill(topic, first, first + 5)
            topic.partition(0).writer.roll()
        path = wal_path(topic) / "wal.0000000001.log"
        size = path.stat().st_size // 5
        rewrite(path, set_byte(2 * size - 1, 0xFF))

    def test_sealing_stops_at_it_and_goes_on_when_it_is_left_behind(self, log: Log) -> None:
        self.damaged(log)
        topic = log.topic("t")

        report = topic.seal()
        assert [partition for partition, _ in report.problems] == [0]
        assert "wal repair" in report.problems[0][1]
        assert topic.describe().partitions[0].sealed_end == 0
        fill(topic, 10, 12)
        with pytest.raises(CorruptError):
            list(topic.read())
        assert values(topic.read(2)) == list(range(2, 12))

        ((partition, damage),) = topic.wal_damage()
        assert (partition, damage.first_offset, damage.end_offset) == (0, 1, 2)
        assert topic.skip_wal_damage() == [(partition, damage)]
        assert topic.wal_damage() == []
        assert topic.skip_wal_damage() == []

        fill(topic, 12, 13)
        kept = [0, *range(2, 13)]
        assert values(topic.read()) == kept
        assert topic.seal().problems == ()
        assert offsets(topic.read()) == kept
        assert topic.describe().partitions[0].sealed_end == 13

    def test_the_other_partitions_go_on(self, log: Log) -> None:
        topic = log.create_topic("t", partitions=2)
        fill(topic, 0, 3, partition=0)
        fill(topic, 0, 3, partition=1)
        assert topic.roll(due_only=False) == []
        path = wal_path(topic, 0) / "wal.0000000001.log"
        rewrite(path, set_byte(40, 0xFF))

        report = topic.seal()

        assert [partition for partition, _ in report.problems] == [0]
        assert [each.sealed_end for each in topic.describe().partitions] == [0, 3]

    def test_a_file_with_every_record_lost_is_sealed_over(self, tmp_path: Path, clock: ManualClock) -> None:
        with open_log(tmp_path / "d", clock, {"local.retention.ms": 0}) as log:
            topic = log.create_topic("t")
            fill(topic, 0, 3)
            topic.partition(0).writer.roll()
            (wal_path(topic) / "wal.0000000001.log").unlink()
            assert topic.seal().problems
            topic.skip_wal_damage()
            assert topic.seal().problems == ()
            # Neither the table nor the WAL has these offsets now, and a read passes over them.
            log.run_retention()
            fill(topic, 3, 4)
            assert values(topic.read()) == [3]
            assert topic.extents()[0].log_start == 0
