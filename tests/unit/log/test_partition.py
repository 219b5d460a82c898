"""A partition, and a topic that knows fewer of them than its table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.clock import ManualClock
from tests.support.logs import fill, open_log

import lastword
from lastword.errors import ClosedError
from lastword.log import Log, partition


def test_partitions_that_another_process_has_added_are_described(tmp_path: Path, clock: ManualClock) -> None:
    with open_log(tmp_path / "data", clock) as writer:
        writer.create_topic("t")
        with lastword.open(tmp_path / "data", read_only=True, clock=clock) as log:
            held = log.topic("t")
            fill(writer.alter_topic("t", partitions=3), 0, 2, partition=2)
            found = held.describe()
            assert [each.partition for each in found.partitions] == [0, 1, 2]
            assert found.partitions[2].log_end == 2
            assert [wal.partition for wal in held.local_wals()] == [0, 1, 2]
            assert held.wal_damage() == []


def test_settings_that_change_while_a_wal_is_recovered_count(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log.create_topic("t", config={"segment.bytes": "1000000"})
    fill(topic, 0, 2)
    own = topic.partition(0)
    recover = partition.open_wal

    def slowly(*given: Any, **named: Any) -> Any:
        opened = recover(*given, **named)
        log.alter_topic("t", set_config={"segment.bytes": "2000000"})
        return opened

    monkeypatch.setattr(partition, "open_wal", slowly)
    topic.reopen_partition(0)
    assert own.writer.settings.segment_bytes == topic.settings.segment_bytes == 2_000_000


def test_one_that_was_closed_is_never_opened_again(log: Log) -> None:
    own = log.create_topic("t").partition(0)
    own.close()
    for act in (own.open, own.reopen, own.reader, lambda: own.skip([])):
        with pytest.raises(ClosedError):
            act()


def test_one_that_is_not_written_here_has_facts_all_the_same(tmp_path: Path, clock: ManualClock) -> None:
    with open_log(tmp_path / "data", clock) as writer:
        fill(writer.create_topic("t"), 0, 3)
        with lastword.open(tmp_path / "data", read_only=True, clock=clock) as log:
            topic = log.topic("t")
            assert not topic.partition(0).is_open and topic.open_partitions() == []
            assert topic.target().facts[0].log_end == writer.topic("t").target().facts[0].log_end == 3
