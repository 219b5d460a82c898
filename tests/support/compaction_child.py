"""The programs of the kill tests of compaction: a writer, a maintainer, a compactor without the role, a reader.

`python -m tests.support.compaction_child --serve` forks a process for each job that it is given (see crash_child.py).

Every record has a name of its own in a header, and its value follows from that name. The keys of one append are all
different. Keys that are to be erased (`secret-<run>-<number>-`) are only asked for once nobody appends them any more.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.compaction_services import TwoStagesInline
from tests.support.crash_child import NAME_HEADER, Speaker, run_child, serve

import lastword
from lastword import NewRecord
from lastword.clock import SystemClock
from lastword.compaction.engine import InlineEngine
from lastword.compaction.job import Compactor
from lastword.compaction.request import CompactionRequest
from lastword.errors import LockedError, UnavailableError
from lastword.folder import steps

PARTITIONS = 2
KEYS = 30
TOPICS = {
    "words": {"cleanup.policy": "compact", "segment.bytes": 4000, "compaction.at.seal": False},
    "brief": {
        "cleanup.policy": "compact",
        "segment.bytes": 2500,
        "delete.retention.ms": 0,
        "local.retention.ms": 0,
        "compaction.at.seal": True,
    },
}
"""In `brief` records are compacted while they are sealed, tombstones go with the second run that passes them, and WAL
files once they are sealed."""

LASTING = "words"
"""The topic whose tombstones outlast every test, so that whoever follows it misses none."""

STRATEGIES: dict[str, dict[str, object]] = {
    "offset": {},
    "first": {"compaction.strategy": "first"},
    "timestamp": {"compaction.strategy": "timestamp"},
    "header": {
        "compaction.strategy": "header",
        "compaction.strategy.header": "version",
        "compaction.strategy.header.format": "long",
    },
}
VERSION_HEADER = "version"

BROKER: dict[str, object] = {
    "collect.grace.ms": 0,
    "snapshot.retention.ms": 0,
    "lease.ttl.ms": 60_000,
    "compaction.service.factory": "lastword.compaction.inline:InlineCompactionServiceFactory",
}
WAYS: dict[str, type[InlineEngine]] = {"one stage": InlineEngine, "two stages": TwoStagesInline}
_INLINE = {
    "one stage": "lastword.compaction.inline:InlineCompactionServiceFactory",
    "two stages": "tests.support.compaction_services:TwoStagesInlineFactory",
}
_SPARK = {
    "one stage": "lastword.compaction.spark:SparkCompactionServiceFactory",
    "two stages": "tests.support.compaction_services:TwoStagesSparkFactory",
}
SPARK = {
    "spark.master": "local[2,3]",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "2",
}
BIG_TOPIC = "big"
SLOW_S = 2.0
"""The longest that a slow replay lasts."""
OVERTAKEN = "its segments changed each time that it was planned"
PACE_S = 0.004
"""The writer appends no faster, so that the log stays small. Nobody waits for it."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """`kill_step` kills the process at the n-th time (`kill_count`) that the step is reached."""

    folder: str
    run: int
    role: str
    stop_file: str
    kill_step: str | None = None
    kill_count: int = 1
    says_to: str | None = None
    way: str = "one stage"
    pace_s: float = PACE_S
    """A writer waits so long between two rounds of appends."""
    asks_from: str | None = None
    """A pipe with a line for each compaction that is wanted of a Spark driver."""


def make_value(name: str) -> bytes | None:
    """The value of the record with this name: null, or bytes that follow from it."""
    seed = zlib.crc32(name.encode())
    return None if seed % 5 == 0 else f"{name}:{'x' * (seed % 90)}".encode()


class Child(Speaker):
    """One job at work."""

    def __init__(self, job: Job, fd: int) -> None:
        super().__init__(fd, job.kill_step, job.kill_count)
        self.job = job
        self.random = random.Random(job.run)
        self.stop_file = Path(job.stop_file)
        self.config = BROKER | {"compaction.service.factory": _INLINE[job.way]}

    def run(self) -> None:
        steps.install(self.reached)
        roles: dict[str, Callable[[], None]] = {
            "write": self.write,
            "maintain": self.maintain,
            "keep": self.keep,
            "compact": self.compact,
            "read": self.read,
            "drive": self.drive,
        }
        roles[self.job.role]()
        self.say("!", "done")

    @property
    def stopping(self) -> bool:
        return self.stop_file.exists()

    # ------------------------------------------------------------------------------------------ write

    def write(self) -> None:
        with lastword.open(self.job.folder, config=self.config) as log:
            self.say("!", "opened")
            number = 0
            while not self.stopping:
                number += 1
                for name in TOPICS:
                    self.append(log.topic(name), number)
                time.sleep(self.job.pace_s)

    def append(self, topic: lastword.Topic, number: int) -> None:
        keys = [f"key-{each}" for each in self.random.sample(range(KEYS), self.random.randrange(1, 8))]
        if number % 3 == 0:
            keys.append(secret_key(self.job.run, number // 6))
        self.random.shuffle(keys)
        names = [f"{self.job.run}/{number}/{index}" for index in range(len(keys))]
        # Later appends have higher versions, so that whatever compares them agrees with the offsets.
        version = (self.job.run * 10**6 + number).to_bytes(8, "big")
        records = [
            NewRecord(
                key=key.encode(),
                value=make_value(name),
                headers=((NAME_HEADER, name.encode()), (VERSION_HEADER, version)),
            )
            for key, name in zip(keys, names, strict=True)
        ]
        self.say("?", "append", topic=topic.name, names=names, keys=keys)
        at = topic.append_many(records)
        self.say("!", "append", topic=topic.name, at=[[each.partition, each.offset] for each in at])

    # --------------------------------------------------------------------------------------- maintain

    def maintain(self) -> None:
        """Everything that a worker does, as fast as it can."""
        with lastword.open(self.job.folder, config=self.config, maintain_only=True) as log:
            self.say("!", "opened")
            rounds = 0
            while not self.stopping:
                rounds += 1
                erases = (self.job.kill_step or "").startswith("erase.") or rounds % 3 == 0
                for act in (self.seal, self.compact_all, self.retain, *([self.erase] if erases else [])):
                    self.as_maintenance(act, log)
                if rounds % 4 == 0:
                    self.as_maintenance(lastword.Log.finish_erasures, log)
                self.say("!", "round", number=rounds)

    def keep(self) -> None:
        """What maintenance does besides compaction and erasure."""
        with lastword.open(self.job.folder, config=self.config, maintain_only=True) as log:
            self.say("!", "opened")
            while not self.stopping:
                self.as_maintenance(self.seal, log)
                self.as_maintenance(self.retain, log)

    def as_maintenance(self, act: Callable[[lastword.Log], None], log: lastword.Log) -> None:
        try:
            act(log)
        except LockedError:
            # Another process maintains the log, or begins to write it: next time.
            self.say("!", "locked")
        except UnavailableError as error:
            # It was killed while it answered.
            if not str(error).startswith("The writer does not answer"):
                raise

    def seal(self, log: lastword.Log) -> None:
        for name in TOPICS:
            report = log.topic(name).seal()
            assert not report.problems, report

    def compact_all(self, log: lastword.Log) -> None:
        report = log.compact(asked_for=True)
        assert not report.problems and not report.failed_topics, report
        self.say("!", "compacted", partitions=len(report.partitions))

    def retain(self, log: lastword.Log) -> None:
        report = log.run_retention()
        assert not report.problems and not report.wal.errors, report

    def erase(self, log: lastword.Log) -> None:
        topic = log.topic(self.random.choice(sorted(TOPICS)))
        keys = erasable(topic.state().column("key").to_pylist())[:3]
        if keys:
            texts = [key.decode() for key in keys]
            self.say("?", "erase", topic=topic.name, keys=texts)
            report = log.erase(topic.name, keys)
            assert not report.left, report
            self.say("!", "erase", topic=topic.name, keys=texts)

    # ---------------------------------------------------------------------------------------- compact

    def compact(self) -> None:
        """Compact without the role, so that nothing but the commits keeps two of them apart."""
        with lastword.open(self.job.folder, config=self.config, maintain_only=True) as log:
            self.say("!", "opened")
            engine = WAYS[self.job.way]()
            compactor = Compactor(engine, config=log.config, clock=SystemClock(), leases=log._leases)
            while not self.stopping:
                report = compactor.run(
                    [log.compaction._target(name) for name in TOPICS], CompactionRequest(asked_for=True)
                )
                # One that is overtaken each time gives up until the next run.
                for each in report.problems:
                    assert each.problem is not None
                    assert each.problem == OVERTAKEN, each
                assert not report.failed_topics, report
                self.say("!", "compacted", partitions=len(report.partitions) - len(report.problems))

    # ------------------------------------------------------------------------------------------ drive

    def drive(self) -> None:
        """Compact with Spark, each time that it is asked for, in one process and on one log."""
        assert self.job.asks_from is not None
        # Whoever asks wants to see what a terminal would have got.
        os.dup2(os.open(f"{self.job.asks_from}.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        config = {**BROKER, **SPARK, "compaction.service.factory": _SPARK[self.job.way]}
        with (
            Path(self.job.asks_from).open() as asked,
            lastword.open(self.job.folder, config=config, maintain_only=True) as log,
        ):
            self.say("!", "opened")
            for _ in asked:
                self.say("!", "compacting")
                try:
                    report = log.compact([BIG_TOPIC], asked_for=True)
                except UnavailableError as error:
                    self.say("!", "answer", problems=[str(error)], compacted=0)
                    continue
                assert report.engine == "spark", report
                failed = [each.problem for each in report.problems]
                problems = failed + [problem for _, problem in report.failed_topics]
                self.say("!", "answer", problems=problems, compacted=len(report.partitions) - len(failed))

    # ------------------------------------------------------------------------------------------- read

    def read(self) -> None:
        """Replay all topics from the start, again and again, and follow them, until asked to stop and all is read."""
        with lastword.open(self.job.folder, config=self.config, read_only=True) as log:
            followers = [Follower(log.topic(name)) for name in TOPICS]
            gone = {(name, partition): set[int]() for name in TOPICS for partition in range(PARTITIONS)}
            stopping = False
            while not stopping:
                stopping = self.stopping
                replays = [Replay(log.topic(name)) for name in TOPICS]
                # Some go on so slowly that compaction overtakes them.
                slow_until_s = time.monotonic() + (SLOW_S if self.random.random() < 0.3 else 0)
                while True:
                    got = sum(follower.poll() for follower in followers)
                    overtaken = all(replay.is_overtaken for replay in replays)
                    if (not stopping or not got) and (overtaken or time.monotonic() > slow_until_s):
                        break
                for replay in replays:
                    self.finish_replay(replay, gone)
            self.say("!", "followed", topics={each.topic.name: each.found for each in followers})

    def finish_replay(self, replay: Replay, gone: dict[tuple[str, int], set[int]]) -> None:
        """What a replay does not show was compacted away, and no later replay may show it."""
        topic, ends = replay.topic, replay.ends
        seen: list[list[int]] = [[] for _ in range(PARTITIONS)]
        for record in replay.records:
            seen[record.partition].append(record.offset)
            assert make_value(name_of(record)) == record.value, f"{topic.name}: {record} is damaged"
        for partition, (end, offsets) in enumerate(zip(ends, seen, strict=True)):
            own = gone[topic.name, partition]
            where = f"{topic.name}/{partition}"
            assert offsets == sorted(set(offsets)), f"{where}: out of order or twice"
            assert not (back := own & set(offsets)), f"{where}: {sorted(back)[:5]} came back"
            own |= set(range(end)) - set(offsets)
        self.say(
            "!",
            "replay",
            topic=topic.name,
            ends=ends,
            ends_after=log_ends(topic),
            seen=[spans(each) for each in seen],
        )


class Follower:
    """Reads a topic as it grows, and keeps the name of the last record of each key."""

    def __init__(self, topic: lastword.Topic) -> None:
        self.topic = topic
        self.found: dict[str, str] = {}
        self._reader = topic.reader()
        self._reached = [-1] * PARTITIONS

    def poll(self) -> int:
        records = self._reader.poll(max_records=2000, timeout_s=0.02)
        for record in records:
            before = self._reached[record.partition]
            assert record.offset > before, f"{self.topic.name}: {record.offset} comes after {before}"
            self._reached[record.partition] = record.offset
            assert record.key is not None
            self.found[record.key.decode()] = name_of(record)
        return len(records)


class Replay:
    """A replay that has begun: the ends of the log were looked at, and the first record was read."""

    def __init__(self, topic: lastword.Topic) -> None:
        self.topic = topic
        self.ends = log_ends(topic)
        rest = topic.read()
        first = list(itertools.islice(rest, 1))
        self.records = itertools.chain(first, rest)

    @property
    def is_overtaken(self) -> bool:
        """Whether a partition that it has not come to is clean up to behind the end that it saw."""
        return self.topic.describe().partitions[-1].first_dirty > self.ends[-1]


def log_ends(topic: lastword.Topic) -> list[int]:
    return [extent.log_end for _, extent in sorted(topic.extents().items())]


def name_of(record: lastword.Record) -> str:
    return (dict(record.headers)[NAME_HEADER] or b"").decode()


def secret_key(run: int, number: int) -> str:
    return f"secret-{run}-{number}-{random.Random(run * 1000 + number).randbytes(8).hex()}"


def erasable(keys: Iterable[bytes]) -> list[bytes]:
    """Secret keys that no writer appends any more, because it has gone on to later ones."""
    found = [(key, *map(int, key.split(b"-")[1:3])) for key in keys if key.startswith(b"secret-")]
    latest: dict[int, int] = {}
    for _, run, number in found:
        latest[run] = max(latest.get(run, 0), number)
    return [key for key, run, number in found if number <= latest[run] - 2]


def spans(offsets: list[int]) -> list[int]:
    """Offsets as first and last of each run without a gap."""
    found: list[int] = []
    for offset in offsets:
        if found and offset == found[-1] + 1:
            found[-1] = offset
        else:
            found += [offset, offset]
    return found


def run_job(job: dict[str, Any]) -> int:
    return run_child(Job(**job), Child)


if __name__ == "__main__":
    assert sys.argv[1:] == ["--serve"]
    serve(run_job)
