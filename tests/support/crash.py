"""Runs children that die, knows what they acknowledged, and checks a log against that."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog
from tests.support.crash_child import (
    NAME_HEADER,
    broker_config,
    checksum,
    make_key,
    make_value,
)

import lastword
from lastword.clock import SystemClock

DEADLINE_S = 180
REPOSITORY = Path(lastword.__file__).parents[2]
Line = tuple[str, str, dict[str, Any]]


def named_steps() -> list[str]:
    """Every step that the code names, so that none can be forgotten."""
    found: set[str] = set()
    for path in (REPOSITORY / "src").rglob("*.py"):
        found.update(re.findall(r"\breached\(\s*[\"']([^\"']+)[\"']", path.read_text()))
    return sorted(found)


class Running:
    """A child at work."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self._fd = fd
        self._rest = b""
        self._ended = False
        self.lines: list[Line] = []

    def read_until(
        self, wanted: Callable[[Line], bool] | None = None, deadline_s: float = DEADLINE_S
    ) -> bool:
        """Read what the child says until it says what is wanted; False if it ends before."""
        deadline = time.monotonic() + deadline_s
        while not self._ended:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._fd], [], [], left)[0]:
                self.kill()
                raise AssertionError(f"the child {self.pid} was silent: {self.lines[-3:]}")
            new = self._read()
            if wanted is not None and any(wanted(line) for line in new):
                return True
        return False

    def read_for(self, duration_s: float) -> None:
        """Read what the child says for a while, or until it ends."""
        deadline = time.monotonic() + duration_s
        while not self._ended and (left := deadline - time.monotonic()) > 0:
            if select.select([self._fd], [], [], left)[0]:
                self._read()

    @property
    def ended(self) -> bool:
        return self._ended

    def kill(self) -> None:
        if not self._ended:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def finish(self) -> list[Line]:
        """Everything that the child said until it ended; its own errors are errors of the test."""
        self.read_until()
        for _, what, details in self.lines:
            assert what != "error", details["traceback"]
        return self.lines

    @property
    def killed_at(self) -> str | None:
        return next((details["step"] for _, what, details in self.lines if what == "killed"), None)

    def said(self, what: str) -> bool:
        return any(line[1] == what for line in self.lines)

    def _read(self) -> list[Line]:
        data = os.read(self._fd, 1 << 16)
        if not data:
            self._end()
        *whole, self._rest = (self._rest + data).split(b"\n")
        new: list[Line] = [tuple(json.loads(line)) for line in whole]
        self.lines += new
        return new

    def _end(self) -> None:
        # Its locks are gone when the process is, which is a moment after its pipe.
        self._ended = True
        os.close(self._fd)
        try:
            watched = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            assert select.select([watched], [], [], DEADLINE_S)[0], f"process {self.pid} does not end"
        finally:
            os.close(watched)


def read_together(
    running: Sequence[Running], done: Callable[[], bool] = lambda: False, deadline_s: float = DEADLINE_S
) -> bool:
    """Read what several children say until `done`, or until one of them ends; False if time is up before."""
    deadline = time.monotonic() + deadline_s
    while not done() and not any(each.ended for each in running):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        open_ones = {each._fd: each for each in running}
        for fd in select.select(list(open_ones), [], [], left)[0]:
            open_ones[fd]._read()
    return True


class Children:
    """Starts children within milliseconds, by forks of a process that has imported everything."""

    def __init__(self, module: str = "tests.support.crash_child") -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", module, "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=REPOSITORY,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        )
        self._pipes = Path(tempfile.mkdtemp(prefix="lastword-pipes-"))
        self._count = 0
        self._started: list[Running] = []
        assert self._ask(None) == "ready"

    def start(self, job: Any) -> Running:
        self._count += 1
        pipe = self._pipes / str(self._count)
        os.mkfifo(pipe)
        fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        pid = int(self._ask(json.dumps(asdict(replace(job, says_to=str(pipe))))))
        self._started.append(Running(pid, fd))
        return self._started[-1]

    def end_all(self) -> None:
        """Kill those that a test has left behind, and wait until they are gone."""
        for each in self._started:
            each.kill()
        for each in self._started:
            each.read_until()
        self._started.clear()

    def close(self) -> None:
        self.end_all()
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(timeout=DEADLINE_S)
        self._server.stdout.close()
        shutil.rmtree(self._pipes, ignore_errors=True)

    def _ask(self, line: str | None) -> str:
        assert self._server.stdin is not None and self._server.stdout is not None
        if line is not None:
            self._server.stdin.write(line + "\n")
            self._server.stdin.flush()
        return self._server.stdout.readline().strip()


