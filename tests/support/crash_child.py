"""The program that crash tests kill: it works on a log and says what was acknowledged, until it dies.

`python -m tests.support.crash_child '<job as JSON>'` runs one job and prints to stdout. With `--serve` it is a
server that has imported everything already: it reads jobs from stdin, one a line, and forks a process for each,
so that a child starts in milliseconds.

Every line is JSON. `?` is said before a call, `!` after it returned, and nothing is buffered: what a dead child
had said is known. Each record carries its own name in a header (run/append/index/count, counted within
its partition), and key and value
follow from that name, so that a reader can check any record that it finds, acknowledged or not.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import signal
import sys
import time
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lastword
from lastword import Compression, NewRecord
from lastword.batch.partitioner import partition_of
from lastword.errors import InvalidTopicError, OffsetOutOfRangeError, TopicExistsError, WriteFailedError
from lastword.folder import disk, steps

NAME_HEADER = "name"
PR_SET_PDEATHSIG = 1
CORE_TOPICS = {
    "kept": {"retention.ms": -1, "segment.bytes": 3000},
    "cloud.first": {"retention.ms": -1, "local.retention.ms": 0, "segment.bytes": 2000},
    "cloud.short": {"retention.bytes": 4000, "local.retention.bytes": 3000, "segment.bytes": 1500},
}
READ_TOPICS = tuple(CORE_TOPICS)
MAX_PASSING_TOPICS = 2
BROKER = {
    "collect.grace.ms": 1,
    "snapshot.retention.ms": 0,
    "lease.ttl.ms": 60_000,
}


@dataclass(frozen=True, kw_only=True)
class Job:
    """`kill_step` kills the process at the n-th time (`kill_count`) that the step is reached."""

    folder: str
    run: int
    role: str = "work"
    sync: str = "group"
    rounds: int = 3
    kill_step: str | None = None
    kill_count: int = 1
    tear: bool = False
    says_to: str | None = None
    stop_file: str | None = None


def make_value(name: str) -> bytes | None:
    """The value of the record with this name: null, empty, or bytes that follow from it."""
    seed = zlib.crc32(name.encode())
    if seed % 11 == 0:
        return None
    return random.Random(seed).randbytes(seed % 13 * 20)


def make_key(name: str) -> bytes | None:
    seed = zlib.crc32(name.encode(), 1)
    return None if seed % 9 == 0 else b"key-%d" % (seed % 20)


def checksum(value: bytes | None) -> int | None:
    return None if value is None else zlib.crc32(value)


def broker_config(sync: str = "group") -> dict[str, object]:
    return {**BROKER, "wal.sync": sync}


class Speaker:
    """Says what happens, and dies at the step that it is told to die at."""

    def __init__(self, fd: int, kill_step: str | None, kill_count: int) -> None:
        self.fd = fd
        self.kill_step = kill_step
        self.left_to_kill = kill_count

    def say(self, mark: str, what: str, **details: Any) -> None:
        os.write(self.fd, (json.dumps([mark, what, details]) + "\n").encode())

    def reached(self, step: str) -> None:
        if step == self.kill_step:
            self.left_to_kill -= 1
            if self.left_to_kill == 0:
                self.say("!", "killed", step=step)
                os.kill(os.getpid(), signal.SIGKILL)


class Child(Speaker):
    """One job at work."""

    def __init__(self, job: Job, fd: int) -> None:
        super().__init__(fd, job.kill_step, job.kill_count)
        self.job = job
        self.random = random.Random(job.run)
        self.appends = 0
        self.appended: set[str] = set()

    def run(self) -> None:
        steps.install(self.reached)
        if self.job.tear:
            tear_active_files(Path(self.job.folder))
        match self.job.role:
            case "work":
                self.work()
            case "read":
                self.read()
            case "repair":
                self.repair()
            case "hold":
                lastword.open(self.job.folder, config=broker_config())
                self.say("!", "opened")
                signal.pause()
            case role:
                raise ValueError(role)
        self.say("!", "done")

    # ------------------------------------------------------------------------------------------- work

    def work(self) -> None:
        self.log = self.open()
        for _ in range(self.job.rounds):
            todo: list[Callable[[], None]] = [
                *[self.append_some] * 14,
                *[self.seal] * 3,
                *[self.retention] * 2,
                *[self.delete_records] * 2,
                self.seal_rolled,
                self.create,
                self.alter,
                self.commit_position,
                self.reopen,
                self.fail_and_reopen,
                self.delete,
            ]
            self.random.shuffle(todo)
            for act in todo:
                act()
        self.log.close()
        self.say("!", "closed")

    def open(self) -> lastword.Log:
        log = lastword.open(self.job.folder, config=broker_config(self.job.sync))
        self.say("!", "opened")
        for name, config in CORE_TOPICS.items():
            if name not in log.topics():
                self.say("?", "create", topic=name)
                topic = log.create_topic(name, partitions=2, config=config)
                self.say("!", "create", topic=name, id=topic.id.hex)
        return log

    def any_topic(self) -> lastword.Topic:
        return self.log.topic(self.random.choice(self.log.topics()))

    def names(self, count: int) -> list[str]:
        self.appends += 1
        return [f"{self.job.run}/{self.appends}/{index}/{count}" for index in range(count)]

    def spread_names(self, count: int, partitions: int) -> list[str]:
        """Names of records whose keys lead to all partitions, each numbered within the one that it leads to."""
        self.appends += 1
        names = []
        for partition in range(partitions):
            for index in range(count):
                salt = 0
                while True:
                    name = f"{self.job.run}/{self.appends}.{partition}/{index}/{count}/{salt}"
                    key = make_key(name)
                    if key is not None and partition_of(key, partitions) == partition:
                        break
                    salt += 1
                names.append(name)
        return names

    def append_some(self) -> None:
        topic = self.any_topic()
        kind = self.random.choice(["one", "many", "spread"])
        partition = self.random.randrange(topic.partitions)
        if kind == "one":
            [name] = self.names(1)
            records = [new_record(name)]
            at = topic.append(
                records[0].key, records[0].value, headers=records[0].headers, partition=partition
            )
            positions = [at]
        else:
            count = self.random.randrange(2, 20)
            names = self.names(count) if kind == "many" else self.spread_names(count, topic.partitions)
            records = [new_record(name) for name in names]
            positions = topic.append_many(
                records,
                partition=partition if kind == "many" else None,
                compression=self.random.choice([Compression.NONE, Compression.GZIP]),
            )
        self.say_appended(topic, positions, records)

    def said_appended(self, name: str) -> bool:
        return name in self.appended

    def say_appended(
        self, topic: lastword.Topic, positions: list[lastword.RecordPosition], records: list[NewRecord]
    ) -> None:
        self.appended = {(dict(record.headers)[NAME_HEADER] or b"").decode() for record in records}
        self.say(
            "!",
            "append",
            topic=topic.name,
            id=topic.id.hex,
            records=[
                [at.partition, at.offset, None if r.key is None else r.key.decode(), checksum(r.value)]
                for at, r in zip(positions, records, strict=True)
            ],
        )

    def seal(self) -> None:
        topic = self.any_topic()
        report = topic.seal()
        self.say("!", "seal", topic=topic.name, problems=report.problems)
        self.say_positions(topic)

    def seal_rolled(self) -> None:
        topic = self.any_topic()
        report = topic.seal_rolled()
        self.say("!", "seal", topic=topic.name, problems=report.problems)
        self.say_positions(topic)

    def say_positions(self, topic: lastword.Topic) -> None:
        described = topic.describe()
        self.say(
            "!",
            "positions",
            topic=topic.name,
            id=topic.id.hex,
            partitions=[[p.log_start, p.first_dirty, p.sealed_end, p.log_end] for p in described.partitions],
        )

    def retention(self) -> None:
        report = self.log.run_retention()
        self.say("!", "retention", problems=report.problems, errors=report.wal.errors)
        for name in self.log.topics():
            self.say_positions(self.log.topic(name))

    def create(self) -> None:
        passing = [name for name in self.log.topics() if name not in CORE_TOPICS]
        if len(passing) >= MAX_PASSING_TOPICS:
            return
        name = f"passing-{self.random.randrange(3)}"
        self.say("?", "create", topic=name)
        try:
            topic = self.log.create_topic(
                name, partitions=self.random.randrange(1, 3), config={"segment.bytes": 1000}
            )
        except (TopicExistsError, InvalidTopicError):
            return
        self.say("!", "create", topic=name, id=topic.id.hex)

    def alter(self) -> None:
        topic = self.any_topic()
        partitions = min(topic.partitions + self.random.randrange(2), 3)
        changed = {"segment.bytes": self.random.choice([900, 2000, 4000])}
        self.say("?", "alter", topic=topic.name, id=topic.id.hex, partitions=partitions)
        self.log.alter_topic(topic.name, set_config=changed, partitions=partitions)
        self.say("!", "alter", topic=topic.name, id=topic.id.hex, partitions=partitions, config=changed)

    def delete(self) -> None:
        passing = [name for name in self.log.topics() if name not in CORE_TOPICS]
        if not passing:
            return
        topic = self.log.topic(self.random.choice(passing))
        self.say("?", "delete", topic=topic.name, id=topic.id.hex)
        self.log.delete_topic(topic.name)
        self.say("!", "delete", topic=topic.name, id=topic.id.hex)

    def delete_records(self) -> None:
        topic = self.any_topic()
        partition = self.random.randrange(topic.partitions)
        extent = topic.extents()[partition]
        before = extent.log_start + (extent.log_end - extent.log_start) // 2
        self.say("?", "delete_records", topic=topic.name, id=topic.id.hex, partition=partition, before=before)
        try:
            topic.delete_records({partition: before})
        except OffsetOutOfRangeError:
            return
        self.say("!", "delete_records", topic=topic.name, id=topic.id.hex, partition=partition, before=before)

    def commit_position(self) -> None:
        topic = self.any_topic()
        with topic.reader("follower") as reader:
            reader.poll(max_records=15)
            self.say("?", "position", topic=topic.name, id=topic.id.hex, positions=reader.positions)
            reader.commit()
            self.say("!", "position", topic=topic.name, id=topic.id.hex, positions=reader.positions)

    def reopen(self) -> None:
        self.log.close()
        self.say("!", "closed")
        self.log = self.open()

    def fail_and_reopen(self) -> None:
        """The disk fails one sync or write: the append raises, and a reopening makes the partition whole."""
        topic = self.log.topic("kept")
        [name] = self.names(1)
        record = new_record(name)
        with failing_disk(self.random.choice(["write", "fdatasync"]), f"/{topic.id.hex}/0/"):
            try:
                at = topic.append(record.key, record.value, headers=record.headers, partition=0)
                self.say_appended(topic, [at], [record])
                assert self.job.sync != "group", "acknowledged although the disk had failed"
                # Without a sync of its own the append was fine; the one that a reopening begins with is not,
                # unless the flusher had it before.
                topic.reopen_partition(0)
            except WriteFailedError:
                if not self.said_appended(name):
                    self.say("!", "refused", topic=topic.name, id=topic.id.hex, name=name)
        topic.reopen_partition(0)

    # ------------------------------------------------------------------------------------------- read

    def read(self) -> None:
        """Replay and follow the core topics in another process, until asked to stop and all is read."""
        assert self.job.stop_file is not None
        stop = Path(self.job.stop_file)
        with lastword.open(self.job.folder, config=broker_config(), read_only=True) as log:
            readers = {name: log.topic(name).reader(f"beside-{self.job.run}") for name in READ_TOPICS}
            self.say("!", "reading")
            while True:
                stopping = stop.exists()
                got = 0
                for name, reader in readers.items():
                    for record in reader.poll(max_records=200, timeout_s=0.005):
                        got += 1
                        self.say(
                            "!",
                            "read",
                            topic=name,
                            at=[record.partition, record.offset],
                            name=dict(record.headers)[NAME_HEADER].decode(),
                            checksum=checksum(record.value),
                        )
                if stopping and not got:
                    # Partitions that were added meanwhile are a new reader's.
                    self.say("!", "ends", topics={n: r.positions for n, r in readers.items()})
                    return

    # ----------------------------------------------------------------------------------------- repair

    def repair(self) -> None:
        with lastword.open(self.job.folder, config=broker_config()) as log:
            for name in log.topics():
                log.topic(name).skip_wal_damage()
                self.say("!", "skipped", topic=name)
                log.topic(name).seal()


def new_record(name: str) -> NewRecord:
    return NewRecord(
        key=make_key(name), value=make_value(name), headers=((NAME_HEADER, name.encode()),), timestamp_ms=None
    )


@contextmanager
def failing_disk(what: str, where: str) -> Iterator[None]:
    """Every call of `disk.<what>` on a file with `where` in its path fails."""
    kept = getattr(disk, what)

    def fail(fd: int, *rest: Any) -> Any:
        if where in str(Path(f"/proc/self/fd/{fd}").readlink()):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return kept(fd, *rest)

    setattr(disk, what, fail)
    try:
        yield
    finally:
        setattr(disk, what, kept)


def tear_active_files(folder: Path) -> None:
    """Leave the beginning of a batch at the end of every active WAL file, as a kill within a write does."""
    for partition in folder.glob("wal/*/*/*/*"):
        files = sorted(partition.glob("wal.*.log"))
        whole = max((file.read_bytes() for file in files), key=len, default=b"")
        if files and whole:
            with files[-1].open("ab") as active:
                active.write(whole[: min(len(whole), 200) * 2 // 3])


def run_job(job: dict[str, Any]) -> int:
    return run_child(Job(**job), Child)


def run_child(job: Any, child_class: Callable[[Any, int], Any]) -> int:
    """Let a child do its job; what it fails with is said too."""
    fd = 1 if job.says_to is None else os.open(job.says_to, os.O_WRONLY | os.O_CLOEXEC)
    child = child_class(job, fd)
    try:
        child.run()
    except BaseException:  # noqa: BLE001
        child.say("!", "error", traceback=traceback.format_exc())
        return 1
    return 0


def serve(run: Callable[[dict[str, Any]], int]) -> None:
    """Answers each job with the pid of its process."""
    # Nobody waits for the children: they are watched through pidfds by whoever asked for them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    warm_up()
    print("ready", flush=True)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                die_with_parent()
                code = run(json.loads(line))
            finally:
                os._exit(code)
        print(pid, flush=True)


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the one that forked it ends, however that ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def warm_up() -> None:
    """Load what is compiled, so that it is loaded before the fork. No log is opened: its threads would be lost."""
    from lastword import batch, log

    assert log
    data = batch.encode([new_record("1/1/0/1")], now_ms=time.time_ns() // 1_000_000)
    batch.decode_many([memoryview(data)])


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve(run_job)
    else:
        sys.exit(run_job(json.loads(sys.argv[1])))
