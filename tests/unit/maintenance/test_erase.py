"""Erasure: not one byte of a key is left, in no file and no snapshot, and everything else is as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from tests.support.clock import ManualClock
from tests.support.logs import Killed, kill_at, no_hook  # noqa: F401

import lastword
from lastword.errors import InvalidError, UnavailableError, UnknownTopicError
from lastword.folder import intents, steps
from lastword.folder.intents import Intent, Wanted, add_intent, list_intents, load_intent
from lastword.log import Log
from lastword.record import NewRecord
from lastword.wal import staged

INLINE = {"compaction.service.factory": "lastword.compaction.inline:InlineCompactionServiceFactory"}
SECRET = b"secret-of-bob"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with lastword.open(tmp_path / "data", config=INLINE, clock=ManualClock()) as opened:
        yield opened


def files_with(folder: Path, needle: bytes) -> list[Path]:
    """Files that hold a text as it is. Values in segments are compressed, so keys and values here don't repeat."""
    return [path for path in folder.rglob("*") if path.is_file() and needle in path.read_bytes()]


def write(log: Log, policy: str = "compact", **config: object) -> None:
    own = {
        "cleanup.policy": policy,
        "compaction.at.seal": False,
        **{key.replace("_", "."): value for key, value in config.items()},
    }
    topic = log.create_topic("users", partitions=2, config=own)
    for number in range(3):
        topic.append_many([NewRecord(key=b"k%d" % key, value=b"%d-%d" % (key, number)) for key in range(20)])
        topic.append(b"bob", SECRET + b"%d" % number)
        if number < 2:
            topic.seal()


def intent_of(log: Log, *keys: bytes) -> Intent:
    """An erasure that is asked for now."""
    topic = log.topic("users")
    ends = tuple(extent.log_end for extent in topic.extents().values())
    return Intent(topic="users", topic_id=topic.id.hex, wanted=(Wanted(keys=keys, ends=ends),))


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_every_record_of_the_key_is_gone_and_nothing_else(log: Log, tmp_path: Path, policy: str) -> None:
    write(log, policy)
    topic = log.topic("users")
    others = [record for record in topic.read() if record.key != b"bob"]
    ends = topic.extents()
    assert files_with(tmp_path, SECRET), "the test must be able to see the secret in the WAL"
    report = log.erase("users", [b"bob"])
    assert (report.keys, report.records_erased, report.left) == (1, 3, ())
    assert list(topic.read()) == others
    assert {p: e.log_end for p, e in topic.extents().items()} == {p: e.log_end for p, e in ends.items()}
    assert [each.operation for each in topic.history()][-1:] == ["erase"]
    assert len(topic.history()) == 1, "older snapshots still name the old files"
    assert files_with(tmp_path, SECRET) == []
    assert files_with(tmp_path, b"bob") == []
    assert not list((tmp_path / "data" / intents.ERASING_FOLDER).iterdir())


def test_a_running_replay_goes_on_without_the_erased_records(log: Log) -> None:
    write(log)
    replay = log.topic("users").read_arrow()
    seen = [record for _, record in zip(range(1), replay, strict=False)]
    log.erase("users", [b"bob"])
    seen += list(replay)
    keys = [key for records in seen for key in records.column("key").to_pylist()]
    assert keys.count(b"k1") == 3


def test_an_erasure_that_was_killed_is_finished_by_the_next_round(log: Log, tmp_path: Path) -> None:
    write(log)
    topic = log.topic("users")
    intents.add_intent(log.path, intent_of(log, b"bob"))
    log.finish_erasures()
    assert b"bob" not in {record.key for record in topic.read()}
    assert files_with(tmp_path, SECRET) == []
    assert intents.list_intents(log.path) == []


def test_an_intent_for_a_topic_that_is_gone_is_forgotten(log: Log) -> None:
    write(log)
    intents.add_intent(log.path, intent_of(log, b"bob"))
    log.delete_topic("users")
    log.create_topic("users").append(b"bob", "another one")
    log.finish_erasures()
    assert [record.key for record in log.topic("users").read()] == [b"bob"]
    assert intents.list_intents(log.path) == []


def test_keys_of_an_erasure_that_is_not_done_are_not_forgotten_by_the_next(log: Log) -> None:
    write(log)
    intents.add_intent(log.path, intent_of(log, b"k1"))
    report = log.erase("users", [b"bob"])
    assert report.keys == 2
    assert {b"bob", b"k1"}.isdisjoint(record.key for record in log.topic("users").read())


def test_bad_input_changes_nothing(log: Log) -> None:
    write(log)
    with pytest.raises(InvalidError, match="No key was given"):
        log.erase("users", [])
    with pytest.raises(UnknownTopicError):
        log.erase("nope", [b"bob"])
    assert intents.list_intents(log.path) == []
    assert len(list(log.topic("users").read())) == 63


