"""A data folder that version 0.1.0 wrote (tests/data) is opened, read, compacted and written."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.clock import DAY_MS, ManualClock
from tests.support.compacted import INLINE_CONFIG
from tests.support.logs import open_log

from lastword.errors import StorageError
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.segments import mapping
from lastword.segments.commit import FencedTransaction

ARCHIVE = Path(__file__).parents[2] / "data" / "folder-0.1.0.tar.gz"


@pytest.fixture
def clock() -> ManualClock:
    # A while after the folder was written.
    return ManualClock(1_700_000_600_000)


@pytest.fixture
def old(tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    with open_log(tmp_path / "data", clock, INLINE_CONFIG) as log:
        yield log


@pytest.fixture
def expected(old: Log) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((old.path.parent / "expected.json").read_text())
    return found


def records(topic: Topic) -> list[list[object]]:
    return [
        [
            each.partition,
            each.offset,
            each.timestamp_ms,
            None if each.key is None else each.key.decode(),
            None if each.value is None else each.value.decode(),
        ]
        for each in topic.read()
    ]


def state(topic: Topic) -> list[list[str]]:
    return sorted([row["key"].decode(), row["value"].decode()] for row in topic.state().to_pylist())


def test_everything_is_there(old: Log, expected: dict[str, Any]) -> None:
    assert old.topics() == sorted(expected)
    for name, wanted in expected.items():
        topic = old.topic(name)
        assert records(topic) == wanted["records"]
        assert state(topic) == wanted["state"]
        assert [
            [each.log_start, each.first_dirty, each.sealed_end, each.log_end]
            for each in topic.describe().partitions
        ] == wanted["positions"]
    with old.topic("shop.orders").reader("billing") as reader:
        assert [each.offset for each in reader.poll(max_records=1)] == [7]


def test_every_topic_can_be_written_sealed_compacted_and_erased_from(
    old: Log, expected: dict[str, Any]
) -> None:
    for name, wanted in expected.items():
        topic = old.topic(name)
        appended = topic.append("new", "value", partition=0)
        assert appended.offset == wanted["positions"][0][3]
        assert topic.seal().problems == ()
        assert not old.compact([name], asked_for=True).failures
        assert state(topic) == sorted([*wanted["state"], ["new", "value"]])
        assert old.erase(name, [b"new"]).left == ()
        assert state(topic) == wanted["state"]


def test_superseded_records_that_were_left_behind_go_and_their_tombstone_stays_until_then(
    old: Log, expected: dict[str, Any], clock: ManualClock
) -> None:
    topic = old.topic("spared")
    clock.move(2 * DAY_MS)
    # 0.1.0 has left k3 and k4 twice in sealed files, and the tombstone of k3 has expired.
    (plan,) = old.plan_compaction(["spared"])
    assert plan.reason == "superseded records"
    assert [each[1] for each in records(topic) if each[3] == "k3"] == [3, 40]
    old.compact(["spared"])
    assert [each[1] for each in records(topic) if each[3] in ("k3", "k4")] == [40, 41]
    assert not topic.history()[-1].positions[0].spared
    (plan,) = old.plan_compaction(["spared"])
    assert plan.reason == "tombstones"
    old.compact(["spared"])
    assert [each[1] for each in records(topic) if each[3] == "k3"] == []
    assert state(topic) == expected["spared"]["state"]
    assert old.plan_compaction(["spared"]) == []


def test_the_first_commit_names_the_format_so_that_older_versions_can_refuse_it(old: Log) -> None:
    topic = old.topic("spared")
    before = topic.table._refresh().metadata.properties
    assert mapping.TABLE_FORMAT not in before
    topic.seal()
    assert topic.table._refresh().metadata.properties[mapping.TABLE_FORMAT] == "2"


def test_a_newer_format_is_refused_by_name_and_nothing_else_is(old: Log) -> None:
    iceberg = old.topic("spared").table._refresh()
    transaction = FencedTransaction(iceberg, iceberg.metadata.current_snapshot_id)
    transaction.set_properties({mapping.TABLE_FORMAT: "3"})
    transaction.commit_transaction()
    with pytest.raises(
        StorageError, match=r"'spared' has format '3'; this version of Lastword reads up to 2"
    ):
        old.topic("spared").seal()
    assert old.topic("versions").seal().problems == ()
