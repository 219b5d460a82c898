"""What the dashboard's pages are told about topics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from tests.support.clock import ManualClock
from tests.support.compacted import INLINE_CONFIG
from tests.support.logs import open_log
from tests.support.waiting import wait_until

from lastword.admin import models, views
from lastword.errors import InvalidConfigError, UnknownTopicError
from lastword.log import Log
from lastword.operations import topics
from lastword.record import NewRecord
from lastword.record_json import snapshot_id_text
from lastword.segments.model import Snapshot


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with open_log(tmp_path / "data", ManualClock(), INLINE_CONFIG) as opened:
        yield opened


def rows(overview: views.Overview) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}

    def all_there() -> bool:
        found.update({each["name"]: each for each in overview.current()["topics"]})
        return not any("pending" in each for each in found.values())

    wait_until(all_there, lambda: str(found))
    return found


def test_a_compaction_that_fails_is_said_by_the_row_and_by_the_topics_own_page(
    log: Log, tmp_path: Path
) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact"})
    topic.append("k", "1")
    topic.append("k", "2")
    topic.seal()
    (segment,) = (tmp_path / "data").glob("warehouse/**/*.parquet")
    segment.write_bytes(b"\0" * segment.stat().st_size)
    worker = log.worker()
    worker.run_all()
    worker.close()
    (problem,) = views.layout(log, "t")["problems"]
    assert problem.startswith("compaction of partition 0 has failed once: ")
    assert rows(views.Overview(log))["t"]["problems"] == [problem]


def test_a_row_says_what_a_topic_has_and_what_is_due(log: Log) -> None:
    topic = log.create_topic(
        "t",
        config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "compaction.at.seal": False},
    )
    log.create_topic("d")
    topic.append_many(NewRecord(key=b"%d" % (number % 10), value=b"v") for number in range(100))
    topic.seal()
    topic.append("x", "1")
    found = rows(views.Overview(log))
    row = found["t"]
    assert (row["records"], row["unsealed_records"], row["segments"]) == (101, 1, 1)
    assert (row["cleanup_policy"], row["dirty_ratio"], row["due"]) == (
        "compact",
        1.0,
        {"min.cleanable.dirty.ratio": 1},
    )
    assert row["wal_bytes"] == sum(wal.size_bytes for wal in topic.local_wals())
    assert row["last_run_ms"] is None
    assert (found["d"]["dirty_ratio"], found["d"]["due"]) == (None, {})
    log.compact(["t"], seal=True, asked_for=True)
    row = rows(views.Overview(log))["t"]
    assert (row["records"], row["dirty_ratio"], row["due"]) == (11, 0.0, {})
    assert row["last_run_ms"] is not None


def test_a_deleted_topic_is_gone_and_an_internal_one_never_there(log: Log) -> None:
    log.create_topic("t")
    log.internal_topic("__lastword_groups")
    overview = views.Overview(log)
    assert list(rows(overview)) == ["t"]
    log.create_topic("u")
    log.delete_topic("t")
    assert [each["name"] for each in overview.current()["topics"]] == ["u"]


def test_the_drawing_has_segments_files_readers_and_garbage(log: Log) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact"})
    for _ in range(2):
        topic.append_many(NewRecord(key=b"%d" % number, value=b"v") for number in range(40))
        topic.seal()
    topic.append("x", "1")
    with topic.reader("billing") as reader:
        reader.poll(max_records=10)
        reader.commit()
    (partition,) = views.layout(log, "t", estimates=True)["partition_list"]
    assert [each[:3] + each[4:] for each in partition["segments"]] == [
        [0, 39, 40, 1, 40, 1],
        [40, 79, 40, 1, 0, 1],
    ]
    assert partition["wal"][-1]["active"]
    assert (partition["wal"][-1]["first_offset"], partition["wal"][-1]["end_offset"]) == (80, 81)
    assert [(each["name"], each["kind"], each["position"]) for each in partition["readers"]] == [
        ("billing", "reader", 10)
    ]
    without = views.layout(log, "t")
    assert without["partition_list"][0]["segments"][0][5] is None
    assert not without["garbage_is_known"]


def test_the_drawing_and_its_sums_are_of_one_moment(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is made, records are sealed and compacted."""
    topic = log.create_topic("t", config={"cleanup.policy": "compact"})
    topic.append("a", "1")
    topic.seal()
    topic.append("a", "2")
    look = topic.table.snapshot

    def seal_after_a_look(snapshot_id: int | None = None) -> Snapshot:
        found = look(snapshot_id)
        monkeypatch.undo()
        log.compact(["t"], seal=True, asked_for=True)
        return found

    monkeypatch.setattr(topic.table, "snapshot", seal_after_a_look)
    found = views.layout(log, "t")
    (partition,) = found["partition_list"]
    assert (partition["sealed_end"], found["unsealed_records"], found["records"]) == (1, 1, 2)
    assert (found["segments"], found["sealed_bytes"]) == (
        partition["segment_count"],
        partition["sealed_bytes"],
    )
    assert found["wal_bytes"] == sum(each["size_bytes"] for each in partition["wal"])
    assert (found["due"], found["last_run_ms"]) == ({"min.cleanable.dirty.ratio": 1}, partition["last_run"])


