"""Backups and restores are killed at every step that they name, and done again.

A killed backup leaves the ones before it as they were, and the next run makes one of everything. A killed restore can't be
opened, and the next run makes it whole.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.support.compacted import INLINE_CONFIG
from tests.support.crash import named_steps
from tests.support.forks import killed_at
from tests.support.logs import fill, open_log, values

import lastword
from lastword.errors import InvalidError
from lastword.log import Log

BACKUP = [step for step in named_steps() if step.startswith(("backup.", "place."))]
RESTORE = [*(step for step in named_steps() if step.startswith("restore.")), "create.before", "create.done"]


def content(log: Log) -> dict[str, list[int]]:
    return {name: values(log.topic(name).read()) for name in log.topics()}


@pytest.fixture
def filled(folder: Path, clock: ManualClock) -> Path:
    """A log with a backup of its beginning."""
    with open_log(folder, clock, INLINE_CONFIG) as log:
        for name in ("a", "b"):
            topic = log.create_topic(name, partitions=2)
            fill(topic, 0, 5)
            topic.seal()
            fill(topic, 5, 8)
        log.backup(folder.with_name("backups"))
        clock.move(1000)
        for name in ("a", "b"):
            fill(log.topic(name), 8, 10, partition=1)
            log.topic(name).seal()
            fill(log.topic(name), 10, 12)
    clock.move(1000)
    return folder


def restored(folder: Path, clock: ManualClock, name: str, backup: str | None = None) -> dict[str, list[int]]:
    lastword.restore(folder.with_name("backups"), folder.with_name(name), backup=backup, clock=clock)
    with open_log(folder.with_name(name), clock) as log:
        found = content(log)
        for topic in log.topics():
            # It can be gone on with.
            log.topic(topic).append("k", "0")
            assert log.topic(topic).seal().problems == ()
        return found


@pytest.mark.parametrize("step", BACKUP)
def test_a_backup_that_was_killed(filled: Path, clock: ManualClock, step: str) -> None:
    place = filled.with_name("backups")

    def backup() -> None:
        with open_log(filled, clock, read_only=True) as log:
            log.backup(place, keep=1)

    assert killed_at(step, backup)
    [*_, newest] = [each.id for each in lastword.backups(place)[0]]
    is_made = step in ("backup.made", "backup.removed")
    expected = list(range(12)) if is_made else list(range(8))
    found = restored(filled, clock, "after the kill", newest)
    assert {name: sorted(each) for name, each in found.items()} == {"a": expected, "b": expected}
    clock.move(1000)
    with open_log(filled, clock, read_only=True) as log:
        report = log.backup(place, keep=1)
        assert report.problems == ()
    # Nothing is left of the killed one but what the new one uses.
    named = {piece.path for piece in report.backup.pieces()}
    there = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    assert there == {*named, f"backups/{report.backup.id}.json"}
    found = restored(filled, clock, "in the end")
    assert {name: sorted(each) for name, each in found.items()} == {
        "a": list(range(12)),
        "b": list(range(12)),
    }


def test_what_a_killed_backup_has_copied_is_not_copied_again(filled: Path, clock: ManualClock) -> None:
    place = filled.with_name("other")

    def backup() -> None:
        with open_log(filled, clock, read_only=True) as log:
            log.backup(place)

    assert killed_at("backup.copied", backup)
    with open_log(filled, clock, read_only=True) as log:
        report = log.backup(place)
    assert report.copied_files == 0 and report.reused_files == len(list(place.rglob("*.parquet")))
    lastword.restore(place, filled.with_name("restored"), clock=clock)


@pytest.mark.parametrize("step", RESTORE)
def test_a_restore_that_was_killed(filled: Path, clock: ManualClock, step: str) -> None:
    with open_log(filled, clock, read_only=True) as log:
        expected = content(log)
        log.backup(filled.with_name("backups"))
    target = filled.with_name("restored")

    def restore() -> None:
        lastword.restore(filled.with_name("backups"), target, clock=clock)

    assert killed_at(step, restore, times=2 if step in ("restore.table.created", "create.done") else 1)
    if step == "restore.made":
        with open_log(target, clock) as log:
            assert content(log) == expected
        return
    with pytest.raises(InvalidError, match="unfinished restore"):
        open_log(target, clock)
    with pytest.raises(InvalidError, match="unfinished restore of the backup"):
        oldest = lastword.backups(filled.with_name("backups"))[0][0].id
        lastword.restore(filled.with_name("backups"), target, backup=oldest, clock=clock)
    assert restored(filled, clock, "restored") == expected
