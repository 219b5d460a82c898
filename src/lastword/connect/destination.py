"""The log that sources append to: opened here as its writer, or written by another process on request.

Either way records arrive as staged units (see lastword.wal.staged): this process writes files, the writer appends them.
So sources can run in the process that has the log open, or beside a server that holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from lastword.clock import Clock
from lastword.compaction.strategy import LastWord
from lastword.errors import LastwordError, UnavailableError, UnknownTopicError, WriteFailedError
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.reading import timetravel, winners
from lastword.reading.reader import PartitionReader
from lastword.wal import staged

FIRST_WINDOW: Final = 65_536
"""The number of offsets that are searched for a key first, from the end of a partition backwards; then ever more."""
SEARCH_WINDOW: Final = 4096
"""Below this many offsets, read instead of bisecting further."""


class Destination(Protocol):
    """The operations of a log that appending needs."""

    @property
    def path(self) -> Path: ...

    @property
    def clock(self) -> Clock: ...

    def topic(self, name: str) -> Topic:
        """Return a topic. Raise UnknownTopicError if there is none."""
        ...

    def create_topic(self, name: str, *, partitions: int, config: Mapping[str, str]) -> None: ...

    def default_partitions(self) -> int: ...

    def append_staged(self, topic: str, sink: str, number: int) -> int: ...


class _OpenLog:
    """The reads of a log that is open here, whichever process writes it."""

    def __init__(self, log: Log) -> None:
        self._log = log

    @property
    def path(self) -> Path:
        return self._log.path

    @property
    def clock(self) -> Clock:
        return self._log.clock

    def topic(self, name: str) -> Topic:
        return self._log.topic(name)

    def default_partitions(self) -> int:
        return self._log.config.num_partitions


class OwnDestination(_OpenLog):
    """A log that is open here as its writer."""

    @property
    def log(self) -> Log:
        return self._log

    def create_topic(self, name: str, *, partitions: int, config: Mapping[str, str]) -> None:
        self._log.create_topic(name, partitions=partitions, config=config)

    def append_staged(self, topic: str, sink: str, number: int) -> int:
        found = self._log.topic(topic)
        try:
            return found.append_staged(sink, number)
        except WriteFailedError:
            # So the next attempt finds the partition open, and the appended part of the unit counted.
            for partition in found.open_partitions():
                if partition.failed is not None:
                    with suppress(LastwordError):
                        found.reopen_partition(partition.number)
            raise


class RemoteDestination(_OpenLog):
    """A log that another process writes. `log` is open for reading; `create` requests a new topic."""

    def __init__(self, log: Log, create: Callable[[str, int, Mapping[str, str]], object]) -> None:
        super().__init__(log)
        self._create = create

    def create_topic(self, name: str, *, partitions: int, config: Mapping[str, str]) -> None:
        self._create(name, partitions, config)

    def append_staged(self, topic: str, sink: str, number: int) -> int:
        appended = staged.ask_writer(self.path, topic, sink, number)
        if appended is None:
            raise UnavailableError(
                f"No process writes {self.path} any more; the staged records wait for the next one."
            )
        return appended


class NoDestination:
    """A stand-in for a log that does not exist yet, for checks."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock

    @property
    def path(self) -> Path:
        return self._path

    @property
    def clock(self) -> Clock:
        return self._clock

    def topic(self, name: str) -> Topic:
        raise UnknownTopicError(f"there is no topic {name!r}, because there is no log in {self._path}")

    def create_topic(self, name: str, *, partitions: int, config: Mapping[str, str]) -> None:  # noqa: ARG002
        self.topic(name)

    def default_partitions(self) -> int:
        return 1

    def append_staged(self, topic: str, sink: str, number: int) -> int:  # noqa: ARG002
        self.topic(topic)
        return 0


class DestinationReads:
    """The lookups of connectors in the log that they write to."""

    def __init__(self, destination: Destination) -> None:
        self._destination = destination

    def newest(self, topic: str, keys: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """Return the newest value of each key, searching each partition backwards from its end."""
        from lastword.batch.partitioner import partition_of

        found: dict[bytes, bytes | None] = {}
        opened = self._destination.topic(topic)
        wanted: dict[int, set[bytes]] = {}
        for key in keys:
            wanted.setdefault(partition_of(key, opened.partitions), set()).add(key)
        for partition, missing in wanted.items():
            found |= _newest_in(opened, partition, missing)
        return found

    def live_keys(self, topic: str) -> Iterator[bytes]:
        """Yield the keys whose newest record has a value, as of now, partition by partition, in bounded memory."""
        opened = self._destination.topic(topic)
        for partition in range(opened.partitions):
            with closing(opened.partition_reader(partition)) as reader, ExitStack() as pins:
                (found,) = winners.find([reader], timetravel.view_now, LastWord(), pins)
                for keys in found.live_keys():
                    yield from keys.to_pylist()

    def behind(self, topic: str, partition: int, header: str, number: int) -> int:
        """Bisect, as the numbers grow with the offsets. First step backwards from the end, where most readers are."""
        with closing(self._destination.topic(topic).partition_reader(partition)) as reader:
            extent = reader.extent()
            low, high, step = extent.log_start, extent.log_end, SEARCH_WINDOW
            while high - step > low and not _is_below(reader, high - step, extent.log_end, header, number):
                high, step = high - step, step * 4
            low = max(low, high - step)
            while high - low > SEARCH_WINDOW:
                middle = (low + high) // 2
                if _is_below(reader, middle, extent.log_end, header, number):
                    low = middle
                else:
                    high = middle
            # The last lower record may lie beyond `high`, after a gap.
            found = extent.log_start
            for offset, value in _numbers(reader, low, extent.log_end, header):
                if value >= number:
                    break
                found = offset + 1
            return found


def _is_below(reader: PartitionReader, start: int, end: int, header: str, number: int) -> bool:
    """Return whether the first record with the header, from an offset on, has a lower number."""
    return next((value < number for _, value in _numbers(reader, start, end, header)), False)


def _numbers(reader: PartitionReader, start: int, end: int, header: str) -> Iterator[tuple[int, int]]:
    """Yield the offset, and the number in the header, of each record that has the header."""
    for records in reader.replay(start, end):
        for offset, headers in zip(
            records.column("offset").to_pylist(), records.column("headers").to_pylist(), strict=True
        ):
            for each in headers or ():
                if each["key"] == header and each["value"] is not None and each["value"].isdigit():
                    yield offset, int(each["value"])


def _newest_in(topic: Topic, partition: int, missing: set[bytes]) -> dict[bytes, bytes | None]:
    """Search from the end backwards: most keys that are looked up were appended lately."""
    found: dict[bytes, bytes | None] = {}
    with closing(topic.partition_reader(partition)) as reader:
        extent = reader.extent()
        end, window = extent.log_end, FIRST_WINDOW
        while missing and end > extent.log_start:
            start = max(extent.log_start, end - window)
            here: dict[bytes, bytes | None] = {}
            for records in reader.replay(start, end):
                own = records.filter(pc.is_in(records.column("key"), pa.array(list(missing), pa.binary())))
                for key, value, offset in zip(
                    own.column("key").to_pylist(),
                    own.column("value").to_pylist(),
                    own.column("offset").to_pylist(),
                    strict=True,
                ):
                    if offset < end:
                        here[key] = value
            found |= here
            missing -= set(here)
            end, window = start, window * 4
    return found
