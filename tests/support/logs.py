"""Logs and WALs as tests use them: opened with a clock of their own, filled, listed, killed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import UUID

import pytest
from tests.support.clock import ManualClock

import lastword
from lastword import batch
from lastword.config import BrokerConfig, TopicSettings, WalSync
from lastword.errors import NotOwnerError
from lastword.folder import steps
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.record import NewRecord, Record
from lastword.wal import checkpoint as checkpoints
from lastword.wal import state as states
from lastword.wal.checkpoint import WriterCheckpoint
from lastword.wal.files import PlacedBatch, list_seqs
from lastword.wal.reader import WalReader, decode
from lastword.wal.recovery import Floor, open_wal
from lastword.wal.state import WalState
from lastword.wal.writer import PartitionWriter

TOPIC_ID = UUID(int=7)

# ------------------------------------------------------------------------------------ the end of a process


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.fixture(autouse=True)
def no_hook() -> Iterator[None]:
    """A module that imports it leaves no step behind at which others are killed."""
    yield
    steps.install(None)


def kill_at(step: str) -> None:
    """Raise Killed the next time that a step is reached."""

    def hook(name: str) -> None:
        if name == step:
            steps.install(None)
            raise Killed

    steps.install(hook)


# ----------------------------------------------------------------------------------------------- whole logs


def open_log(
    folder: Path, clock: ManualClock, config: Mapping[str, object] | None = None, **options: bool
) -> Log:
    return lastword.open(folder, config=config or {}, clock=clock, **options)


def kill(writer: PartitionWriter) -> None:
    """As if the process had been killed: nothing is synced or noted."""
    with writer._changed:
        writer._active.close()


def abandon(log: Log) -> None:
    """As if the process had been killed: nothing is synced, noted or given back, but the kernel takes the lock."""
    if log._writer.flusher is not None:
        log._writer.flusher.close()
    log._leases._stop.set()
    if log._leases._thread is not None:
        log._leases._thread.join()
    for topic in log._topics.opened.values():
        topic._closed = True
        for partition in topic.all_partitions():
            partition._closed = True
            kill(partition.writer)
    log._catalog.close()
    log._topics.is_closed = True
    assert log._writer._lock is not None and log._writer._lock._fd is not None
    os.close(log._writer._lock._fd)
    log._writer._lock._fd = None


def fill(topic: Topic, first: int, end: int, *, partition: int = 0) -> None:
    """Append records whose values are the numbers from `first` up to `end`, each in a batch of its own."""
    for number in range(first, end):
        topic.append(f"k{number}", str(number), partition=partition)


def values(records: Iterator[Record] | list[Record]) -> list[int]:
    """The numbers that `fill` appended."""
    return [int(record.value or b"-1") for record in records]


def offsets(records: Iterator[Record] | list[Record]) -> list[int]:
    return [record.offset for record in records]


def wal_path(topic: Topic, partition: int = 0) -> Path:
    return topic.partition(partition).folder


def wal_seqs(topic: Topic, partition: int = 0) -> list[int]:
    return list_seqs(wal_path(topic, partition))


def segment_files(log: Log) -> set[Path]:
    return set((log.path / "warehouse").rglob("*.parquet"))


def roll(topic: Topic, partition: int = 0) -> None:
    topic.partition(partition).writer.roll()


def takes_appends(topic: Topic) -> bool:
    """Whether this folder may append to the topic, which another one may have taken over."""
    try:
        topic.check_owned()
    except NotOwnerError:
        return False
    return True


# ----------------------------------------------------------------------------------------------- a WAL alone


def settings(**own: object) -> TopicSettings:
    """Settings of a topic; `segment_bytes=1` stands for `segment.bytes`."""
    return BrokerConfig.load(None).resolve(
        "t", {key.replace("_", "."): str(value) for key, value in own.items()}
    )


def one_batch(*payloads: bytes | str, now_ms: int = 0) -> bytes:
    records = [
        NewRecord(key=b"k", value=each.encode() if isinstance(each, str) else each) for each in payloads
    ]
    return batch.encode(records, now_ms=now_ms)


class WalFolder:
    """A partition's WAL without a table: open it, look into it, and damage it."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self.folder = folder
        self.clock = clock

    def open(self, *, sync: str = "group", floor: Floor | None = None, **own: object) -> PartitionWriter:
        opened = open_wal(
            self.folder, topic_id=TOPIC_ID, partition=0, floor=floor or Floor(), now_ms=self.clock.now_ms()
        )
        mode, _, interval = sync.partition(":")
        wal_sync = WalSync(mode=mode, interval_ms=int(interval) if interval else None)  # type: ignore[arg-type]
        return PartitionWriter(self.folder, opened, settings=settings(**own), sync=wal_sync, clock=self.clock)

    @contextmanager
    def opened(self, **options: object) -> Iterator[PartitionWriter]:
        writer = self.open(**options)  # type: ignore[arg-type]
        yield writer
        writer.close()

    def fill(self, writer: PartitionWriter, first: int, end: int) -> None:
        for number in range(first, end):
            writer.append(one_batch(str(number)))

    def kill(self, writer: PartitionWriter) -> None:
        kill(writer)

    @property
    def checkpoint(self) -> WriterCheckpoint:
        saved = checkpoints.load_writer(self.folder)
        assert saved is not None
        return saved

    @property
    def state(self) -> WalState:
        state = states.load(self.folder)
        assert state is not None
        return state

    @property
    def seqs(self) -> list[int]:
        return list_seqs(self.folder)

    @property
    def aside(self) -> list[str]:
        folder = self.folder / "aside"
        return sorted(each.name for each in folder.iterdir()) if folder.exists() else []

    def path(self, seq: int) -> Path:
        return self.folder / f"wal.{seq:010d}.log"

    def flip(self, seq: int, position: int) -> None:
        """Flip a bit of a file."""
        data = bytearray(self.path(seq).read_bytes())
        data[position] ^= 1
        self.path(seq).write_bytes(data)

    def read(self, offset: int = 0, max_bytes: int = 1 << 20) -> list[tuple[int, bytes]]:
        """Offsets and values from an offset on, by a reader of its own."""
        reader = WalReader(self.folder)
        try:
            return read_on(reader, offset, max_bytes)
        finally:
            reader.close()


def read_on(reader: WalReader, offset: int, max_bytes: int = 1 << 20) -> list[tuple[int, bytes]]:
    """Offsets and values from an offset up to the end."""
    found: list[tuple[int, bytes]] = []
    while placed := reader.read(offset, max_bytes=max_bytes):
        found += payloads(placed, offset)
        offset = placed[-1].header.next_offset
    return found


def payloads(placed: list[PlacedBatch], offset: int) -> list[tuple[int, bytes]]:
    return [
        pair
        for records in decode(placed, from_offset=offset)
        for pair in zip(
            records.column("offset").to_pylist(), records.column("value").to_pylist(), strict=True
        )
    ]


def numbered(first: int, end: int) -> list[tuple[int, bytes]]:
    """What `WalFolder.fill` appended, if its numbers are its offsets."""
    return [(number, str(number).encode()) for number in range(first, end)]


def open_files(below: Path) -> int:
    """How many files below a folder this process has open. Those elsewhere may be another test's."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += each.readlink().is_relative_to(below)
    return found
