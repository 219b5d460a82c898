"""Sealed segments for fetches: chunks without gaps between them, kept within a bound, dropped when they must be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.support.logs import open_log

from lastword import batch
from lastword.broker import sealed
from lastword.broker.offsets import end_of_epoch
from lastword.broker.sealed import Chunk, SealedData, read_sealed
from lastword.log import Log
from lastword.log.topic import Topic

INLINE = "lastword.compaction.inline:InlineCompactionServiceFactory"


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
    with open_log(tmp_path / "data", clock, {"compaction.service.factory": INLINE}) as opened:
        yield opened


def filled(log: Log, records: int, config: Mapping[str, object] | None = None, size: int = 10) -> Topic:
    topic = log.create_topic("t", config=config)
    for number in range(records):
        topic.append(f"k{number % 7}", str(number).ljust(size))
    topic.seal()
    return topic


def rows(chunk: Chunk) -> list[int]:
    return [offset for data in chunk.batches for offset in batch.decode(data).column("offset").to_pylist()]


def test_chunks_follow_on_each_other(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "CHUNK_BYTES", 2000)
    topic = filled(log, 300, size=100)
    chunks = list(read_sealed(topic.table, 0, 17))
    assert len(chunks) > 5
    assert chunks[0].first_offset == 17 and chunks[-1].next_offset == 300
    for one, next_one in pairwise(chunks):
        assert one.next_offset == next_one.first_offset
    assert [offset for chunk in chunks for offset in rows(chunk)] == list(range(17, 300))


def test_the_end_that_compaction_took_is_spanned(log: Log) -> None:
    topic = filled(log, 20, {"cleanup.policy": "compact", "delete.retention.ms": 0})
    for key in range(7):
        topic.append(f"k{key}", None)
    for _ in range(3):
        topic.seal()
        log.compact(["t"], asked_for=True, force=True)
    (chunk,) = read_sealed(topic.table, 0, 3)
    assert rows(chunk) == []
    assert (chunk.first_offset, chunk.next_offset) == (3, 27)


@pytest.mark.parametrize("is_compacted", [False, True])
def test_no_batch_reaches_behind_the_end_of_its_leader_epoch(log: Log, is_compacted: bool) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact", "delete.retention.ms": 0})
    for number in range(4):
        topic.append("k", None if is_compacted and number == 3 else str(number))
        # As after a kill: the next records are of another epoch.
        topic.writer(0).refuse("for the test")
        topic.reopen_partition(0)
    for _ in range(3 if is_compacted else 0):
        topic.seal()
        log.compact(["t"], asked_for=True, force=True)
    topic.seal()
    epochs = topic.writer(0).epochs
    assert len(epochs) > 3
    for chunk in read_sealed(topic.table, 0, 0):
        for data in chunk.batches:
            header = batch.read_header(data)
            assert header is not None
            _, end_offset = end_of_epoch(epochs, header.leader_epoch, 4)
            assert end_offset >= header.next_offset


def test_reads_within_a_chunk() -> None:
    chunk = Chunk(10, 40, (b"aaaa", b"bbbb", b"cccc"), (20, 30, 40), 12)
    assert chunk.read(10, 100, at_least_one=True) == ([b"aaaa", b"bbbb", b"cccc"], 40)
    assert chunk.read(20, 8, at_least_one=True) == ([b"bbbb", b"cccc"], 40)
    assert chunk.read(25, 1, at_least_one=True) == ([b"bbbb"], 30)
    assert chunk.read(25, 1, at_least_one=False)[0] == []


def test_memory_is_bounded_and_what_was_used_last_stays(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "CHUNK_BYTES", 2000)
    topic = filled(log, 300, size=100)

    async def run() -> None:
        data = SealedData(10_000)
        offset = 0
        while offset < 300:
            chunk = await data.load(topic, 0, offset)
            assert chunk is not None
            offset = chunk.next_offset
            assert data._used_bytes <= 10_000
        assert data.find(topic, 0, 299) is not None
        assert data.find(topic, 0, 0) is None
        assert await data.load(topic, 0, 300) is None
        data.close()

    asyncio.run(run())


def test_what_is_served_is_read_ahead(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "CHUNK_BYTES", 2000)
    topic = filled(log, 100, size=100)

    async def run() -> None:
        data = SealedData(1 << 20)
        chunk = await data.load(topic, 0, 0)
        assert chunk is not None
        while data.find(topic, 0, chunk.next_offset) is None:
            data.served(topic, 0, chunk)
            await asyncio.sleep(0)
        data.close()

    asyncio.run(run())


@pytest.mark.parametrize(("change", "stays"), [("seal", True), ("compact", False), ("erase", False)])
def test_a_commit_that_may_remove_records_drops_what_is_cached(log: Log, change: str, stays: bool) -> None:
    topic = filled(log, 50, {"cleanup.policy": "compact"})

    async def run() -> None:
        data = SealedData(1 << 20)
        data.update(topic, topic.table.snapshot())
        await data.load(topic, 0, 0)
        if change == "seal":
            topic.append("k", "v")
            topic.seal()
        elif change == "compact":
            log.compact(["t"], asked_for=True)
        else:
            log.erase("t", [b"k3"])
        data.update(topic, topic.table.snapshot())
        assert (data.find(topic, 0, 0) is not None) is stays
        assert (data._used_bytes > 0) is stays
        data.close()

    asyncio.run(run())


def test_a_commit_drops_what_is_about_to_be_read_ahead(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "CHUNK_BYTES", 2000)
    topic = filled(log, 300, {"cleanup.policy": "compact", "compaction.at.seal": False}, size=100)

    async def run() -> None:
        data = SealedData(1 << 20)
        data.update(topic, topic.table.snapshot())
        first = await data.load(topic, 0, 0)
        assert first is not None
        log.compact(["t"], asked_for=True)
        # It goes on with the stream of the old snapshot, which nothing knows of any more when the look comes.
        loading = data.load(topic, 0, first.next_offset)
        data.update(topic, topic.table.snapshot())
        chunk = await loading
        assert chunk is not None
        assert rows(chunk) == list(range(293, 300))
        data.close()

    asyncio.run(run())
