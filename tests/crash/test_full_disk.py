"""A disk that is full, under each part of a log: what was acknowledged stays readable, and space is all it takes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.crash import broker_config, clean_up, leftovers
from tests.support.logs import takes_appends
from tests.support.small_disk import SmallDisk, small_disk
from tests.support.waiting import wait_until

import lastword
from lastword.errors import NotOwnerError, StorageError, UnavailableError, WriteFailedError

VALUE = bytes(5000)


@pytest.fixture
def full(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "small") as disk:
        yield disk


def opened(folder: Path, **settings: object) -> lastword.Log:
    return lastword.open(folder, config={**broker_config(), **settings})


def new_topic(log: lastword.Log, **config: object) -> lastword.Topic:
    return log.create_topic("events", partitions=2, config={"retention.ms": -1, **config})


def values(topic: lastword.Topic, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in topic.read(partition=partition)]


def fill_by_appends(topic: lastword.Topic, partition: int = 0) -> list[bytes]:
    """Append until the disk is full; what was acknowledged."""
    acknowledged: list[bytes] = []
    while True:
        value = b"%d " % len(acknowledged) + VALUE
        try:
            topic.append("key", value, partition=partition)
        except WriteFailedError as error:
            assert "No space left on device" in str(error)
            assert str(topic.describe().wal_folder) in str(error)
            return acknowledged
        acknowledged.append(value)
        assert len(acknowledged) < 2000


def move_partition(folder: Path, disk: SmallDisk, partition: int = 0) -> None:
    """Put the WAL of a partition on the small disk. The log must be closed."""
    [wal] = folder.glob(f"wal/default/events/*/{partition}")
    shutil.move(wal, disk.path / "wal")
    wal.symlink_to(disk.path / "wal")


@pytest.mark.parametrize("way_back", ["reopen", "close and open"])
def test_the_wal_of_a_partition_fills_its_disk(folder: Path, full: SmallDisk, way_back: str) -> None:
    with opened(folder) as log:
        new_topic(log)
    move_partition(folder, full)
    with opened(folder) as log:
        topic = log.topic("events")
        acknowledged = fill_by_appends(topic)
        assert len(acknowledged) > 100
        full.fill()
        assert values(topic) == acknowledged, "at once"
        with pytest.raises(WriteFailedError, match="until it is reopened"):
            topic.append("key", b"small", partition=0)
        for index in range(5):
            assert topic.append("key", b"elsewhere", partition=1).offset == index
        with pytest.raises(UnavailableError, match="No space left on device"):
            topic.reopen_partition(0)
        assert values(topic) == acknowledged, "after a reopening that failed"
    with opened(folder) as log:
        topic = log.topic("events")
        assert values(topic) == acknowledged, "opened on the full disk"
        assert "No space left" in (topic.describe().partitions[0].problem or "")
        topic.append("key", b"elsewhere", partition=1)
        report = topic.seal()
        assert [partition for partition, _ in report.problems] == [0]
        full.free()
        # The copy of what is kept needs room beside it until it is done.
        if way_back == "reopen":
            full.grow()
            topic.reopen_partition(0)
            assert topic.append("key", b"after", partition=0).offset == len(acknowledged)
            assert values(topic) == [*acknowledged, b"after"]
    full.grow()
    with opened(folder) as log:
        topic = log.topic("events")
        if way_back != "reopen":
            assert topic.append("key", b"after", partition=0).offset == len(acknowledged)
        assert values(topic) == [*acknowledged, b"after"]
        assert topic.seal().problems == ()
        assert values(topic) == [*acknowledged, b"after"]
        assert values(topic, 1) == [b"elsewhere"] * 6


def test_the_whole_folder_is_on_a_full_disk(full: SmallDisk) -> None:
    """Nothing more can be written at all, not even a lease or a lock: reading and opening go on."""
    folder = full.path / "data"
    with opened(folder) as log:
        topic = new_topic(log)
        topic.append("key", b"sealed", partition=0)
        topic.seal()
        acknowledged = [b"sealed", *fill_by_appends(topic)]
        full.fill()
        assert values(topic) == acknowledged
        with pytest.raises(StorageError, match="No space left on device"):
            log.create_topic("another")
        with pytest.raises(StorageError, match="No space left on device"):
            topic.delete_records({0: 1})
        with pytest.raises(StorageError, match="No space left on device"):
            log.erase("events", [b"key"])
        with pytest.raises(StorageError, match="No space left on device"):
            log.compact(asked_for=True)
        assert log.topics() == ["events"]
        assert values(topic) == acknowledged
    # What the close gave back.
    full.fill()
    with opened(folder) as log:
        assert values(log.topic("events")) == acknowledged
    full.fill()
    with lastword.open(folder, read_only=True) as log:
        assert values(log.topic("events")) == acknowledged
    full.grow()
    with opened(folder) as log:
        topic = log.topic("events")
        topic.append("key", b"after", partition=0)
        assert topic.seal().problems == ()
        assert values(topic) == [*acknowledged, b"after"]
        log.create_topic("another")
    assert_nothing_is_left(folder)


def test_rolling_on_a_full_disk(folder: Path, full: SmallDisk) -> None:
    with opened(folder) as log:
        new_topic(log)
    move_partition(folder, full)
    with opened(folder) as log:
        topic = log.topic("events")
        topic.append("key", b"first", partition=0)
        full.fill()
        report = topic.seal()
        assert [partition for partition, _ in report.problems] in ([], [0])
        assert values(topic) == [b"first"]
        full.free()
        if topic.describe().partitions[0].problem:
            topic.reopen_partition(0)
        assert topic.append("key", b"second", partition=0).offset == 1
        assert topic.seal().problems == ()
        assert values(topic) == [b"first", b"second"]
    with opened(folder) as log:
        assert values(log.topic("events")) == [b"first", b"second"]


def test_sealing_to_a_full_disk(folder: Path, full: SmallDisk) -> None:
    with opened(folder) as log:
        (folder / "warehouse").symlink_to(full.path)
        topic = new_topic(log, **{"local.retention.ms": 0})
        written = [b"%d " % index for index in range(50)]
        for value in written:
            topic.append("key", value, partition=0)
        for left in (0, 4096, 8192, 16384, 24576, 32768):
            full.free()
            full.fill(but_bytes=left)
            try:
                topic.seal()
            except StorageError as error:
                assert "No space left on device" in str(error)
            assert values(topic) == written, f"with {left} bytes left"
            topic.append("key", b"more", partition=0)
            written.append(b"more")
        full.free()
        assert topic.seal().problems == ()
        assert topic.describe().partitions[0].sealed_end == len(written)
        assert topic.describe().partitions[0].sealed_records == len(written)
        assert values(topic) == written
    assert_nothing_is_left(folder)
    with opened(folder) as log:
        assert values(log.topic("events")) == written


def test_committing_to_a_catalog_on_a_full_disk(folder: Path, full: SmallDisk) -> None:
    catalog = {"catalog": {"type": "sql", "uri": f"sqlite:///{full.path / 'catalog.db'}"}}
    with opened(folder, **catalog) as log:
        topic = new_topic(log, **{"local.retention.ms": 0})
        topic.append("key", b"first", partition=0)
        full.fill()
        with pytest.raises(StorageError, match="full"):
            topic.seal()
        with pytest.raises(StorageError, match="full"):
            topic.delete_records({0: 1})
        assert values(topic) == [b"first"]
        assert topic.append("key", b"second", partition=0).offset == 1
        log.run_retention()
        assert values(topic) == [b"first", b"second"]
    with opened(folder, **catalog) as log:
        topic = log.topic("events")
        assert values(topic) == [b"first", b"second"]
        with pytest.raises(NotOwnerError, match="takes no appends yet"):
            topic.append("key", b"third", partition=0)
        full.free()
        wait_until(lambda: takes_appends(topic))
        assert topic.seal().records == 2
        log.run_retention()
        assert values(topic) == [b"first", b"second"]
        assert topic.describe().partitions[0].sealed_end == 2


@pytest.mark.parametrize("torn", [False, True])
def test_recovering_on_a_full_disk(folder: Path, full: SmallDisk, torn: bool) -> None:
    """The last process died; the first one to open again finds no space. It reads, and writes when there is some."""
    with opened(folder) as log:
        new_topic(log)
    move_partition(folder, full)
    log = opened(folder)
    topic = log.topic("events")
    for value in (b"first", b"second"):
        topic.append("key", value, partition=0)
    # As a kill leaves it: neither closed nor marked, perhaps with the beginning of a batch.
    image = {path.name: path.read_bytes() for path in (full.path / "wal").iterdir() if path.is_file()}
    log.close()
    for name, data in image.items():
        (full.path / "wal" / name).write_bytes(data + (data[:50] if torn and name.endswith(".log") else b""))
    full.fill()
    with opened(folder) as log:
        topic = log.topic("events")
        assert values(topic) == [b"first", b"second"]
        assert topic.append("key", b"elsewhere", partition=1).offset == 0
        assert "No space left" in (topic.describe().partitions[0].problem or "")
        with pytest.raises(WriteFailedError, match="No space left"):
            topic.append("key", b"refused", partition=0)
        full.free()
        topic.reopen_partition(0)
        assert topic.append("key", b"third", partition=0).offset == 2
        assert values(topic) == [b"first", b"second", b"third"]
    with opened(folder) as log:
        assert values(log.topic("events")) == [b"first", b"second", b"third"]


def assert_nothing_is_left(folder: Path) -> None:
    clean_up(folder)
    assert leftovers(folder) == []