# ------------------------------------------------------------------------------------------------ the model


@dataclass
class KnownRecord:
    key: str | None
    checksum: int | None
    name: str | None = None


@dataclass
class KnownTopic:
    """What is known of a topic by what was acknowledged, and what was asked for without an answer."""

    name: str
    id: str
    records: dict[int, dict[int, KnownRecord]] = field(default_factory=dict)
    positions: dict[int, list[int]] = field(default_factory=dict)
    deleted_before: dict[int, int] = field(default_factory=dict)
    asked_before: dict[int, int] = field(default_factory=dict)
    reader: dict[str, int] = field(default_factory=dict)
    partitions: int = 0
    deletion_asked: bool = False
    lost: set[tuple[int, int]] = field(default_factory=set)


class Known:
    """What every child so far has been told by the log; `check` compares a log with it."""

    def __init__(self) -> None:
        self.topics: dict[str, KnownTopic] = {}
        self.deleted: set[str] = set()
        self.creation_asked: set[str] = set()
        self.refused: set[str] = set()
        self.records = 0

    def learn(self, lines: list[Line]) -> None:
        for mark, what, details in lines:
            getattr(self, f"_{'asked' if mark == '?' else 'told'}_{what}", lambda **_: None)(**details)

    def _topic(self, name: str, topic_id: str) -> KnownTopic:
        assert topic_id not in self.deleted, f"topic {name} ({topic_id}) was deleted and came back"
        if topic_id not in self.topics:
            # A creation without an answer has been made all the same.
            assert name in self.creation_asked, f"nobody created topic {name} ({topic_id})"
            self._told_create(topic=name, id=topic_id)
        return self.topics[topic_id]

    def _asked_create(self, *, topic: str) -> None:
        self.creation_asked.add(topic)

    def _told_create(self, *, topic: str, id: str) -> None:  # noqa: A002
        for old in [each for each in self.topics.values() if each.name == topic and each.id != id]:
            assert old.deletion_asked, f"{topic} was created again although it was never deleted"
            self._told_delete(topic=topic, id=old.id)
        self.creation_asked.discard(topic)
        self.topics[id] = KnownTopic(topic, id)

    def _asked_delete(self, *, topic: str, id: str) -> None:  # noqa: A002
        self._topic(topic, id).deletion_asked = True

    def _told_delete(self, *, topic: str, id: str) -> None:  # noqa: A002
        self.topics.pop(id, None)
        self.deleted.add(id)

    def _told_append(self, *, topic: str, id: str, records: list[list[Any]]) -> None:  # noqa: A002
        known = self._topic(topic, id)
        for partition, offset, key, value_checksum in records:
            of_partition = known.records.setdefault(partition, {})
            assert offset not in of_partition, (
                f"{topic}/{partition}: offset {offset} was acknowledged twice, and seen before"
            )
            of_partition[offset] = KnownRecord(key, value_checksum)
            self.records += 1

    def _told_refused(self, *, topic: str, id: str, name: str) -> None:  # noqa: A002
        self.refused.add(name)

    def _told_positions(self, *, topic: str, id: str, partitions: list[list[int]]) -> None:  # noqa: A002
        known = self._topic(topic, id)
        for partition, positions in enumerate(partitions):
            before = known.positions.get(partition, positions)
            assert all(new >= old for new, old in zip(positions, before, strict=True)), (
                f"{topic}/{partition}: a position went back: {before} -> {positions}"
            )
            known.positions[partition] = positions

    def _asked_alter(self, *, topic: str, id: str, partitions: int) -> None:  # noqa: A002
        self._topic(topic, id)

    def _told_alter(self, *, topic: str, id: str, partitions: int, config: dict[str, Any]) -> None:  # noqa: A002
        known = self._topic(topic, id)
        known.partitions = max(known.partitions, partitions)

    def _asked_delete_records(self, *, topic: str, id: str, partition: int, before: int) -> None:  # noqa: A002
        known = self._topic(topic, id)
        known.asked_before[partition] = max(before, known.asked_before.get(partition, 0))

    def _told_delete_records(self, *, topic: str, id: str, partition: int, before: int) -> None:  # noqa: A002
        known = self._topic(topic, id)
        known.deleted_before[partition] = max(before, known.deleted_before.get(partition, 0))

    def _asked_position(self, *, topic: str, id: str, positions: dict[str, int]) -> None:  # noqa: A002
        self._topic(topic, id)

    def _told_position(self, *, topic: str, id: str, positions: dict[str, int]) -> None:  # noqa: A002
        self._topic(topic, id).reader = positions

    def _told_seal(self, *, topic: str, problems: list[Any]) -> None:
        assert not problems, f"sealing {topic}: {problems}"

    def _told_retention(self, *, problems: list[Any], errors: list[Any]) -> None:
        assert not problems and not errors, f"retention: {problems} {errors}"

    # -------------------------------------------------------------------------------------------- check

    def check(self, log: lastword.Log) -> None:
        """Everything acknowledged is there once, in order, whole; nothing else is, but for whole batches."""
        there = {log.topic(name).id.hex: name for name in log.topics()}
        for topic_id in self.deleted:
            assert topic_id not in there, f"the deleted topic {there[topic_id]} came back"
        for known in list(self.topics.values()):
            if known.id not in there:
                assert known.deletion_asked, f"topic {known.name} is lost"
                self._told_delete(topic=known.name, id=known.id)
            known.deletion_asked = False
        for topic_id, name in there.items():
            self._check_topic(log.topic(name), self._topic(name, topic_id))
        self.creation_asked.clear()

    def _check_topic(self, topic: lastword.Topic, known: KnownTopic) -> None:
        assert topic.partitions >= known.partitions, f"{topic.name} lost a partition"
        known.partitions = topic.partitions
        described = topic.describe()
        self._told_positions(
            topic=topic.name,
            id=known.id,
            partitions=[[p.log_start, p.first_dirty, p.sealed_end, p.log_end] for p in described.partitions],
        )
        for at in described.partitions:
            assert at.problem is None or known.lost, f"{topic.name}/{at.partition}: {at.problem}"
            self._check_partition(topic, known, at.partition)
        with topic.reader("follower") as reader:
            for partition, offset in known.reader.items():
                assert reader.positions[int(partition)] >= offset, "a named reader's position went back"

    def _check_partition(self, topic: lastword.Topic, known: KnownTopic, partition: int) -> None:
        where = f"{topic.name}/{partition}"
        extent = topic.extents()[partition]
        acknowledged = known.records.setdefault(partition, {})
        deleted_before = known.deleted_before.get(partition, 0)
        assert extent.log_start >= deleted_before, f"{where}: deleted records came back"
        if "retention.bytes" not in topic.config:
            # Only deletion moves it: what was answered, or what was asked for without an answer.
            allowed = max(deleted_before, known.asked_before.get(partition, 0))
            assert extent.log_start <= allowed, f"{where}: the log start moved to {extent.log_start}"
        known.deleted_before[partition] = known.asked_before[partition] = extent.log_start
        records = list(topic.read(partition=partition))
        lost = {offset for at, offset in known.lost if at == partition}
        expected = [each for each in range(extent.log_start, extent.log_end) if each not in lost]
        assert [record.offset for record in records] == expected, (
            f"{where}: offsets {_differ(records, expected)}"
        )
        missing = [each for each in acknowledged if each >= extent.log_end]
        assert not missing, (
            f"{where}: acknowledged offsets {missing[:5]} are lost; the log ends at {extent.log_end}"
        )
        self._check_whole(where, records, extent.log_start, lost, self.refused)
        for record in records:
            name = dict(record.headers)[NAME_HEADER]
            assert name is not None
            known_record = acknowledged.setdefault(
                record.offset, KnownRecord(_text(record.key), checksum(record.value))
            )
            assert (known_record.key, known_record.checksum) == (_text(record.key), checksum(record.value)), (
                f"{where}: offset {record.offset} is not what was acknowledged"
            )
            assert known_record.name in (None, name.decode()), f"{where}: offset {record.offset} changed"
            known_record.name = name.decode()

    @staticmethod
    def _check_whole(
        where: str, records: list[lastword.Record], log_start: int, lost: set[int], refused: set[str]
    ) -> None:
        """Each record says which append it is of: all of an append's records in a partition are there, once."""
        seen: set[str] = set()
        batches: dict[str, list[tuple[int, int, int]]] = {}
        for record in records:
            name = (dict(record.headers)[NAME_HEADER] or b"").decode()
            assert name not in refused, f"{where}: the append {name} failed, and is at {record.offset}"
            assert name not in seen, f"{where}: {name} is there twice"
            seen.add(name)
            assert record.value == make_value(name) and record.key == make_key(name), (
                f"{where}: {name} is damaged"
            )
            run, append, index, count, *_ = name.split("/")
            batches.setdefault(f"{run}/{append}", []).append((record.offset, int(index), int(count)))
        for append, places in batches.items():
            first_offset, first_index, count = places[0]
            if first_offset > log_start and not lost:
                assert first_index == 0 and len(places) == count, (
                    f"{where}: {append} is there in part: {places}"
                )
            steps = [(offset - first_offset, index - first_index) for offset, index, _ in places]
            assert lost or steps == [(each, each) for each in range(len(places))], (
                f"{where}: {append} is out of order"
            )


