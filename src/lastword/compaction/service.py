"""The compaction service: the interface to compact a topic and to read its compacted history.

A *factory* is named by `compaction.service.factory` and makes one *service* per topic. Spark (the default) and the
inline one are factories; a third party can bring its own, which may write compacted data anywhere and in any
form, as long as it can read it back.
"""

from __future__ import annotations

import importlib
import inspect
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, get_type_hints, runtime_checkable

from lastword.clock import Clock
from lastword.compaction.engine import Engine
from lastword.compaction.job import Compactor, topic_failed
from lastword.compaction.reports import CompactionReport, PartitionReport
from lastword.compaction.request import WHAT_IS_DUE as WHAT_IS_DUE
from lastword.compaction.request import CompactionRequest as CompactionRequest
from lastword.compaction.target import Target
from lastword.config import BrokerConfig
from lastword.errors import InvalidConfigError, LastwordError, UnavailableError, UnknownPartitionError
from lastword.folder.leases import LeaseKeeper
from lastword.loading import let_arrow_use_pandas
from lastword.record import Record
from lastword.segments.model import Snapshot, retry_if_moved
from lastword.segments.rows import clip, to_records, with_partition

if TYPE_CHECKING:
    from lastword.segments.table import SegmentTable

T = TypeVar("T")

PAGE_BYTES = 16 << 20
"""A page of compacted records ends after about this many bytes, however many records were asked for."""


class TopicCompactionService(Protocol):
    """Compacts one topic, and reads what it compacted.

    A log makes one per topic, and calls it from several threads, also to read while a compaction runs. It reads
    records of the topic as they were appended: offsets, timestamps, keys, values and headers.
    """

    def compact(self, request: CompactionRequest = WHAT_IS_DUE) -> Sequence[PartitionReport]:
        """Compact the topic and report each partition. The log holds the maintenance role meanwhile.

        A partition that failed is in the result, with its `problem`. If the whole topic failed, raise the error.
        """
        ...

    def read_compacted_entries(self, partition: int, start: int, count: int) -> Sequence[Record] | None:
        """Return compacted records from offset `start` on, in offset order: at least one, and at most `count`.

        An empty result means that there is none between `start` and the last compacted position. None means that
        there is no compacted data, or none that may be relied on now: the reader continues in the log itself.
        """
        ...

    def last_compacted_entry(self, partition: int) -> Record | None:
        """Return the compacted record with the highest offset; None if there is none."""
        ...

    def last_compacted_position(self, partition: int) -> int | None:
        """Return the offset up to which (exclusive) the partition has been compacted; None if it has not been."""
        ...

    def close(self) -> None:
        """Close: the topic was deleted, or the log is closing. Keep compacted data. A second call does nothing."""
        ...


class CompactionServiceFactory(Protocol):
    """Makes the services of topics. Its constructor takes no arguments and does nothing expensive."""

    def initialize(self, context: ServiceContext) -> None:
        """Prepare for use. Called once, on the first use of a service, before all other methods."""
        ...

    def new_topic_compaction_service(self, topic: str) -> TopicCompactionService:
        """Return the service of a topic. A deleted topic may have had the same name: its id tells them apart."""
        ...

    def close(self) -> None:
        """Close: the log is closing, and its services are closed already."""
        ...


@runtime_checkable
class CompactsManyTopics(Protocol):
    """A factory that can also compact many topics as one job. A log then calls it instead of their services."""

    def compact_topics(self, topics: Sequence[str], request: CompactionRequest) -> CompactionReport: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceContext:
    """The parts of the log that a factory works with."""

    config: BrokerConfig
    data_folder: Path
    clock: Clock
    leases: LeaseKeeper
    table: Callable[[str], SegmentTable]
    """Returns a topic's sealed segments and positions. They can be kept: each of their snapshots is a fresh look."""
    target: Callable[[str], Target]
    """Returns a fresh look at what a compactor needs of a topic: its table, settings, log ends and readers."""


_FACTORY_METHODS = ("initialize", "new_topic_compaction_service", "close")
_SERVICE_METHODS = (
    "compact",
    "read_compacted_entries",
    "last_compacted_entry",
    "last_compacted_position",
    "close",
)


def load_factory(name: str) -> CompactionServiceFactory:
    """Return the factory that `compaction.service.factory` names, not initialized yet."""
    module_name, colon, class_name = name.partition(":")
    where = f"compaction.service.factory is {name!r}"
    if not colon or not module_name or not class_name:
        raise InvalidConfigError(f"{where}; allowed: a class as module:Class")
    try:
        module = importlib.import_module(module_name)
        if not module_name.startswith("lastword."):
            let_arrow_use_pandas()
    except Exception as error:
        raise InvalidConfigError(
            f"{where}, but the module {module_name!r} can't be loaded: {error}"
        ) from error
    found = getattr(module, class_name, None)
    if not inspect.isclass(found):
        raise InvalidConfigError(f"{where}, but {module_name!r} has no class {class_name!r}")
    check_methods(found, _FACTORY_METHODS, where)
    if (promised := _promised_service(found)) is not None:
        check_service(promised, f"{where}, which makes services of the class {promised.__name__!r}")
    try:
        return cast(CompactionServiceFactory, found())
    except Exception as error:
        raise InvalidConfigError(f"{where}, but {class_name}() failed: {error}") from error


