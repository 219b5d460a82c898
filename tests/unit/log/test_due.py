"""Whether compaction is due, why, and how dirty a partition is: the plan, the command, the dashboard and the metric agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.clock import DAY_MS, ManualClock
from tests.support.compacted import INLINE_CONFIG
from tests.support.logs import open_log
from tests.unit.admin.test_views import rows

from lastword import metrics
from lastword.admin import views
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.operations.compaction import compact_topic
from lastword.record import NewRecord

STRATEGIES = {
    "offset": {},
    "first": {},
    "timestamp": {},
    "header": {
        "compaction.strategy.header": "v",
        "compaction.strategy.header.format": "text",
        "compaction.strategy.header.missing": "lowest",
    },
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def log(tmp_path: Path, clock: ManualClock) -> Iterator[Log]:
    with open_log(tmp_path / "data", clock, INLINE_CONFIG) as opened:
        yield opened


def agree(log: Log, topic: Topic) -> list[str]:
    """Check that all say the same; the reasons."""
    planned = {each.partition: each for each in log.plan_compaction([topic.name])}
    described = {each.partition: each for each in topic.describe().partitions}
    assert {number: each.due for number, each in described.items()} == {
        number: planned[number].reason if number in planned else None for number in described
    }
    for number, each in planned.items():
        assert described[number].dirty_ratio == pytest.approx(each.dirty_ratio)
    row = rows(views.Overview(log))[topic.name]
    assert row["due"] == Counter(each.reason for each in planned.values())
    ratios = [each.dirty_ratio or 0.0 for each in described.values()]
    assert row["dirty_ratio"] == pytest.approx(max(ratios))
    log.measure()
    for number, ratio in enumerate(ratios):
        exported = metrics.DIRTY_RATIO.labels(topic.name, str(number))._value.get()
        assert exported == pytest.approx(ratio)
    return sorted(each.reason for each in planned.values())


@pytest.mark.parametrize("basis", ["bytes", "records"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_say_the_same(log: Log, clock: ManualClock, strategy: str, basis: str) -> None:
    config = {
        "cleanup.policy": "compact",
        "compaction.strategy": strategy,
        "dirty.ratio.basis": basis,
        "delete.retention.ms": 1000,
        "min.cleanable.dirty.ratio": 0.4,
        "compaction.at.seal": False,
        **STRATEGIES[strategy],
    }
    topic = log.create_topic("t", partitions=2, config=config)

    def write(first: int, values: list[bytes | None]) -> None:
        topic.append_many(
            [
                NewRecord(
                    key=b"k%d" % (number % 4),
                    value=value,
                    headers=(("v", b"%06d" % (first + number)),),
                    timestamp_ms=clock.now_ms() + number,
                )
                for number, value in enumerate(values)
            ],
            partition=0,
        )

    assert agree(log, topic) == []
    write(0, [b"x" * 50] * 20)
    topic.seal()
    assert agree(log, topic) == ["min.cleanable.dirty.ratio"]
    log.compact(["t"])
    assert agree(log, topic) == []
    clock.move(100)
    write(100, [None, None, b"y"])
    agree(log, topic)
    topic.seal()
    agree(log, topic)
    log.compact(["t"], asked_for=True)
    agree(log, topic)
    # Something that is not sealed yet may still be older than the tombstones, by some strategies.
    write(50, [b"late"])
    clock.move(2000)
    agree(log, topic)
    topic.seal()
    agree(log, topic)
    log.compact(["t"], asked_for=True)
    clock.move(DAY_MS)
    agree(log, topic)


def test_the_command_and_the_explanation_say_the_same_when_nothing_is_due(
    log: Log, clock: ManualClock
) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact", "min.compaction.lag.ms": 1000})

    def why() -> str:
        report = compact_topic(log, "t", seal=False)
        assert (
            compact_topic(log, "t", seal=False, dry_run=True)["nothing_to_compact"]
            == (report["nothing_to_compact"])
        )
        (explained,) = topic.explain(seal=False).partitions
        assert report["nothing_to_compact"] == f"{explained.not_due}."
        return str(explained.not_due)

    topic.append("a", "1")
    assert why() == "nothing is sealed"
    topic.seal()
    held_back = "is held back: it has records younger than min.compaction.lag.ms=1000"
    assert why() == f"everything {held_back}"
    clock.move(1000)
    log.compact(["t"])
    topic.append("a", "2")
    topic.seal()
    assert compact_topic(log, "t", partitions=[], seal=False)["nothing_to_compact"] == f"{why()}."
    assert why() == f"the dirty part {held_back}"
    topic.delete_records({0: -1})
    log.run_retention()
    assert why() == "nothing is sealed"
    log.alter_topic("t", set_config={"cleanup.policy": "delete"})
    assert "not compacted" in why()


def test_a_reader_that_has_not_come_that_far_holds_tombstones_for_all(log: Log, clock: ManualClock) -> None:
    topic = log.create_topic("t", config={"cleanup.policy": "compact", "delete.retention.ms": 1000})
    topic.append("a", "1")
    with topic.reader("slow") as reader:
        reader.commit()
    topic.append("a", None)
    topic.seal()
    log.compact(["t"])
    clock.move(5000)
    agree(log, topic)