def _text(key: bytes | None) -> str | None:
    return None if key is None else key.decode()


def _differ(records: list[lastword.Record], expected: list[int]) -> str:
    found = [record.offset for record in records]
    return f"missing {sorted(set(expected) - set(found))[:5]}, unexpected or twice {[o for o in found if found.count(o) > 1 or o not in set(expected)][:5]}"


# ------------------------------------------------------------------------------------------------ leftovers


class LaterClock(SystemClock):
    """The machine's clock, some hours later: every lease of a dead process has lapsed."""

    def now_ms(self) -> int:
        return super().now_ms() + 6 * 3600 * 1000


def clean_up(folder: Path) -> None:
    """What a log does over time: retention, expiry and collection, after every lease of the dead has lapsed."""
    with lastword.open(folder, config=broker_config(), clock=LaterClock()) as log:
        for name in log.topics():
            log.topic(name).seal()
        _tidy_up(log)
        # Metadata that no snapshot names stays until another commit has fenced the one that may have written it.
        for name in log.topics():
            log.alter_topic(name)
        _tidy_up(log, steps=["collect"])


def _tidy_up(log: lastword.Log, **steps: Any) -> None:
    report = log.run_retention(**steps)
    assert not report.problems and not report.wal.errors, report


def leftovers(folder: Path) -> list[str]:
    """Files that nothing names. The tables are asked by pyiceberg alone, the WALs by their checkpoints."""
    catalog = load_catalog(
        "lastword",
        type="sql",
        uri=f"sqlite:///{folder / 'catalog.db'}",
        warehouse=f"file://{folder / 'warehouse'}",
    )
    named: set[Path] = set()
    for namespace in catalog.list_namespaces():
        for identifier in catalog.list_tables(namespace):
            table = catalog.load_table(identifier)
            named |= _files_of_table(table)
            named |= _files_of_wal(folder, identifier, table.metadata.properties["lastword.topic.id"])
    catalog.close()
    found = {
        path
        for part in ("warehouse", "wal", "leases", "deleting", "creating")
        for path in (folder / part).rglob("*")
        if path.is_file()
    }
    # One of a fixed name for each checkpoint, which the next save overwrites.
    found -= {path for path in found if path.name in ("writer.json.tmp", "deleter.json.tmp")}
    return sorted(str(path.relative_to(folder)) for path in found - named)


def _files_of_table(table: Any) -> set[Path]:
    metadata = table.metadata
    files = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    for snapshot in metadata.snapshots:
        files.add(snapshot.manifest_list)
        for manifest in snapshot.manifests(table.io):
            files.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
            files.update(entry.data_file.file_path for entry in entries)
    return {Path(file.removeprefix("file://")) for file in files}


def _files_of_wal(folder: Path, identifier: tuple[str, ...], topic_id: str) -> set[Path]:
    named: set[Path] = set()
    own = folder / "wal" / identifier[0] / identifier[1] / topic_id
    # Where catalog or warehouse are shared.
    named.add(own / "owned.json")
    for partition in [each for each in own.iterdir() if each.is_dir()]:
        saved = json.loads((partition / "writer.json").read_bytes())
        start = -1
        if (partition / "deleter.json").exists():
            start = json.loads((partition / "deleter.json").read_bytes())["start_seq"]
        names = {f"wal.{file['seq']:010d}.log" for file in saved["files"] if file["seq"] >= start}
        named |= {partition / name for name in (*names, "writer.json", "wal.state", "deleter.json")}
        # Kept for people to look at, and removed after some days.
        named |= set((partition / "aside").glob("*"))
    return named