def check_service(service: object, where: str) -> None:
    """Raise InvalidConfigError if a service lacks a method."""
    check_methods(service, _SERVICE_METHODS, where)


def _promised_service(factory: type) -> type | None:
    """Return the class of the services that a factory makes, as far as its type hints tell."""
    try:
        promised = get_type_hints(factory.new_topic_compaction_service).get("return")  # type: ignore[attr-defined]
    except (NameError, TypeError, AttributeError):
        # Names that only a type checker sees. Then the first service shows it.
        return None
    # Any is a class too, and says as little as object.
    return promised if inspect.isclass(promised) and promised not in (object, Any) else None


def check_methods(thing: object, names: Sequence[str], where: str) -> None:
    missing = [name for name in names if not callable(getattr(thing, name, None))]
    if missing:
        raise InvalidConfigError(f"{where}, but it lacks the method {missing[0]}()")


class EngineFactory:
    """A factory whose services compact on an engine of this package."""

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
        looked_ms = context.clock.now_ms()
        targets: list[Target] = []
        failed: list[tuple[str, str]] = []
        for topic in topics:
            try:
                targets.append(replace(context.target(topic), looked_ms=looked_ms))
            except LastwordError as error:
                failed.append(topic_failed(topic, error))
        report = compactor.run(targets, request)
        return replace(report, failed_topics=(*failed, *report.failed_topics))

    @property
    def context(self) -> ServiceContext:
        assert self._context is not None, "initialize() comes first"
        return self._context

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()


class EngineService:
    """The service of one topic. Its compacted data is the clean segments of the topic's table."""

    def __init__(self, factory: EngineFactory, topic: str) -> None:
        self._factory = factory
        self._topic = topic
        self._table: SegmentTable | None = None

    def compact(self, request: CompactionRequest = WHAT_IS_DUE) -> Sequence[PartitionReport]:
        report = self._factory.compact_topics([self._topic], request)
        for _, why in report.failed_topics:
            raise UnavailableError(why)
        return report.partitions

    def read_compacted_entries(self, partition: int, start: int, count: int) -> Sequence[Record]:
        def read(table: SegmentTable, snapshot: Snapshot) -> list[Record]:
            at = snapshot.positions[partition]
            from_offset = max(start, at.log_start)
            found: list[Record] = []
            read_bytes = 0
            for segment in table.plan(snapshot, partition, from_offset):
                if segment.first_offset >= at.first_dirty or len(found) >= count or read_bytes >= PAGE_BYTES:
                    break
                for records in table.read(segment, None, from_offset):
                    wanted = clip(records, at.first_dirty).slice(0, count - len(found))
                    found += to_records(with_partition(wanted, partition))
                    read_bytes += wanted.nbytes
                    if len(found) >= count or read_bytes >= PAGE_BYTES:
                        break
            return found

        return self._with_snapshot(partition, read)

    def last_compacted_entry(self, partition: int) -> Record | None:
        def read(table: SegmentTable, snapshot: Snapshot) -> Record | None:
            at = snapshot.positions[partition]
            for segment in reversed(table.plan(snapshot, partition, at.log_start)):
                if segment.first_offset >= at.first_dirty:
                    continue
                whole = not segment.is_dirty(at.first_dirty)
                from_offset = segment.last_offset if whole else at.log_start
                last: Record | None = None
                for records in table.read(segment, None, from_offset):
                    clean = clip(records, at.first_dirty)
                    if clean.num_rows:
                        own = with_partition(clean.slice(clean.num_rows - 1), partition)
                        last = next(to_records(own))
                if last is not None:
                    return last
            return None

        return self._with_snapshot(partition, read)

    def last_compacted_position(self, partition: int) -> int | None:
        return self._with_snapshot(
            partition, lambda _, snapshot: snapshot.positions[partition].first_dirty or None
        )

    def close(self) -> None:
        pass

    def _with_snapshot(self, partition: int, read: Callable[[SegmentTable, Snapshot], T]) -> T:
        """Look at the table and return the result."""
        table = self._table = self._table or self._factory.context.table(self._topic)

        def attempt() -> T:
            snapshot = table.snapshot()
            if not 0 <= partition < len(snapshot.positions):
                raise UnknownPartitionError(f"Topic {self._topic!r} has no partition {partition}.")
            return read(table, snapshot)

        return retry_if_moved(attempt, f"Partition {partition} of {self._topic!r}")
