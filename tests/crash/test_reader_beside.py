"""A reader in another process replays and follows while the writer is killed again and again."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pytest
from tests.support.crash import Children, Known
from tests.support.crash_child import READ_TOPICS, Job, broker_config

import lastword


def follow_through_kills(children: Children, folder: Path, seed: int, kills: int) -> None:
    chosen = random.Random(seed)
    known = Known()
    stop = folder.parent / "stop"
    runs = iter(range(seed * 1000, seed * 1000 + 1000))
    known.learn(children.start(Job(folder=str(folder), run=next(runs), rounds=1)).finish())
    reader = children.start(Job(folder=str(folder), run=next(runs), role="read", stop_file=str(stop)))
    assert reader.read_until(lambda line: line[1] == "reading")
    draining = threading.Thread(target=reader.read_until)
    draining.start()
    for _ in range(kills):
        sync = chosen.choice(["group", "none", "interval:5"])
        writer = children.start(Job(folder=str(folder), run=next(runs), sync=sync))
        writer.read_for(0.1 + chosen.random() * 0.4)
        writer.kill()
        known.learn(writer.finish())
    with lastword.open(folder, config=broker_config()) as log:
        known.check(log)
        stop.touch()
        draining.join(timeout=180)
        assert not draining.is_alive()
        check_what_was_read(reader.finish(), known, log)


def check_what_was_read(lines: list[tuple[str, str, dict]], known: Known, log: lastword.Log) -> None:
    ends = next(details["topics"] for _, what, details in lines if what == "ends")
    for name in READ_TOPICS:
        topic = log.topic(name)
        for partition in range(2):
            extent = topic.extents()[partition]
            there = known.topics[topic.id.hex].records[partition]
            read = [
                (details["at"][1], details["name"], details["checksum"])
                for _, what, details in lines
                if what == "read" and details["topic"] == name and details["at"][0] == partition
            ]
            offsets = [offset for offset, _, _ in read]
            assert read, f"nothing of {name}/{partition} was read"
            assert offsets == sorted(set(offsets)), f"{name}/{partition}: out of order or twice"
            gaps = set(range(offsets[0], extent.log_end)) - set(offsets)
            assert all(offset < extent.log_start for offset in gaps), (
                f"{name}/{partition}: a gap at {min(gaps)}"
            )
            assert ends[name][str(partition)] == extent.log_end
            for offset, record_name, value_checksum in read:
                # What was read was acknowledged, or it is there now: nothing vanished after it had been seen.
                assert offset in there, f"{name}/{partition}: {offset} was read and is not there"
                assert there[offset].checksum == value_checksum
                assert there[offset].name in (None, record_name)


def test_a_reader_sees_no_gap_and_nothing_that_vanishes(children: Children, folder: Path) -> None:
    follow_through_kills(children, folder, seed=51, kills=6)


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(60, 64))
def test_a_reader_beside_many_kills(children: Children, folder: Path, seed: int) -> None:
    follow_through_kills(children, folder, seed, kills=25)
