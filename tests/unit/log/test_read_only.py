"""A log that is opened for reading changes nothing on disk, and needs no right to."""

from __future__ import annotations

import os
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
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

import lastword
from lastword.errors import InvalidError
from lastword.operations import describing, topics, wal

NOBODY = 65534


def read(folder: Path) -> tuple[list[int], int]:
    with lastword.open(folder, read_only=True) as log:
        topic = log.topic("kept")
        return values(topic.read()), len(topic.state())


def as_nobody(work: Callable[[], object]) -> str:
    """Do something in a child that may write nothing of what is here; what it returned, or its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            result = repr(work())
        except BaseException:  # noqa: BLE001
            result = traceback.format_exc()
        os.write(writing, result.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as stream:
        told = stream.read()
    os.waitpid(child, 0)
    return told


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and folder but those of leases: when it was changed, and what is in it."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
        if "leases" not in path.parts
    }


@pytest.fixture
def folder(tmp_path: Path, clock: ManualClock) -> Path:
    """One topic that stays, and what is left of creations and deletions that were killed at all kinds of steps."""
    path = tmp_path / "d"
    log = open_log(path, clock)
    fill(log.create_topic("kept"), 0, 3)
    log.topic("kept").seal()
    fill(log.topic("kept"), 3, 4)
    for name, step in (("noted", "topic.deletion.noted"), ("marked", "topic.deletion.marked")):
        fill(log.create_topic(name), 0, 1)
        log.topic(name).seal()
        kill_at(step)
        with pytest.raises(Killed):
            log.delete_topic(name)
    kill_at("create.before")
    with pytest.raises(Killed):
        log.create_topic("half")
    abandon(log)
    for kind in ("deleting", "creating"):
        (path / kind / "0123.tmp").write_text("a note that was never whole")
    return path


def test_it_changes_nothing(folder: Path, clock: ManualClock) -> None:
    before = everything(folder)
    with open_log(folder, clock, read_only=True) as log:
        assert log.topics() == ["kept", "noted"]
        topic = log.topic("kept")
        assert values(topic.read()) == [0, 1, 2, 3]
        assert len(topic.state()) == 4
        topic.history()
        topics.list_topics(log)
        describing.describe_topic(log, "kept")
        wal.show_wal(log, None)
        log.plan_compaction(asked_for=True)
        log.run_retention(dry_run=True)
        log.explain_config("kept")
    assert everything(folder) == before
    open_log(folder, clock).close()
    assert everything(folder) != before


def test_it_creates_no_catalog(tmp_path: Path, clock: ManualClock) -> None:
    open_log(tmp_path / "d", clock).close()
    (tmp_path / "d" / "catalog.db").unlink()
    before = everything(tmp_path / "d")
    with pytest.raises(InvalidError, match="There is no catalog"):
        open_log(tmp_path / "d", clock, read_only=True)
    assert everything(tmp_path / "d") == before


@pytest.fixture
def place_for_all() -> Iterator[Path]:
    """A folder that everybody may look into."""
    path = Path(tempfile.mkdtemp(prefix="lastword-test-"))
    path.chmod(0o755)
    yield path
    for each in (path, *path.rglob("*")):
        if each.is_dir():
            each.chmod(0o755)
    shutil.rmtree(path)


def test_it_reads_where_nothing_may_be_written(place_for_all: Path) -> None:
    folder = place_for_all / "d"
    with lastword.open(folder) as log:
        topic = log.create_topic("kept")
        fill(topic, 0, 3)
        topic.seal()
        fill(topic, 3, 4)
    # What is imported late is imported by now: the child can't do it.
    assert read(folder) == ([0, 1, 2, 3], 4)
    shutil.rmtree(folder / "leases")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = everything(folder)

    assert as_nobody(lambda: read(folder)) == "([0, 1, 2, 3], 4)"

    assert everything(folder) == before
    assert not (folder / "leases").exists()
