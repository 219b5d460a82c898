"""A disk whose n-th write or sync fails, for every n: what was acknowledged is kept, what was not is never shown."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import lastword
from lastword.errors import PartlyAppendedError, UnavailableError, WriteFailedError
from lastword.folder import disk, steps
from lastword.folder.problems import from_problem, to_problem
from lastword.record import NewRecord

CONFIG = {"segment.bytes": 700, "retention.ms": -1}


class Failing:
    """Replaces `disk.<call>`: the n-th call on files below a folder fails, and all later ones if it stays broken."""

    def __init__(self, call: str, folder: Path, n: int, *, stays_broken: bool = False) -> None:
        self.call = call
        self.folder = folder
        self.n = n
        self.stays_broken = stays_broken
        self.count = 0
        self._kept: Callable[..., Any] = getattr(disk, call)

    @property
    def has_failed(self) -> bool:
        return self.count >= self.n

    def __call__(self, fd: int, *rest: Any) -> Any:
        if str(self.folder) in str(Path(f"/proc/self/fd/{fd}").readlink()):
            self.count += 1
            if self.count == self.n or (self.stays_broken and self.count > self.n):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._kept(fd, *rest)

    def __enter__(self) -> Failing:
        setattr(disk, self.call, self)
        return self

    def __exit__(self, *exc: object) -> None:
        setattr(disk, self.call, self._kept)


@contextmanager
def opened(folder: Path, sync: str = "group") -> Iterator[tuple[lastword.Log, lastword.Topic]]:
    with lastword.open(folder, config={"wal.sync": sync}) as log:
        if "events" not in log.topics():
            log.create_topic("events", partitions=2, config=CONFIG)
        yield log, log.topic("events")


def values(topic: lastword.Topic, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in topic.read(partition=partition)]


def wal_of(folder: Path, partition: int = 0) -> Path:
    [found] = folder.glob(f"wal/default/events/*/{partition}")
    return found


@pytest.mark.parametrize("way_back", ["reopen", "close and open"])
@pytest.mark.parametrize("call", ["write", "fdatasync", "fsync"])
def test_each_failure(folder: Path, call: str, way_back: str) -> None:
    """Appends with rolls in between; n goes up until the whole round goes through without a failure."""
    for n in range(1, 100):
        where = folder / str(n)
        if not round_with_failure(where, call, n, way_back):
            assert n > 5, "the failure was never met"
            return
    raise AssertionError("the round never went through")


def round_with_failure(folder: Path, call: str, n: int, way_back: str) -> bool:
    acknowledged: list[bytes] = []
    with opened(folder) as (_, topic):
        for index in range(3):
            acknowledged.append(b"before %d" % index)
            topic.append("key", acknowledged[-1], partition=0)
        refused = None
        with Failing(call, wal_of(folder), n) as failing:
            for index in range(12):
                value = b"during %d " % index + bytes(100)
                try:
                    topic.append("key", value, partition=0)
                except WriteFailedError as error:
                    refused = error
                    break
                acknowledged.append(value)
        assert (refused is not None) == failing.has_failed, "the disk failed, and nobody was told"
        assert values(topic) == acknowledged, "at once after the failure"
        if refused is not None:
            assert "Input/output error" in str(refused)
            if "reopened" in str(refused):
                with pytest.raises(WriteFailedError, match="until it is reopened"):
                    topic.append("key", b"refused as well", partition=0)
        topic.append("key", b"the other partition goes on", partition=1)
        if way_back == "reopen":
            topic.reopen_partition(0)
            topic.append("key", b"after", partition=0)
            assert values(topic) == [*acknowledged, b"after"]
    with opened(folder) as (_, topic):
        if way_back != "reopen":
            topic.append("key", b"after", partition=0)
        assert values(topic) == [*acknowledged, b"after"], "after the log was opened again"
        assert values(topic, 1) == [b"the other partition goes on"]
        assert topic.seal().problems == ()
        assert values(topic) == [*acknowledged, b"after"], "sealed"
        assert topic.wal_damage() == []
    return refused is not None


@pytest.mark.parametrize("call", ["write", "fdatasync"])
def test_what_is_kept_is_in_a_new_file(folder: Path, call: str) -> None:
    with opened(folder) as (_, topic):
        topic.append("key", b"kept", partition=0)
        [old] = wal_of(folder).glob("wal.*.log")
        inode = old.stat().st_ino
        with Failing(call, wal_of(folder), 1), pytest.raises(WriteFailedError):
            topic.append("key", b"refused", partition=0)
        topic.reopen_partition(0)
        [new] = wal_of(folder).glob("wal.*.log")
        assert new.name != old.name and new.stat().st_ino != inode, "the file that failed is used again"
        assert b"kept" in new.read_bytes() and b"refused" not in new.read_bytes()
        assert [path.stat().st_ino for path in (wal_of(folder) / "aside").iterdir()] == [inode]
        assert topic.append("key", b"next", partition=0).offset == 1
        assert values(topic) == [b"kept", b"next"]


def test_a_disk_that_stays_broken(folder: Path) -> None:
    """A reopening that fails says so, reading goes on, and the next one after the repair succeeds."""
    with opened(folder) as (_, topic):
        topic.append("key", b"kept", partition=0)
        with Failing("write", wal_of(folder), 1, stays_broken=True) as failing:
            with pytest.raises(WriteFailedError):
                topic.append("key", b"refused", partition=0)
            with Failing("fsync", wal_of(folder), 1, stays_broken=True):
                with pytest.raises(UnavailableError, match="Input/output error"):
                    topic.reopen_partition(0)
                with pytest.raises(WriteFailedError):
                    topic.append("key", b"refused again", partition=0)
            assert values(topic) == [b"kept"]
            assert failing.has_failed
        topic.reopen_partition(0)
        assert topic.append("key", b"next", partition=0).offset == 1
        assert values(topic) == [b"kept", b"next"]


def test_short_writes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system may write less than it was asked to: the rest follows."""
    whole = disk.write
    monkeypatch.setattr(disk, "write", lambda fd, data: whole(fd, bytes(data)[: max(1, len(data) // 2)]))
    with opened(folder) as (_, topic):
        for index in range(10):
            topic.append("key", b"%d" % index, partition=0)
        assert values(topic) == [b"%d" % index for index in range(10)]
    with opened(folder) as (_, topic):
        assert values(topic) == [b"%d" % index for index in range(10)]


@pytest.mark.parametrize("share", [1, 20, 60, 61, 62, 100, -1])
def test_a_write_that_ends_in_the_middle(folder: Path, monkeypatch: pytest.MonkeyPatch, share: int) -> None:
    """Some bytes of a batch come to the file, then the disk is full: they are never read, here or later."""
    whole = disk.write
    calls: list[int] = []

    def cut_short(fd: int, data: Any) -> int:
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return whole(fd, bytes(data)[:share])

    with opened(folder) as (_, topic):
        topic.append("key", b"kept", partition=0)
        monkeypatch.setattr(disk, "write", cut_short)
        with pytest.raises(WriteFailedError, match="No space left on device"):
            topic.append("key", b"refused" * 20, partition=0)
        monkeypatch.setattr(disk, "write", whole)
        assert values(topic) == [b"kept"]
        topic.append("key", b"elsewhere", partition=1)
    with opened(folder) as (_, topic):
        assert values(topic) == [b"kept"]
        assert topic.append("key", b"next", partition=0).offset == 1
        assert topic.seal().problems == ()
        assert values(topic) == [b"kept", b"next"]


class Killed(BaseException):
    """Stands for a kill: nothing after it is done."""


@pytest.mark.parametrize(
    "step", ["wal.recover.copied", "wal.recover.renamed", "wal.recover.named", "wal.recovered"]
)
@pytest.mark.parametrize("again", [False, True])
def test_killed_while_what_is_kept_is_copied(folder: Path, step: str, again: bool) -> None:
    """With unsealed files before the one that failed, so that all of it is read from the WAL."""
    acknowledged = [b"%d " % index + bytes(150) for index in range(12)]
    with opened(folder) as (_, topic):
        for value in acknowledged:
            topic.append("key", value, partition=0)
        with Failing("fdatasync", wal_of(folder), 1), pytest.raises(WriteFailedError):
            topic.append("key", b"refused", partition=0)
    kills = 0
    for _ in range(1 + again):
        steps.install(lambda name: kill_at(name, step))
        try:
            with lastword.open(folder) as log:
                log.topic("events")
        except Killed:
            kills += 1
        finally:
            steps.install(None)
    assert kills >= 1
    with opened(folder) as (_, topic):
        assert values(topic) == acknowledged
        topic.append("key", b"next", partition=0)
        assert values(topic) == [*acknowledged, b"next"]
        assert topic.seal().problems == ()
        assert values(topic) == [*acknowledged, b"next"]
    named = {path.name for path in wal_of(folder).glob("wal.*")}
    assert not [name for name in named if name.endswith(".copy")]


def kill_at(name: str, step: str) -> None:
    if name == step:
        raise Killed


@pytest.mark.parametrize("call", ["write", "fdatasync"])
def test_of_several_partitions_those_that_got_their_records_are_named(folder: Path, call: str) -> None:
    records = [NewRecord(key=b"k", value=b"%d" % number) for number in range(4)]
    targets = [0, 1, 0, 1]
    with opened(folder) as (_, topic):
        topic.append_many(records, partition=targets)
        with (
            Failing(call, wal_of(folder, 1), 1),
            pytest.raises(
                PartlyAppendedError, match=r"partition 0 \(offsets 2 to 3\) were appended"
            ) as failed,
        ):
            topic.append_many(records, partition=targets)
        assert failed.value.appended == {0: (2, 3)}
        assert "those for partition 1 were not acknowledged" in str(failed.value)
        again = from_problem(json.loads(json.dumps(to_problem(failed.value))))
        assert isinstance(again, PartlyAppendedError) and again.appended == {0: (2, 3)}
        assert (len(values(topic, 0)), len(values(topic, 1))) == (4, 2)

        # It is known now that partition 1 refuses appends: nothing is written anywhere.
        with pytest.raises(WriteFailedError) as refused:
            topic.append_many(records, partition=targets)
        assert not isinstance(refused.value, PartlyAppendedError)
        assert (len(values(topic, 0)), len(values(topic, 1))) == (4, 2)
        topic.reopen_partition(1)
        topic.append_many(records[1::2], partition=1)
        assert (len(values(topic, 0)), len(values(topic, 1))) == (4, 4)
