"""The WAL's bytes for fetches: whole batches, within bounds, over rolls, and never what is not shown or is damaged."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.support.logs import open_log, wal_path

from lastword import batch
from lastword.broker import tail as tail_module
from lastword.broker.tail import Tail, TailBytes, WouldBlockError
from lastword.errors import CorruptError
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.wal.reader import OffsetGoneError


@pytest.fixture
def topic(log: Log) -> Topic:
    return log.create_topic("t")


def fill(topic: Topic, first: int, end: int, size: int = 100) -> None:
    for number in range(first, end):
        topic.append(str(number), b"x" * size)


def offsets(found: TailBytes) -> list[int]:
    return [header.base_offset for header, _ in batch.split(found.data)]


def read_all(tail: Tail, offset: int, max_bytes: int) -> Iterator[list[int]]:
    while (found := tail.read(offset, max_bytes, inline=False)).data:
        yield offsets(found)
        offset = found.next_offset


def test_whole_batches_within_the_bound(topic: Topic) -> None:
    fill(topic, 0, 10)
    tail = Tail(topic.writer(0))
    size = len(tail.read(0, 1, inline=False).data)
    assert offsets(tail.read(0, 3 * size, inline=False)) == [0, 1, 2]
    assert offsets(tail.read(0, 4 * size - 1, inline=False)) == [0, 1, 2]
    assert list(read_all(tail, 4, 2 * size)) == [[4, 5], [6, 7], [8, 9]]


def test_one_batch_is_always_whole(topic: Topic) -> None:
    fill(topic, 0, 2, size=50_000)
    found = Tail(topic.writer(0)).read(1, 10, inline=False)
    assert offsets(found) == [1] and found.next_offset == 2


def test_a_start_within_a_batch_gives_that_batch(topic: Topic) -> None:
    from lastword.record import NewRecord

    topic.append_many([NewRecord(key=b"k", value=b"v")] * 10)
    fill(topic, 10, 12)
    assert offsets(Tail(topic.writer(0)).read(7, 10_000, inline=False)) == [0, 10, 11]


def test_over_rolls_and_at_the_end(topic: Topic) -> None:
    for first in range(0, 30, 10):
        fill(topic, first, first + 10)
        topic.roll(due_only=False)
    tail = Tail(topic.writer(0))
    assert [each for found in read_all(tail, 0, 500) for each in found] == list(range(30))
    assert not tail.read(30, 500, inline=False).data
    fill(topic, 30, 31)
    assert offsets(tail.read(30, 500, inline=False)) == [30]


def test_what_is_not_synced_is_not_shown(topic: Topic) -> None:
    fill(topic, 0, 1)
    writer = topic.writer(0)
    from lastword.record import NewRecord

    writer.stage(batch.encode([NewRecord(key=b"k", value=b"v")], now_ms=1))
    tail = Tail(writer)
    assert offsets(tail.read(0, 10_000, inline=False)) == [0]
    assert tail.available_bytes(1) == 0
    writer.sync()
    assert offsets(tail.read(1, 10_000, inline=False)) == [1]


def test_a_file_that_was_deleted_is_gone(topic: Topic) -> None:
    fill(topic, 0, 5)
    topic.roll(due_only=False)
    fill(topic, 5, 6)
    sorted(wal_path(topic).glob("wal.*.log"))[0].unlink()
    tail = Tail(topic.writer(0))
    with pytest.raises(OffsetGoneError):
        tail.read(0, 1000, inline=False)
    assert offsets(tail.read(5, 1000, inline=False)) == [5]


def test_damage_is_said_where_it_begins(topic: Topic) -> None:
    fill(topic, 0, 3)
    (path,) = wal_path(topic).glob("wal.*.log")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    tail = Tail(topic.writer(0))
    assert offsets(tail.read(0, 10_000, inline=False)) == [0, 1]
    with pytest.raises(CorruptError, match="checksum is wrong"):
        tail.read(2, 10_000, inline=False)


def test_zstd_is_told(topic: Topic) -> None:
    from lastword.record import NewRecord

    topic.append_many([NewRecord(key=b"k", value=b"v" * 100)], compression=batch.Compression.ZSTD)
    assert Tail(topic.writer(0)).read(0, 1000, inline=False).has_zstd


def test_a_long_search_is_not_for_the_event_loop(tmp_path: Path, clock: ManualClock) -> None:
    with open_log(tmp_path / "other", clock) as log:
        topic = log.create_topic("t")
        fill(topic, 0, 200, size=20_000)
        tail = Tail(topic.writer(0))
        with pytest.raises(WouldBlockError):
            tail.read(150, 1000, inline=True)
        found = tail.read(150, 1000, inline=False)
        assert offsets(found) == [150]
        # From here on the place is known.
        assert offsets(tail.read(found.next_offset, 1000, inline=True)) == [151]


class TestWhereNobodyKnowsWhatIsInTheCache:
    """As on tmpfs, NFS and FUSE."""

    @pytest.fixture(autouse=True)
    def _no_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = os.preadv

        def preadv(fd: int, buffers: list[memoryview], position: int, flags: int = 0) -> int:
            if flags & os.RWF_NOWAIT:
                raise OSError(errno.EOPNOTSUPP, "not supported")
            return real(fd, buffers, position, flags)

        monkeypatch.setattr(os, "preadv", preadv)

    def test_what_was_just_written_is_read_at_once(self, topic: Topic) -> None:
        fill(topic, 0, 3)
        assert offsets(Tail(topic.writer(0)).read(0, 10_000, inline=True)) == [0, 1, 2]

    @pytest.mark.parametrize("is_rolled", [False, True])
    def test_what_is_older_is_read_on_a_thread_and_then_at_once(
        self, topic: Topic, monkeypatch: pytest.MonkeyPatch, is_rolled: bool
    ) -> None:
        monkeypatch.setattr(tail_module, "RECENT_BYTES", 500)
        fill(topic, 0, 30)
        if is_rolled:
            topic.roll(due_only=False)
            fill(topic, 30, 32)
        tail = Tail(topic.writer(0))
        for _ in range(2):
            with pytest.raises(WouldBlockError):
                tail.read(0, 1000, inline=True)
        found = tail.read(0, 1000, inline=False)
        assert offsets(tail.read(0, 1000, inline=True)) == offsets(found)
        with pytest.raises(WouldBlockError):
            tail.read(found.next_offset, 1000, inline=True)
        with pytest.raises(WouldBlockError):
            tail.read(0, 2000, inline=True)

    def test_what_was_read_on_a_thread_and_what_was_written_since_is_read_at_once(
        self, topic: Topic, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tail_module, "RECENT_BYTES", 500)
        fill(topic, 0, 30)
        tail = Tail(topic.writer(0))
        with pytest.raises(WouldBlockError):
            tail.read(0, 100_000, inline=True)
        tail.read(0, 100_000, inline=False)
        fill(topic, 30, 32)
        assert offsets(tail.read(0, 100_000, inline=True)) == list(range(32))
