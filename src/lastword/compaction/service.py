"""The compaction service: what a topic's compaction and the reading of its compacted history are asked for.

A *factory* is named by `compaction.service.factory` and makes one *service* a topic. Spark (the default) and the
inline one are factories; a third party can bring its own, which may write compacted data anywhere and in any
form, as long as it can read it back.
"""

from __future__ import annotations

import importlib
import inspect
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast, runtime_checkable

from lastword.clock import Clock
from lastword.compaction.engine import Engine
from lastword.compaction.job import CompactionReport, Compactor, PartitionReport, Progress, Target
from lastword.config import BrokerConfig
from lastword.errors import InvalidConfigError
from lastword.leases import LeaseKeeper
from lastword.reader import to_records, with_partition
from lastword.record import Record
from lastword.segments.table import SegmentTable


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRequest:
    """What a compaction is asked for. Without anything: what is due."""

    partitions: tuple[int, ...] | None = None
    asked_for: bool = False
    """Compact whatever is dirty, also below the dirty ratio."""
    force: bool = False
    """Go through everything that may be compacted, also where nothing is dirty."""
    progress: Progress | None = None
    stop: Callable[[], bool] = lambda: False


class TopicCompactionService(Protocol):
    """Compacts one topic, and reads what it compacted. Results may be none."""

    def compact(self, request: CompactionRequest) -> Sequence[PartitionReport]:
        """Compact the topic; what was done, partition by partition."""
        ...

    def read_compacted_entries(self, partition: int, start: int, count: int) -> list[Record]:
        """Up to `count` compacted records from offset `start` on, below the last compacted position."""
        ...

    def last_compacted_entry(self, partition: int) -> Record | None:
        """The compacted record with the highest offset."""
        ...

    def last_compacted_position(self, partition: int) -> int | None:
        """The offset up to which, without itself, the partition has been compacted."""
        ...

    def close(self) -> None: ...


class CompactionServiceFactory(Protocol):
    """Makes the services of topics. It has a constructor without arguments."""

    def initialize(self, context: ServiceContext) -> None:
        """Called once, before anything else."""
        ...

    def new_topic_compaction_service(self, topic: str) -> TopicCompactionService: ...

    def close(self) -> None: ...


@runtime_checkable
class CompactsManyTopics(Protocol):
    """A factory that can also compact many topics as one job."""

    def compact_topics(self, topics: Sequence[str], request: CompactionRequest) -> CompactionReport: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceContext:
    """What the log gives a factory to work with."""

    config: BrokerConfig
    data_folder: Path
    clock: Clock
    leases: LeaseKeeper
    target: Callable[[str], Target]
    """A topic's table, settings and positions, by a fresh look."""


_FACTORY_METHODS = ("initialize", "new_topic_compaction_service", "close")
_SERVICE_METHODS = (
    "compact",
    "read_compacted_entries",
    "last_compacted_entry",
    "last_compacted_position",
    "close",
)


def load_factory(name: str) -> CompactionServiceFactory:
    """The factory that `compaction.service.factory` names, not initialized yet."""
    module_name, colon, class_name = name.partition(":")
    where = f"compaction.service.factory is {name!r}"
    if not colon or not module_name or not class_name:
        raise InvalidConfigError(f"{where}; allowed: a class as module:Class")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise InvalidConfigError(
            f"{where}, but the module {module_name!r} can't be loaded: {error}"
        ) from error
    found = getattr(module, class_name, None)
    if not inspect.isclass(found):
        raise InvalidConfigError(f"{where}, but {module_name!r} has no class {class_name!r}")
    check_methods(found, _FACTORY_METHODS, where)
    try:
        return cast(CompactionServiceFactory, found())
    except Exception as error:
        raise InvalidConfigError(f"{where}, but {class_name}() failed: {error}") from error


def check_service(service: object, where: str) -> None:
    """InvalidConfigError if a service lacks a method."""
    check_methods(service, _SERVICE_METHODS, where)


def check_methods(thing: object, names: Sequence[str], where: str) -> None:
    missing = [name for name in names if not callable(getattr(thing, name, None))]
    if missing:
        raise InvalidConfigError(f"{where}, but it lacks the method {missing[0]}()")


class EngineFactory:
    """A factory whose services run the kernels of this package on an engine."""

    def __init__(self) -> None:
        self._context: ServiceContext | None = None
        self._engine: Engine | None = None

    @abstractmethod
    def make_engine(self, context: ServiceContext) -> Engine: ...

    def initialize(self, context: ServiceContext) -> None:
        self._context = context
        self._engine = self.make_engine(context)

    @property
    def engine(self) -> Engine:
        assert self._engine is not None, "initialize() comes first"
        return self._engine

    def new_topic_compaction_service(self, topic: str) -> EngineService:
        return EngineService(self, topic)

    def compact_topics(self, topics: Sequence[str], request: CompactionRequest) -> CompactionReport:
        context = self.context
        compactor = Compactor(self.engine, config=context.config, clock=context.clock, leases=context.leases)
        return compactor.run(
            [context.target(topic) for topic in topics],
            partitions=request.partitions,
            asked_for=request.asked_for,
            force=request.force,
            progress=request.progress,
            stop=request.stop,
        )

    @property
    def context(self) -> ServiceContext:
        assert self._context is not None, "initialize() comes first"
        return self._context

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()


class EngineService:
    """The service of one topic whose compacted data are the clean segments of its table."""

    def __init__(self, factory: EngineFactory, topic: str) -> None:
        self._factory = factory
        self._topic = topic

    def compact(self, request: CompactionRequest) -> Sequence[PartitionReport]:
        return self._factory.compact_topics([self._topic], request).partitions

    def read_compacted_entries(self, partition: int, start: int, count: int) -> list[Record]:
        table = self._table()
        snapshot = table.snapshot()
        at = snapshot.positions[partition]
        found: list[Record] = []
        start = max(start, at.log_start)
        for segment in table.plan(snapshot, partition, start):
            for records in table.read(segment, None, start):
                found += [
                    record
                    for record in to_records(with_partition(records, partition))
                    if record.offset < at.first_dirty
                ]
                if len(found) >= count:
                    return found[:count]
        return found

    def last_compacted_entry(self, partition: int) -> Record | None:
        table = self._table()
        snapshot = table.snapshot()
        at = snapshot.positions[partition]
        clean = [
            each
            for each in table.plan(snapshot, partition, at.log_start)
            if each.last_offset < at.first_dirty
        ]
        if not clean:
            return None
        found = [
            record
            for records in table.read(clean[-1], None, clean[-1].last_offset)
            for record in to_records(with_partition(records, partition))
        ]
        return found[-1] if found else None

    def last_compacted_position(self, partition: int) -> int | None:
        return self._table().snapshot().positions[partition].first_dirty or None

    def close(self) -> None:
        pass

    def _table(self) -> SegmentTable:
        return self._factory.context.target(self._topic).table
