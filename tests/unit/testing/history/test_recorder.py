from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest

from lastword.errors import InvalidError
from lastword.testing.history import (
    Fetch,
    History,
    Outcome,
    Point,
    Produce,
    ProducedRecord,
    Recorder,
    RestartKind,
    SeenRecord,
)

ALICE = ProducedRecord(key=b"alice", value=b"v1", timestamp_ms=5, headers=(("h", None), ("h", b"\xff")))


def test_an_operation_has_its_place_in_the_order_and_its_answer() -> None:
    recorder = Recorder(order=itertools.count(10).__next__)
    with recorder.produce("users", 0, [ALICE], process="c1") as op:
        with recorder.fetch("users", 0, 0, session="s", process="c2") as inner:
            inner.returned([], 0, high_watermark=0)
        op.acknowledged(3)
    produce, fetch = recorder.history()
    assert isinstance(produce, Produce)
    assert isinstance(fetch, Fetch)
    assert (produce.invoked, fetch.invoked, fetch.completed, produce.completed) == (10, 11, 12, 13)
    assert (produce.outcome, produce.base_offset, produce.process) == (Outcome.OK, 3, "c1")
    assert (fetch.next_offset, fetch.high_watermark, fetch.session) == (0, 0, "s")


def test_an_exception_is_a_doubt_unless_its_type_is_a_refusal() -> None:
    recorder = Recorder(refusals=(ValueError,))
    for error in (TimeoutError("slow"), ValueError("bad")):
        with pytest.raises(type(error)), recorder.produce("users", 0, [ALICE]):
            raise error
    with recorder.produce("users", 0, [ALICE]):
        pass
    doubt, refused, silent = recorder.history()
    assert (doubt.outcome, doubt.error) == (Outcome.DOUBT, "TimeoutError('slow')")
    assert refused.outcome is Outcome.REFUSED
    assert silent.outcome is Outcome.DOUBT
    assert silent.completed is not None


def test_an_exception_after_the_answer_changes_nothing() -> None:
    recorder = Recorder()
    with pytest.raises(TimeoutError), recorder.produce("users", 0, [ALICE]) as op:
        op.acknowledged(1)
        raise TimeoutError
    assert next(iter(recorder.history())).outcome is Outcome.OK


def test_an_operation_that_did_not_return_is_part_of_the_history(tmp_path: Path) -> None:
    with Recorder(path=tmp_path / "h.jsonl") as recorder:
        recorder.produce("users", 0, [ALICE])
    assert [each.completed for each in recorder.history()] == [None]
    assert History.read(tmp_path / "h.jsonl") == recorder.history()


def everything(recorder: Recorder) -> None:
    """Record an operation of each kind."""
    with recorder.topic_created("users", {"cleanup.policy": "compact"}, partitions=2) as op:
        op.ok()
    with recorder.topic_settings("users", {"retention.ms": None}) as op:
        op.refused("no")
    with recorder.produce("users", 0, [ALICE, ProducedRecord(key=None, value=None)]) as produce:
        produce.acknowledged(0)
    with recorder.fetch("users", 0, 0, session="s") as fetch:
        seen = SeenRecord(offset=0, key=b"", value=b"\0", timestamp_ms=-1, headers=(("h", b""),))
        fetch.returned([seen], 2, log_start=0, high_watermark=2, first_dirty=0)
    with recorder.positions("users", 0) as positions:
        positions.returned(log_start=0, first_dirty=1, sealed_end=2, log_end=3)
    with recorder.state_read("users", partitions=[0, 1], as_of=Point(offsets={0: 1, 1: 2})) as state:
        state.returned({b"alice": b"v1", b"": b""})
    with recorder.time_travel("users", 0, Point(time_ms=7)) as travel:
        travel.returned([seen])
    with recorder.erase("users", [b"alice", b"\xff"]) as op:
        op.doubt("timeout")
    with recorder.delete_records("users", 0, 1) as op:
        op.ok()
    with recorder.offset_commit("g", "users", 0, 1) as op:
        op.ok()
    with recorder.offset_read("g", "users", 0) as offset:
        offset.returned(None)
    with recorder.restart(RestartKind.POWER_LOSS) as op:
        op.ok()
    with recorder.restore(recorder.now(), recorder.now(), topics=["users"]) as op:
        op.ok()
    with recorder.takeover() as op:
        op.ok()
    with recorder.topic_deleted("users") as op:
        op.ok()


def test_files_keep_everything(tmp_path: Path) -> None:
    with Recorder(path=tmp_path / "recorded.jsonl") as recorder:
        everything(recorder)
    history = recorder.history()
    assert len(history) == 15
    history.write(tmp_path / "written.jsonl")
    assert History.read(tmp_path / "recorded.jsonl") == history
    assert History.read(tmp_path / "written.jsonl") == history


def test_files_of_several_recorders_are_merged_in_order(tmp_path: Path) -> None:
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    numbers = itertools.count()
    recorders = [Recorder(path=path, order=numbers.__next__, keep=False) for path in paths]
    for number in range(6):
        with recorders[number % 2].produce("users", number, [ALICE]) as op:
            op.acknowledged()
    for each in recorders:
        each.close()
        assert len(each.history()) == 0
    merged = History.read(*paths)
    assert [each.partition for each in merged if isinstance(each, Produce)] == list(range(6))


def test_a_cut_off_last_line_is_left_out_and_damage_before_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    with Recorder(path=path) as recorder:
        for _ in range(2):
            with recorder.produce("users", 0, [ALICE]) as op:
                op.acknowledged(0)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines)[:-5])
    first, second = History.read(path)
    assert (first.completed is None, second.completed is None) == (False, True)
    path.write_text("".join([lines[0], "{}\n", *lines[2:]]))
    with pytest.raises(InvalidError, match=r"h\.jsonl, line 2"):
        History.read(path)


def test_numbers_rise_whatever_the_clock_of_the_order_does() -> None:
    recorder = Recorder(order=lambda: 7)
    threads = [threading.Thread(target=lambda: [recorder.now() for _ in range(200)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert recorder.now() == 7 + 800
