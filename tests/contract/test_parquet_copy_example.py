"""The example service of docs/compaction-service.md: what it keeps beside the contract."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pyarrow.dataset as ds
import pytest
from tests.support.clock import ManualClock
from tests.support.logs import open_log

from lastword.log import Log
from lastword.log.topic import Topic

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("parquet_copy_service")


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LASTWORD_COPY_FOLDER", str(tmp_path / "copies"))
    return tmp_path / "copies"


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock, example: ModuleType, copies: Path) -> Iterator[Log]:
    settings = tmp_path / "own.yaml"
    settings.write_text("compaction.service.factory: parquet_copy_service:ParquetCopyServiceFactory\n")
    with open_log(tmp_path / "data", clock, settings) as opened:  # type: ignore[arg-type]
        yield opened


@pytest.fixture
def topic(log: Log) -> Topic:
    topic = log.create_topic("db.users", config={"cleanup.policy": "compact"})
    for number in range(60):
        topic.append(f"user-{number % 20}", str(number))
    topic.append(None, "without a key")
    log.compact(seal=True, asked_for=True)
    return topic


def folder_of(copies: Path, topic: Topic) -> Path:
    return copies / "db.users" / topic.id.hex


def copy_of(copies: Path, topic: Topic) -> Path:
    """The files of the copy that counts."""
    folder = folder_of(copies, topic)
    note = json.loads((folder / "partition=0.json").read_text())
    return folder / "partition=0" / str(note["name"])


def test_the_copy_is_parquet_by_hash_of_the_key(topic: Topic, copies: Path, example: ModuleType) -> None:
    rows = ds.dataset(copy_of(copies, topic), partitioning="hive").to_table().sort_by("offset")

    assert rows.column("value").to_pylist() == [*(b"%d" % each for each in range(40, 60)), b"without a key"]
    buckets = [f"{each:02d}" if isinstance(each, int) else each for each in rows.column("bucket").to_pylist()]
    assert buckets == [example.bucket_of(key) for key in rows.column("key").to_pylist()]
    assert len(set(buckets)) > 2
    for file in copy_of(copies, topic).rglob("*.parquet"):
        own = ds.dataset(file).to_table().column("offset").to_pylist()
        assert own == sorted(own)


def test_compacted_reads_come_from_the_copy(topic: Topic, copies: Path) -> None:
    expected = list(topic.read())
    assert list(topic.read(compacted=True)) == expected

    # Without the sealed files it still reads what it has copied.
    for file in copy_of(copies, topic).rglob("bucket=*"):
        assert file.is_dir()
    segments = [Path(path) for path in _segments(topic)]
    hidden = [segment.rename(segment.with_suffix(".hidden")) for segment in segments]
    assert hidden
    assert list(topic.read(compacted=True)) == expected


def test_a_second_compaction_leaves_the_copy_alone(topic: Topic, log: Log, copies: Path) -> None:
    before = copy_of(copies, topic)
    log.compact(seal=True, asked_for=True)
    assert copy_of(copies, topic) == before


def test_a_new_copy_replaces_the_old_one(topic: Topic, log: Log, copies: Path) -> None:
    before = copy_of(copies, topic)
    topic.append("user-1", "new")
    log.compact(seal=True, asked_for=True)

    after = copy_of(copies, topic)
    assert after != before
    assert [each.name for each in after.parent.iterdir()] == [after.name]


def test_a_copy_that_failed_is_not_served_and_made_again(
    topic: Topic, log: Log, copies: Path, example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.append("user-1", "new")
    with monkeypatch.context() as full:
        full.setattr(example, "_sync", _no_space)
        (failure,) = log.compact(seal=True, asked_for=True).failures
        assert (failure.topic, failure.partition) == (topic.name, None)
        assert "No space left" in failure.message

    service = log.compaction.service(topic.name)
    assert service.last_compacted_position(0) is None
    assert service.read_compacted_entries(0, 0, 10) is None
    assert list(topic.read(compacted=True)) == list(topic.read())

    log.compact(seal=True, asked_for=True)
    assert service.last_compacted_position(0) == 62
    assert list(topic.read(compacted=True)) == list(topic.read())
    assert len(list(copy_of(copies, topic).parent.iterdir())) == 1


def test_copies_of_a_deleted_topic_go_with_the_next_compaction_of_that_name(
    topic: Topic, log: Log, copies: Path
) -> None:
    log.delete_topic(topic.name)
    again = log.create_topic(topic.name, config={"cleanup.policy": "compact"})
    again.append("a", "b")
    log.compact(seal=True, asked_for=True)

    assert [each.name for each in (copies / topic.name).iterdir()] == [again.id.hex]


def test_without_a_folder_of_its_own_it_is_in_the_data_folder(
    log: Log, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LASTWORD_COPY_FOLDER")
    other = log.create_topic("other", config={"cleanup.policy": "compact"})
    other.append("a", "b")
    log.compact(seal=True, asked_for=True)
    assert (log.path / "compacted-copy" / "other" / other.id.hex / "partition=0.json").exists()


def _segments(topic: Topic) -> list[str]:
    snapshot = topic._table.snapshot()
    return [segment.path.removeprefix("file://") for segment in topic._table.plan(snapshot)]


def _no_space(fd: int) -> None:
    raise OSError(28, "No space left on device")
