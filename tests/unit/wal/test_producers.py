"""What a partition knows of idempotent producers, and that a crash or a deletion does not make it forget."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.support.logs import abandon, open_log

from lastword import batch
from lastword.batch import BatchHeader
from lastword.errors import FencedProducerError, OutOfOrderSequenceError, WriteFailedError
from lastword.folder.paths import PRODUCERS_FILE
from lastword.log import Log
from lastword.record import NewRecord
from lastword.wal import producers
from lastword.wal.producers import ProducerStates
from lastword.wal.writer import Produced, Staged


def header(sequence: int, count: int = 1, *, producer: int = 5, epoch: int = 0) -> BatchHeader:
    return batch.read_header(data(sequence, count, producer=producer, epoch=epoch))  # type: ignore[return-value]


def data(sequence: int, count: int = 1, *, producer: int = 5, epoch: int = 0) -> bytes:
    return batch.encode(
        [NewRecord(key=b"k", value=b"v")] * count,
        now_ms=1,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def stage(log: Log, sequence: int, count: int = 1, *, epoch: int = 0) -> Staged:
    writer = log.topic("t").writer(0)
    sent = data(sequence, count, epoch=epoch)
    found = batch.read_header(sent)
    assert found is not None
    (staged,) = writer.stage_produced([Produced(found, bytearray(sent), None, None)])
    if isinstance(staged, Exception):
        raise staged
    writer.wait_durable(staged.end_offset)
    return staged


def test_the_next_batch_a_duplicate_and_a_gap() -> None:
    states = ProducerStates()
    states.appended(header(0, 3), 100, 1)
    assert states.find_duplicate(header(3)) is None
    duplicate = states.find_duplicate(header(0, 3))
    assert duplicate is not None and (duplicate.first_offset, duplicate.last_offset) == (100, 102)
    with pytest.raises(OutOfOrderSequenceError, match="sends sequence 4; the last one was 2"):
        states.find_duplicate(header(4))
    with pytest.raises(OutOfOrderSequenceError):
        states.find_duplicate(header(0, 2))


def test_five_batches_are_known() -> None:
    states = ProducerStates()
    for sequence in range(7):
        states.appended(header(sequence), sequence, 1)
    assert states.find_duplicate(header(2)) is not None
    with pytest.raises(OutOfOrderSequenceError):
        states.find_duplicate(header(1))


def test_epochs() -> None:
    states = ProducerStates()
    states.appended(header(0, epoch=3), 0, 1)
    with pytest.raises(FencedProducerError, match="epoch 2; 3 was seen before"):
        states.find_duplicate(header(1, epoch=2))
    with pytest.raises(OutOfOrderSequenceError, match="must be 0"):
        states.find_duplicate(header(1, epoch=4))
    assert states.find_duplicate(header(0, epoch=4)) is None


def test_sequences_begin_again_after_the_last_one() -> None:
    states = ProducerStates()
    states.appended(header((1 << 31) - 2, 3), 0, 1)
    assert states.find_duplicate(header(1)) is None


def test_silent_producers_are_forgotten() -> None:
    states = ProducerStates()
    states.appended(header(0), 0, 1000)
    states.expire(1000)
    assert len(states) == 1
    states.expire(1001)
    assert len(states) == 0


@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("killed", [False, True])
def test_known_after_a_restart(tmp_path: Path, clock: ManualClock, rolled: bool, killed: bool) -> None:
    log = open_log(tmp_path / "data", clock)
    log.create_topic("t")
    assert stage(log, 0, 2).base_offset == 0
    if rolled:
        log.topic("t").roll(due_only=False)
    assert stage(log, 2).base_offset == 2
    for _ in range(2):
        if killed:
            abandon(log)
        else:
            log.close()
        log = open_log(tmp_path / "data", clock)
        assert stage(log, 0, 2) == Staged(0, 2, True, 1)
        assert stage(log, 2).is_duplicate
        with pytest.raises(OutOfOrderSequenceError):
            stage(log, 9)
    assert not stage(log, 3).is_duplicate
    log.close()


def test_known_after_a_crash_and_an_idle_open(tmp_path: Path, clock: ManualClock) -> None:
    log = open_log(tmp_path / "data", clock)
    log.create_topic("t")
    stage(log, 0)
    abandon(log)
    with open_log(tmp_path / "data", clock) as idle:
        idle.topic("t")
    with open_log(tmp_path / "data", clock) as log:
        assert stage(log, 0).is_duplicate


def test_the_deleter_leaves_files_that_are_still_needed(tmp_path: Path, clock: ManualClock) -> None:
    with open_log(tmp_path / "data", clock, {"local.retention.ms": 0}) as log:
        topic = log.create_topic("t")
        stage(log, 0)
        topic.seal()
        stage(log, 1)
        topic.seal()
        (wal,) = topic.local_wals()
        assert wal.producers_saved_to == 2
        saved = wal.folder / PRODUCERS_FILE
        saved.write_text(json.dumps({**json.loads(saved.read_text()), "offset": 1}))
        report = log.run_retention(steps=["delete"])
        assert [each.file.first_offset for each in report.wal.deletions] == [0]
        topic.roll(due_only=False)
        stage(log, 2)
        topic.seal()
        assert len(log.run_retention(steps=["delete"]).wal.deletions) == 2


@pytest.mark.parametrize("killed", [False, True])
def test_known_although_every_save_but_the_first_failed(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    log = open_log(tmp_path / "data", clock, {"local.retention.ms": 0})
    topic = log.create_topic("t")
    stage(log, 0)

    def full(_states: ProducerStates, _folder: Path, _end_offset: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(ProducerStates, "save", full)
        for _ in range(3):
            topic.seal()
            topic.append("k", "v")
        assert log.run_retention(steps=["delete"]).wal.deletions == ()
        if killed:
            abandon(log)
        else:
            log.close()
    with open_log(tmp_path / "data", clock) as log:
        assert stage(log, 0).is_duplicate


def test_a_producers_first_batch_is_not_taken_if_it_can_not_be_noted(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_log(tmp_path / "data", clock) as log:
        topic = log.create_topic("t")

        def full(_states: ProducerStates, _folder: Path, _end_offset: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(ProducerStates, "save", full)
            with pytest.raises(WriteFailedError, match="Nothing was appended"):
                stage(log, 0)
        assert topic.writer(0).end_offset == 0
        assert stage(log, 0).base_offset == 0


def test_a_file_that_can_not_be_read_is_made_anew_from_the_wal(tmp_path: Path, clock: ManualClock) -> None:
    log = open_log(tmp_path / "data", clock)
    topic = log.create_topic("t")
    stage(log, 0)
    for _ in range(3):
        topic.roll(due_only=False)
        topic.append("k", "v")
    (topic.writer(0).folder / PRODUCERS_FILE).write_text("{")
    abandon(log)
    with open_log(tmp_path / "data", clock) as log:
        assert stage(log, 0).is_duplicate


def test_a_log_without_such_producers_has_no_file(tmp_path: Path, clock: ManualClock) -> None:
    with open_log(tmp_path / "data", clock) as log:
        topic = log.create_topic("t")
        topic.append("k", "v")
        topic.seal()
        folder = topic.writer(0).folder
    assert not producers.exists(folder)


def test_old_timestamps_do_not_make_a_producer_expire(tmp_path: Path, clock: ManualClock) -> None:
    """Who fills in old records, of 1970 here, is as active as any other."""
    log = open_log(tmp_path / "data", clock)
    log.create_topic("t")
    sent = stage(log, 0)
    abandon(log)
    with open_log(tmp_path / "data", clock) as opened:
        opened.topic("t").append("k", "v")
        opened.topic("t").writer(0).roll()
        assert stage(opened, 0) == sent._replace(is_duplicate=True, timestamp_ms=1)
