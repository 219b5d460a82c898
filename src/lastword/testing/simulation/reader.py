"""A client that opens the data folder itself, read-only, for the state, the past and the positions."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from lastword.errors import InvalidError, LastwordError, UnknownTopicError
from lastword.log import Log
from lastword.log import open as open_log
from lastword.log.topic import Topic
from lastword.reading.timetravel import AsOf
from lastword.testing.history import Point, Recorder, SeenRecord
from lastword.testing.history.recorder import Pending
from lastword.testing.simulation.machine import Machine
from lastword.testing.simulation.plan import TOPIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The files of a query, and how long they must stay."""

    topic_id: UUID
    paths: tuple[str, ...]
    stay_ms: int


class _ForeignError(Exception):
    """The topic belongs to another folder, so records that its owner has not sealed are missing here."""


class _UnrecoveredError(Exception):
    """The power was cut, and the log has not been opened for writing since."""


class _ReplacedError(Exception):
    """The data folder was replaced by another one while it was read."""


_EXPECTED = (LastwordError, OSError, _ForeignError, _ReplacedError, _UnrecoveredError)


class Reader:
    """Keeps the log open, and reopens it after an error."""

    def __init__(
        self,
        name: str,
        recorder: Recorder,
        folder: Path,
        config: Mapping[str, Any],
        machine: Machine,
        partitions: int,
        problem: Callable[[str], None],
    ) -> None:
        self._name = name
        self._recorder = recorder
        self._folder = folder
        self._config = config
        self._machine = machine
        self._clock = machine.clock
        self._partitions = partitions
        self._problem = problem
        self._log: Log | None = None
        self._life = 0

    def do(self, what: str, chance: random.Random) -> None:
        """Carry out an act of a script."""
        match what:
            case "look":
                self.look()
            case "state":
                self.state()
            case "replay":
                self.replay(chance.randrange(self._partitions))
            case "as_of_offset":
                self._as_of_offset(chance)
            case "as_of_time":
                self.as_of_time(chance)
            case other:
                raise AssertionError(other)

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    def look(self) -> None:
        """Read the positions."""
        for partition in range(self._partitions):
            with self._recorder.positions(TOPIC, partition, process=self._name) as pending:
                try:
                    at = self._topic().table.snapshot().positions[partition]
                    self._check_life()
                    pending.returned(
                        log_start=at.log_start, first_dirty=at.first_dirty, sealed_end=at.sealed_end
                    )
                except Exception as error:  # noqa: BLE001
                    self._failed(error, pending)

    def first_dirty(self, partition: int) -> int | None:
        """Return the first dirty offset, or None if the topic can't be read. Record nothing."""
        try:
            return self._topic().table.snapshot().positions[partition].first_dirty
        except Exception as error:  # noqa: BLE001
            self._failed(error)
            return None

    def state(self) -> None:
        """Read the state."""
        with self._recorder.state_read(TOPIC, process=self._name) as pending:
            try:
                table = self._topic().state()
                keys, values = table["key"].to_pylist(), table["value"].to_pylist()
                self._check_life()
                pending.returned(dict(zip(keys, values, strict=True)))
            except Exception as error:  # noqa: BLE001
                self._failed(error, pending)

    def replay(self, partition: int) -> None:
        """Read a partition from the beginning to the end, without the broker."""
        try:
            topic = self._topic()
            # A lower bound: the replay may begin with a newer snapshot.
            positions = topic.table.snapshot().positions[partition]
            extent = topic.extents()[partition]
        except Exception as error:  # noqa: BLE001
            self._failed(error)
            return
        session = f"{self._name} {self._recorder.now()}"
        with self._recorder.fetch(
            TOPIC, partition, extent.log_start, session=session, process=self._name
        ) as pending:
            try:
                found: list[SeenRecord] = []
                for rows in topic.read_arrow(extent.log_start, partition=partition):
                    found += [_seen(row) for row in rows.to_pylist()]
                self._check_life()
                end = max([extent.log_end, *(record.offset + 1 for record in found[-1:])])
                pending.returned(found, end, log_start=extent.log_start, first_dirty=positions.first_dirty)
            except (InvalidError, UnknownTopicError) as error:
                pending.refused(error)
            except Exception as error:  # noqa: BLE001
                self._failed(error, pending)

    def plan(self) -> Planned | None:
        """Plan as another engine does, or return None if the topic can't be read. Record nothing."""
        try:
            topic = self._topic()
            assert self._log is not None
            config = self._log.config
            return Planned(
                topic_id=topic.id,
                paths=tuple(segment.path for segment in topic.table.plan(topic.table.snapshot())),
                stay_ms=config.snapshot_retention_ms + config.collect_grace_ms,
            )
        except Exception as error:  # noqa: BLE001
            self._failed(error)
            return None

    def _as_of_offset(self, chance: random.Random) -> None:
        try:
            extents = self._topic().extents()
        except Exception as error:  # noqa: BLE001
            self._failed(error)
            return
        partition = chance.choice(sorted(extents))
        extent = extents[partition]
        if extent.log_end > 0:
            offset = chance.randint(0, extent.log_end - 1)
            self._travel(partition, AsOf(offset=offset), Point(offsets={partition: offset}))

    def as_of_time(self, chance: random.Random) -> None:
        """Read a partition as it was at a time."""
        time_ms = self._clock.now_ms() - chance.choice([0, 1_000, chance.randrange(90_000)])
        self._travel(chance.randrange(self._partitions), AsOf(time_ms=time_ms), Point(time_ms=time_ms))

    def _travel(self, partition: int, as_of: AsOf, point: Point) -> None:
        with self._recorder.time_travel(TOPIC, partition, point, process=self._name) as pending:
            try:
                found: list[SeenRecord] = []
                for rows in self._topic().read_as_of(as_of, partition=partition):
                    found += [_seen(row) for row in rows.to_pylist()]
                self._check_life()
                pending.returned(found)
            except (InvalidError, UnknownTopicError) as error:
                pending.refused(error)
            except Exception as error:  # noqa: BLE001
                self._failed(error, pending)

    def _check_life(self) -> None:
        if self._life != self._machine.lives:
            raise _ReplacedError

    def _topic(self) -> Topic:
        if not self._machine.is_recovered:
            raise _UnrecoveredError
        if self._life != self._machine.lives:
            self.close()
        self._life = self._machine.lives
        if self._log is None:
            self._log = open_log(
                self._folder, config=self._config, clock=self._clock, read_only=True, create=False
            )
        topic = self._log.topic(TOPIC)
        if topic.foreign is not None:
            raise _ForeignError
        return topic

    def _failed(self, error: Exception, pending: Pending | None = None) -> None:
        if not isinstance(error, _EXPECTED):
            self._problem("a reader ended with " + "".join(traceback.format_exception(error)[-3:]))
        elif pending is not None:
            pending.doubt(error)
        self.close()


def _seen(row: Mapping[str, Any]) -> SeenRecord:
    moment = row["timestamp"]
    timestamp_ms = moment if isinstance(moment, int) else round(moment.timestamp() * 1000)
    return SeenRecord(offset=row["offset"], key=row["key"], value=row["value"], timestamp_ms=timestamp_ms)
