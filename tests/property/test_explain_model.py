"""What explain says of each record is what a compaction that is started at that moment does, exactly.

LASTWORD_EXAMPLES multiplies the number of examples for a long run.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from tests.property.test_compaction_model import EXAMPLES, SECOND, Step, _do
from tests.support.clock import ManualClock
from tests.support.compacted import Twin, sealed_records
from tests.support.compaction_model import NO_TIMESTAMP, Policy

from lastword.explain import Run
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.record import NewRecord

RUNS: tuple[tuple[Run, bool], ...] = (
    ("asked for", True),
    ("asked for", False),
    ("forced", True),
    ("worker", True),
)


def a_policy(random: Random) -> Policy:
    """Under which much happens within a few steps."""
    strategy = random.choice(["offset", "offset", "first", "timestamp", "header"])
    compacts = random.random() < 0.95
    return Policy(
        compacts=compacts,
        deletes=not compacts or random.random() < 0.4,
        strategy=strategy,
        header_format=random.choice(["long", "text"]) if strategy == "header" else "long",
        min_ratio=random.choice([0.0, 0.3, 0.5, 0.9]),
        ratio_basis=random.choice(["bytes", "records"]),
        min_lag_ms=random.choice([0, 0, 0, 10]) * SECOND,
        delete_retention_ms=random.choice([0, 5, 30]) * SECOND,
        tombstone_clock=random.choice(["compaction", "record"]),
        min_rewrite_ratio=random.choice([0.0, 0.4, 0.8]),
        at_seal=random.random() < 0.5,
        retention_ms=random.choice([None, 30 * SECOND, 30 * SECOND]),
        hold_ms=60 * SECOND,
        hold_max_ms=random.choice([0, 30, 600]) * SECOND,
    )


def a_record(random: Random, policy: Policy) -> NewRecord:
    """A record; its timestamp is counted in seconds from the time of the append."""
    key = random.choice(
        [None, b"", b"a", b"b", b"k" * 40, b"k" * 39 + b"l", *(b"u%d" % n for n in range(20))]
    )
    value = None if random.random() < 0.25 else random.choice([b"", b"v", b"x" * 300])
    headers: tuple[tuple[str, bytes | None], ...] = ()
    if policy.strategy == "header" and random.random() < 0.9:
        version = random.randint(-2, 3)
        good = version.to_bytes(8, "big", signed=True) if policy.header_format == "long" else b"%d" % version
        headers = (("v", random.choice([good, good, good, b"bad"])),)
    stamp = random.choice([None, None, None, None, NO_TIMESTAMP, 0, 5, -10, -40])
    return NewRecord(key=key, value=value, headers=headers, timestamp_ms=stamp)


def a_history(random: Random, policy: Policy, partitions: int) -> list[Step]:
    found: list[Step] = []
    for _ in range(random.randint(2, 4)):
        for _ in range(random.randint(1, 3)):
            records = tuple(
                (random.randrange(partitions), a_record(random, policy)) for _ in range(random.randint(2, 16))
            )
            found.append(Step("append", records=records))
            for _ in range(random.randint(0, 2)):
                do = random.choice(["seal", "seal", "move", "move", "read", "delete", "retain"])
                number = random.choice([1, 5, 10, 35]) if do == "move" else random.randint(0, 100)
                if do == "delete":
                    number //= 3
                found.append(
                    Step(do, number=number, partition=random.randrange(partitions), mode=random.choice("rs"))  # type: ignore[arg-type]
                )
        found.append(Step("compact"))
    return found


class Beside:
    """A topic on which every run is explained before it is made."""

    def __init__(self, twin: Twin) -> None:
        self.log: Log = twin.log
        self.topic: Topic = twin.topic
        self.clock: ManualClock = twin.clock
        self.twin = twin

    def offsets(self) -> list[set[int]]:
        """For each partition every record that there is: in sealed files, and in the WAL from the sealed end on."""
        found = []
        for partition in range(self.topic.partitions):
            at = self.twin.positions(partition)
            sealed = {record.offset for record in sealed_records(self.twin.table, partition)}
            tail = {
                record.offset
                for record in self.topic.read(partition=partition)
                if record.offset >= at.sealed_end
            }
            found.append(sealed | tail)
        return found

    def check(self, run: Run, seal: bool) -> None:
        """Explain, then do it, and compare."""
        explained = self.topic.explain(limit=None, run=run, seal=seal)
        before = self.offsets()
        for partition, found in enumerate(explained.partitions):
            assert [each.offset for each in found.records] == sorted(before[partition]), (partition, found)
        if run == "worker":
            self.topic.seal_rolled()
            report = self.log.compact(["t"])
        else:
            report = self.log.compact(["t"], seal=seal, asked_for=True, force=run == "forced")
        assert not report.problems
        assert {each.partition: each.reason for each in report.partitions} == {
            each.partition: each.due for each in explained.partitions if each.due is not None
        }
        after = self.offsets()
        for partition, found in enumerate(explained.partitions):
            says = {each.offset for each in found.records if not each.goes}
            wrong = {
                each.offset: (each.goes, each.reason)
                for each in found.records
                if each.offset in says ^ after[partition]
            }
            assert says == after[partition], (run, seal, wrong, found)
            for each in found.records:
                if each.verdict.beaten_by is not None:
                    assert each.verdict.beaten_by != each.offset
                    assert each.verdict.beaten_by in before[partition], each
                assert not (each.goes and each.verdict.waits_for), each


@pytest.mark.parametrize("seed", range(24 * EXAMPLES))
def test_it_says_exactly_what_the_run_does(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    policy, partitions = a_policy(random), random.randint(1, 2)
    config = {
        "segment.bytes": random.choice([400, 5000, 1 << 20]),
        "segment.ms": random.choice([20, 3600]) * SECOND,
    }
    with Twin(tmp_path / "data", policy, partitions=partitions, config=config) as twin:
        beside = Beside(twin)
        for step in a_history(random, policy, partitions):
            if step.do == "compact":
                beside.check(*random.choice(RUNS))
            else:
                _do_to_log(beside, step)
        for run, seal in RUNS:
            beside.check(run, seal)


def _do_to_log(beside: Beside, step: Step) -> None:
    """As the model's test does it, to the log alone: the models don't know what is only in the WAL."""
    log, topic, twin = beside.log, beside.topic, beside.twin
    match step.do:
        case "seal":
            assert not topic.seal().problems
        case "delete":
            end = topic.extents()[step.partition].log_end
            topic.delete_records({step.partition: end * step.number // 100})
        case "retain":
            log.run_retention()
        case "read":
            with topic.reader(step.mode) as reader:
                for partition, extent in topic.extents().items():
                    span = extent.log_end - extent.log_start
                    reader.seek(partition, extent.log_start + span * step.number // 100)
                reader.commit()
        case _:
            _do(twin, step)
