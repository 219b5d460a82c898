"""Pages of a topic's state: the same records as the state view, by key, in bounded memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.support.clock import ManualClock
from tests.support.logs import open_log

from lastword.log import Log
from lastword.log.topic import Topic
from lastword.operations import state_page as pages
from lastword.operations.state_page import StatePage, state_page
from lastword.reading.timetravel import AsOf
from lastword.record import NewRecord, Record


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
    with open_log(tmp_path / "data", clock) as opened:
        yield opened


def filled(log: Log, *, partitions: int = 1, **config: str) -> Topic:
    """A topic whose keys were written again, deleted and written in two partitions, sealed and not."""
    topic = log.create_topic("t", partitions=partitions, config={"cleanup.policy": "compact", **config})
    for turn in range(4):
        for partition in range(partitions):
            records = [NewRecord(key=None, value=b"without a key")]
            for number in range(turn, 120, turn + 1):
                if (number + turn) % partitions == partition:
                    value = None if number % 7 == turn else b"%d of %d" % (turn, number)
                    time_ms = 1_000_000 + turn * 7 % 5
                    records.append(NewRecord(key=b"key-%03d" % number, value=value, timestamp_ms=time_ms))
            topic.append_many(records, partition=partition)
        if turn < 3:
            topic.seal()
    return topic


def walk(topic: Topic, **asked: object) -> tuple[list[Record], StatePage]:
    """All pages, one after the other, and the last."""
    records: list[Record] = []
    after = None
    while True:
        page = state_page(topic, after=after, **{"limit": 9, "max_bytes": 1 << 20, **asked})  # type: ignore[arg-type]
        records += page.records
        if page.next is None:
            return records, page
        assert after is None or page.next > after
        after = page.next


def by_key(table: pa.Table) -> list[tuple[bytes, int, int, bytes]]:
    return sorted((row["key"], row["partition"], row["offset"], row["value"]) for row in table.to_pylist())


def shown(records: list[Record]) -> list[tuple[bytes | None, int, int, bytes | None]]:
    return [(each.key, each.partition, each.offset, each.value) for each in records]


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("strategy", ["offset", "first", "timestamp"])
def test_the_pages_together_are_the_state(
    log: Log, monkeypatch: pytest.MonkeyPatch, partitions: int, strategy: str
) -> None:
    topic = filled(log, partitions=partitions, **{"compaction.strategy": strategy})
    expected = by_key(topic.state())
    matching = [each for each in expected if b"-01" in each[0]]
    assert len(matching) > 3
    for most_bytes in (pages.MOST_BYTES, 1500, 60):
        monkeypatch.setattr(pages, "MOST_BYTES", most_bytes)
        records, last = walk(topic)
        assert shown(records) == expected
        assert last.keys == last.matching == (len(expected) if most_bytes > 1500 else None)
        found, last = walk(topic, search=b"-01")
        assert shown(found) == matching
        assert last.keys == (len(expected) if most_bytes > 1500 else None)
        assert last.matching == (len(matching) if most_bytes > 60 else None)
        assert walk(topic, search=b"%")[0] == []
        monkeypatch.setattr(pages, "MERGE_BYTES", 256)
        monkeypatch.setattr(pages, "FIRST_KEYS", 5)


def test_the_past_has_pages_too(log: Log) -> None:
    topic = filled(log)
    for snapshot in topic.history()[1:]:
        point = AsOf(snapshot_id=snapshot.id)
        assert shown(walk(topic, as_of=point)[0]) == by_key(topic.state(as_of=point))


def test_a_page_ends_with_the_record_that_passes_its_bytes(log: Log) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact"})
    for key in "dbca":
        topic.append(key, "x" * 99)
    topic.append("e", "")
    page = state_page(topic, limit=10, max_bytes=150)
    assert [each.key for each in page.records] == [b"a", b"b"]
    assert (page.keys, page.next) == (5, b"b")
    page = state_page(topic, limit=10, max_bytes=1, after=page.next)
    assert [each.key for each in page.records] == [b"c"]
    page = state_page(topic, limit=10, max_bytes=1000, after=page.next)
    assert ([each.key for each in page.records], page.next) == ([b"d", b"e"], None)


def test_keys_that_were_all_deleted_are_an_empty_state(log: Log) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact"})
    assert state_page(topic, limit=5, max_bytes=1) == StatePage(keys=0, matching=0, records=(), next=None)
    topic.append("a", "1")
    topic.seal()
    topic.append("a", None)
    assert state_page(topic, limit=5, max_bytes=1) == StatePage(keys=0, matching=0, records=(), next=None)


CHILD = """
import json, resource, sys
import lastword
from lastword.admin import views

def peak_mb():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

with lastword.open(sys.argv[1], read_only=True) as log:
    topic = log.topic("t")
    views.state(log, "small", search="k", as_of=None, limit=1)
    before = peak_mb()
    one = views.state(log, "t", search="k420", as_of=None, limit=1)
    page = views.state(log, "t", search=None, as_of=None, limit=50)
    print(json.dumps({"grown_mb": peak_mb() - before, "one": len(one["records"]), "page": len(page["records"]),
                      "keys": one["keys"], "matching": one["matching"]}))
"""


@pytest.mark.parametrize("place", ["sealed", "wal"])
def test_the_values_of_a_large_state_are_never_in_memory_together(tmp_path: Path, place: str) -> None:
    """100 MB of values that can't be compressed, among them a tombstone, so that values have to be looked at."""
    import lastword

    with lastword.open(tmp_path / "data") as log:
        log.create_topic("small").append("k", "v")
        topic = log.create_topic("t", config={"cleanup.policy": "compact"})
        for start in range(0, 40_000, 4_000):
            keys = [b"k%d" % number for number in range(start, start + 4_000)]
            topic.append_arrow(pa.table({"key": keys, "value": [os.urandom(2_500) for _ in keys]}))
        topic.append("k7", None)
        if place == "sealed":
            topic.seal()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path / "data")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["one"], found["page"], found["keys"], found["matching"]) == (1, 50, 39_999, 11)
    assert found["grown_mb"] < 80