def test_many_segments_are_drawn_as_few(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "MOST_DRAWN", 2)
    topic = log.create_topic("t", config={"cleanup.policy": "compact"})
    for number in range(5):
        topic.append("a", str(number))
        topic.seal()
    (partition,) = views.layout(log, "t", estimates=True)["partition_list"]
    drawn = [
        (first, last, records, garbage, count)
        for first, last, records, _, _, garbage, count in partition["segments"]
    ]
    assert drawn == [(0, 2, 3, 3, 3), (3, 4, 2, 1, 2)]
    assert partition["segment_count"] == 5


@pytest.mark.parametrize("given", [2**63 - 25, str(2**63 - 25)])
def test_ids_of_snapshots_are_taken_as_numbers_and_as_text(given: int | str) -> None:
    assert models.Verify.model_validate({"before": given}).before == 2**63 - 25
    for wrong in (1.5, True, "12a", "-1", "", "²"):
        with pytest.raises(ValidationError):
            models.Verify.model_validate({"before": wrong})


def test_ids_of_snapshots_are_text_wherever_json_is_made(log: Log) -> None:
    """A browser rounds 2**63 - 25 to another number."""
    topic = log.create_topic("t", config={"cleanup.policy": "compact"})
    topic.append("a", "1")
    sealed = topics.seal(log, "t")
    history = topics.history(log, "t")["snapshots"]
    assert sealed["snapshot_id"] == history[-1]["snapshot_id"] == str(topic.history()[-1].id)
    assert [each["parent_id"] for each in history] == [None, history[0]["snapshot_id"]]
    assert snapshot_id_text(2**63 - 25) == "9223372036854775783"


def test_snapshots_are_text_and_tell_what_a_run_did(log: Log) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact", "compaction.at.seal": False})
    topic.append("a", "1")
    topic.append("a", "2")
    log.compact(["t"], seal=True, asked_for=True)
    snapshots = views.layout(log, "t")["snapshots"]
    assert [each["operation"] for each in snapshots] == ["compact", "seal", "create"]
    assert [each["id"] for each in snapshots] == [str(each.id) for each in reversed(topic.history())]
    assert snapshots[0]["details"]["records"] == "2 -> 1"
    assert snapshots[0]["duration_ms"] is not None
    assert snapshots[1]["duration_ms"] is None


def test_the_state_is_searched_by_key(log: Log) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact"})
    for key in ("alice", "bob", "malice"):
        topic.append(key, "1")
    topic.append("bob", None)
    found = views.state(log, "t", search="lic", as_of=None, limit=1)
    assert (found["keys"], found["matching"], [each["key"] for each in found["records"]]) == (2, 2, ["alice"])
    assert views.state(log, "t", search=None, as_of=None, limit=10)["matching"] == 2
    assert views.state(log, "t", search="%", as_of=None, limit=10)["records"] == []


def test_the_settings_are_those_that_a_topic_may_have(log: Log) -> None:
    log.create_topic("t", config={"cleanup.policy": "compact"})
    found = {each["key"]: each for each in views.settings(log, "t")}
    assert found["cleanup.policy"]["source"] == "topic"
    assert all(each["meaning"] and each["allowed"] for each in found.values())
    assert "kafka.listen" not in found
    for key, each in found.items():
        if each["value"]:
            log.alter_topic("t", set_config={key: each["value"]})
    with pytest.raises(InvalidConfigError):
        log.alter_topic("t", set_config={"kafka.listen": "127.0.0.1:1"})
    with pytest.raises(UnknownTopicError):
        views.settings(log, "nothing")