def test_a_clock_that_was_put_back_keeps_no_snapshot(log: Log, tmp_path: Path) -> None:
    write(log)
    assert isinstance(log.clock, ManualClock)
    log.clock.move(-600_000)
    report = log.erase("users", [b"bob"])
    assert report.left == ()
    assert len(log.topic("users").history()) == 1
    assert segments_with(log, b"bob") == []


def segments_with(log: Log, key: bytes) -> list[Path]:
    files = (log.path / "warehouse").rglob("*.parquet")
    return [path for path in files if key in pq.read_table(path, columns=["key"])["key"].to_pylist()]


def test_a_tag_of_another_engine_that_keeps_a_snapshot_is_named_until_it_is_dropped(log: Log) -> None:
    write(log)
    other = load_catalog(
        "lastword",
        type="sql",
        uri=f"sqlite:///{log.path}/catalog.db",
        warehouse=f"file://{log.path}/warehouse",
    )
    table = other.load_table(("default", "users"))
    snapshots = table.metadata.snapshots
    table.manage_snapshots().create_tag(snapshots[-1].snapshot_id, "month-end").commit()
    table.manage_snapshots().create_tag(snapshots[0].snapshot_id, "harmless").commit()
    report = log.erase("users", [b"bob"])
    (left,) = report.left
    assert "tag 'month-end' keeps, has records of these keys" in left
    assert "DROP TAG month-end" in left
    assert segments_with(log, b"bob")
    log.topic("users").append(b"bob", b"a new life")
    log.topic("users").seal()
    before = [each.id for each in log.topic("users").history()]
    assert len(log.finish_erasures()) == 1
    assert [each.id for each in log.topic("users").history()] == before, "nothing but the tag is waited for"
    table.refresh()
    table.manage_snapshots().remove_tag("month-end").commit()
    other.close()
    assert log.finish_erasures() == []
    tagged = snapshots[-1].snapshot_id
    assert [each.id for each in log.topic("users").history()] == [each for each in before if each != tagged]
    assert len(segments_with(log, b"bob")) == 1
    assert [record.value for record in log.topic("users").read() if record.key == b"bob"] == [b"a new life"]
    assert intents.list_intents(log.path) == []


@pytest.mark.parametrize("strategy", ["offset", "first"])
def test_records_that_come_meanwhile_and_later_stay_and_the_erasure_ends(log: Log, strategy: str) -> None:
    """With `first` the records to be erased would beat them, if they were compacted together."""
    write(log, compaction_strategy=strategy, compaction_at_seal=True)
    topic = log.topic("users")

    def append_then(name: str) -> None:
        if name == "erase.noted":
            steps.install(None)
            topic.append(b"bob", b"while it ran")

    steps.install(append_then)
    try:
        report = log.erase("users", [b"bob"])
    finally:
        steps.install(None)
    assert (report.records_erased, report.left) == (3, ())
    topic.append(b"bob", b"later")
    log.finish_erasures()
    values = [record.value for record in topic.read() if record.key == b"bob"]
    assert values == [b"while it ran", b"later"]
    assert intents.list_intents(log.path) == []


def test_an_erasure_that_is_resumed_takes_nothing_newer_than_itself(log: Log) -> None:
    write(log)
    topic = log.topic("users")
    intents.add_intent(log.path, intent_of(log, b"bob"))
    topic.append(b"bob", b"in the same file")
    topic.append(b"k1", b"new")
    log.erase("users", [b"k1"])
    assert [record.value for record in topic.read() if record.key == b"bob"] == [b"in the same file"]
    assert not [record for record in topic.read() if record.key == b"k1"]


def stage(log: Log, sink: str, key: bytes) -> Path:
    """What a task of a Spark write leaves that is killed before its commit."""
    topic = log.topic("users")
    folder = staged.topic_folder(log.path, topic.id) / sink
    folder.mkdir(parents=True)
    data = topic.encode_arrow(pa.table({"key": [key], "value": [SECRET]}))
    (folder / "0123.batches").write_bytes(b"".join(bytes(each) for _, each in data))
    return folder / "0123.batches"


def test_what_is_staged_is_named_while_its_write_may_live_and_goes_when_it_was_killed(log: Log) -> None:
    write(log)
    assert isinstance(log.clock, ManualClock)
    path = stage(log, "job-" + "0" * 32, b"bob")
    other = stage(log, "job-" + "1" * 32, b"somebody else")
    report = log.erase("users", [b"bob"])
    (left,) = report.left
    assert left.startswith(f"{path}: a write that has not been appended")
    assert other.exists()
    log.clock.move(90_000_000)
    assert log.finish_erasures() == []
    assert not path.exists()


