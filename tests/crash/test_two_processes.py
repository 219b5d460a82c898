"""One writer at a time: the second is told who the first is, and has the log at once when that one dies."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.crash import Children
from tests.support.crash_child import Job

import lastword
from lastword.errors import LockedError


def test_the_second_writer_is_told_who_the_first_is(children: Children, folder: Path) -> None:
    running = children.start(Job(folder=str(folder), run=1, role="hold"))
    assert running.read_until(lambda line: line[1] == "opened")
    with pytest.raises(LockedError) as refused:
        lastword.open(folder)
    assert f"process {running.pid} " in str(refused.value)
    assert "`crash_child.py`" in str(refused.value)
    # Reading needs no lock.
    with lastword.open(folder, read_only=True) as log:
        assert log.topics() == []
    running.kill()
    running.finish()
    with lastword.open(folder) as log:
        log.create_topic("events").append("key", "value")


def test_a_refused_writer_changes_nothing(children: Children, folder: Path) -> None:
    running = children.start(Job(folder=str(folder), run=1, role="hold"))
    assert running.read_until(lambda line: line[1] == "opened")
    before = sorted(folder.rglob("*"))
    for _ in range(2):
        with pytest.raises(LockedError, match=f"process {running.pid} "):
            lastword.open(folder)
    assert sorted(folder.rglob("*")) == before
    running.kill()
    running.finish()
