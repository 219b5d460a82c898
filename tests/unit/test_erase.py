"""Erasure: not one byte of a key is left, in no file and no snapshot, and everything else is as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.clock import ManualClock

import lastword
from lastword import erase
from lastword.errors import InvalidError, UnknownTopicError
from lastword.log import Log
from lastword.record import NewRecord

INLINE = {"compaction.service.factory": "lastword.compaction.inline:InlineCompactionServiceFactory"}
SECRET = b"secret-of-bob"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with lastword.open(tmp_path / "data", config=INLINE, clock=ManualClock()) as opened:
        yield opened


def files_with(folder: Path, needle: bytes) -> list[Path]:
    """Files that hold a text as it is. Values in segments are compressed, so keys and values here don't repeat."""
    return [path for path in folder.rglob("*") if path.is_file() and needle in path.read_bytes()]


def write(log: Log, policy: str = "compact") -> None:
    topic = log.create_topic("users", partitions=2, config={"cleanup.policy": policy})
    for number in range(3):
        topic.append_many([NewRecord(key=b"k%d" % key, value=b"%d-%d" % (key, number)) for key in range(20)])
        topic.append(b"bob", SECRET + b"%d" % number)
        if number < 2:
            topic.seal()


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
    assert not list((tmp_path / "data" / erase.ERASING_FOLDER).iterdir())


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
    erase.save_intent(log.path, erase.Intent(topic="users", topic_id=topic.id.hex, keys=(b"bob",)))
    log.finish_erasures()
    assert b"bob" not in {record.key for record in topic.read()}
    assert files_with(tmp_path, SECRET) == []
    assert erase.load_intents(log.path) == []


def test_an_intent_for_a_topic_that_is_gone_is_forgotten(log: Log) -> None:
    write(log)
    topic_id = log.topic("users").id.hex
    erase.save_intent(log.path, erase.Intent(topic="users", topic_id=topic_id, keys=(b"bob",)))
    log.delete_topic("users")
    log.create_topic("users").append(b"bob", "another one")
    log.finish_erasures()
    assert [record.key for record in log.topic("users").read()] == [b"bob"]
    assert erase.load_intents(log.path) == []


def test_keys_of_an_erasure_that_is_not_done_are_not_forgotten_by_the_next(log: Log) -> None:
    write(log)
    topic_id = log.topic("users").id.hex
    erase.save_intent(log.path, erase.Intent(topic="users", topic_id=topic_id, keys=(b"k1",)))
    report = log.erase("users", [b"bob"])
    assert report.keys == 2
    assert {b"bob", b"k1"}.isdisjoint(record.key for record in log.topic("users").read())


def test_bad_input_changes_nothing(log: Log) -> None:
    write(log)
    with pytest.raises(InvalidError, match="No key was given"):
        log.erase("users", [])
    with pytest.raises(UnknownTopicError):
        log.erase("nope", [b"bob"])
    assert erase.load_intents(log.path) == []
    assert len(list(log.topic("users").read())) == 63