def test_a_staged_file_that_was_cut_short_is_named_too(log: Log) -> None:
    write(log)
    path = stage(log, "job-" + "0" * 32, b"bob")
    path.write_bytes(path.read_bytes()[:-3])
    (left,) = log.erase("users", [b"bob"]).left
    assert left.startswith(f"{path}: it can't be looked into")


@pytest.mark.parametrize("key", [b"bob", b'{"id":"bob"}', b'{"id":17,"name":"bob"}'])
def test_a_source_whose_position_is_at_a_key_is_named(log: Log, key: bytes) -> None:
    write(log)
    after = {b"bob": ["bob"], b'{"id":"bob"}': ["bob"]}.get(key, ["17", "bob"])
    folder = log.path / "connect" / "crm"
    folder.mkdir(parents=True)
    unit = {
        "number": 3,
        "topics": {},
        "position": {"lsn": "0/1", "tables": {"public.users": {"after": after}}},
    }
    (folder / "unit.json").write_text(json.dumps(unit))
    (left,) = log.erase("users", [key]).left
    assert "the position of the source 'crm' is at one of these keys" in left
    assert "lastword connect reset crm" in left
    (folder / "unit.json").write_text(json.dumps({**unit, "position": {"lsn": "0/2"}}))
    assert log.finish_erasures() == []


DAMAGE = [
    b"",
    b"{}",
    b"[]",
    b"\xff",
    b'{"topic": "users"}',
    b'{"topic":1,"topic_id":2,"wanted":[{}],"held":null}',
]


@pytest.mark.parametrize("content", DAMAGE)
def test_a_damaged_intent_is_named_and_the_others_go_on(
    log: Log, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    write(log)
    intents.add_intent(log.path, intent_of(log, b"bob"))
    damaged = log.path / intents.ERASING_FOLDER / "0000.json"
    damaged.write_bytes(content)
    (left,) = log.finish_erasures()
    assert str(damaged) in left and "Erase them again with `lastword erase`" in left
    assert str(damaged) in caplog.text
    assert b"bob" not in {record.key for record in log.topic("users").read()}
    assert intents.list_intents(log.path) == [damaged]


def test_erasing_again_replaces_a_damaged_intent(log: Log) -> None:
    write(log)
    topic_id = log.topic("users").id.hex
    intents.add_intent(log.path, intent_of(log, b"bob"))
    (log.path / intents.ERASING_FOLDER / f"{topic_id}.json").write_bytes(b"{")
    assert log.erase("users", [b"bob"]).left == ()
    assert intents.list_intents(log.path) == []


@pytest.mark.parametrize(
    "step",
    ["noted", "segment.committed", "rewritten", "expired", "collected", "wal_removed", "passed"],
)
def test_killed_at_any_step_it_is_finished_by_the_next_round(log: Log, tmp_path: Path, step: str) -> None:
    write(log)
    others = [record for record in log.topic("users").read() if record.key != b"bob"]
    kill_at(f"erase.{step}")
    with pytest.raises(Killed):
        log.erase("users", [b"bob"])
    log.topic("users").append(b"bob", b"new")
    assert log.finish_erasures() == []
    assert files_with(tmp_path, SECRET) == []
    left = list(log.topic("users").read())
    assert [record for record in left if record.key != b"bob"] == others
    assert [record.value for record in left if record.key == b"bob"] == [b"new"]


def test_a_segment_that_can_t_be_written_anew_holds_up_no_other_erasure(log: Log) -> None:
    for name in ("a", "b"):
        topic = log.create_topic(name)
        topic.append_many([NewRecord(key=b"k%d" % (number % 4), value=b"v") for number in range(40)])
        topic.seal()
    (segment,) = log.topic("a").table.plan(log.topic("a").table.snapshot())
    path = segment.path.removeprefix("file://")
    # As another engine may write it: without our format, and with an offset that is there twice.
    rows = pq.read_table(path, partitioning=None).replace_schema_metadata(None)
    offsets = rows.column("offset").to_pylist()
    offsets[22] = offsets[20]
    pq.write_table(rows.set_column(rows.schema.get_field_index("offset"), "offset", pa.array(offsets)), path)

    with pytest.raises(UnavailableError, match="could not be rewritten"):
        log.erase("a", [b"k1"])
    topic = log.topic("b")
    wanted = Wanted(keys=(b"k2",), ends=(40,))
    add_intent(log.path, Intent(topic="b", topic_id=topic.id.hex, wanted=(wanted,)))
    (left,) = log.finish_erasures()
    assert "could not be rewritten" in left
    assert [each.topic for each in map(load_intent, list_intents(log.path)) if each is not None] == ["a"]
    assert b"k2" not in {record.key for record in topic.read()}
