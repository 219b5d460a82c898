"""The compaction of a log: loads the service that the settings name, and tells it what the log knows."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lastword.clock import Clock, monotonic_s
from lastword.compaction.engine import Engine, InlineEngine
from lastword.compaction.holds import Uptime
from lastword.compaction.job import topic_failed
from lastword.compaction.plan import PartitionPlan
from lastword.compaction.reports import CompactionReport, PartitionReport
from lastword.compaction.request import CompactionRequest, Scope
from lastword.compaction.round import Round
from lastword.compaction.service import (
    CompactionServiceFactory,
    CompactsManyTopics,
    EngineFactory,
    ServiceContext,
    TopicCompactionService,
    check_service,
    load_factory,
)
from lastword.compaction.target import Target, plan_target
from lastword.config import BrokerConfig
from lastword.errors import LastwordError
from lastword.folder.leases import LeaseKeeper
from lastword.folder.paths import spark_log

if TYPE_CHECKING:
    from lastword.segments.table import SegmentTable

logger = logging.getLogger(__name__)

ROUNDS_JOB_BYTES = 256 << 20
"""Smaller rounds are sooner done in this process than a Spark job is."""
ROUNDS_AT_A_TIME_BYTES = 2 << 30
"""About as much is carried out before it is committed, so that a long backlog is sealed in parts."""


class Compaction:
    """The compaction of a log's topics. The service is loaded and started on first use."""

    def __init__(
        self,
        target: Callable[[str], Target],
        table: Callable[[str], SegmentTable],
        *,
        config: BrokerConfig,
        data_folder: Path,
        clock: Clock,
        leases: LeaseKeeper,
    ) -> None:
        self._target = target
        self._table = table
        self._config = config
        self._clock = clock
        self._data_folder = data_folder
        self._leases = leases
        self._uptime = Uptime(data_folder)
        self._loaded: CompactionServiceFactory | None = None
        self._factory: CompactionServiceFactory | None = None
        self._services: dict[str, TopicCompactionService] = {}
        self._lock = threading.Lock()

    def plan(self, topic: str, scope: Scope) -> list[PartitionPlan]:
        """Return what would be compacted now, why, and an estimate of what it would reclaim. Change nothing."""
        return plan_target(self._target(topic), scope, clock=self._clock, estimates=True)

    def run(self, topics: Sequence[str], request: CompactionRequest) -> CompactionReport:
        """Compact topics: as one job if the service can, otherwise one after another."""
        self._uptime.here(self._clock.now_ms())
        factory = self.factory()
        topics = [topic for topic in topics if (topic, None) not in request.exclude]
        if isinstance(factory, CompactsManyTopics):
            return factory.compact_topics(topics, request)
        started_s = monotonic_s()
        done: list[PartitionReport] = []
        failed: list[tuple[str, str]] = []
        late = [topic for topic, partition in request.last if partition is None]
        for topic in sorted(topics, key=lambda each: late.index(each) if each in late else -1):
            if request.stop():
                break
            service = self.service(topic)
            if request.begin is not None:
                request.begin([(topic, None)])
            try:
                done += service.compact(request)
            except LastwordError as error:
                failed.append(topic_failed(topic, error))
            except Exception as error:
                # A service may be a third party's: its errors must not keep other topics from being compacted.
                logger.exception("the compaction service of %s raised an unexpected error", topic)
                failed.append(topic_failed(topic, error))
        return CompactionReport(
            engine=type(factory).__name__,
            partitions=tuple(done),
            failed_topics=tuple(failed),
            duration_s=monotonic_s() - started_s,
        )

    def check_factory(self) -> None:
        """Raise InvalidConfigError if the factory that the settings name can't be loaded. Don't start it yet."""
        with self._lock:
            if self._loaded is None:
                self._loaded = load_factory(self._config.compaction_service_factory)

    def factory(self) -> CompactionServiceFactory:
        """Return the factory that the settings name. It is loaded and started once."""
        with self._lock:
            if self._factory is None:
                # A factory that could not be started is not used again.
                factory, self._loaded = self._loaded, None
                factory = factory or load_factory(self._config.compaction_service_factory)
                factory.initialize(
                    ServiceContext(
                        config=self._config,
                        data_folder=self._data_folder,
                        clock=self._clock,
                        leases=self._leases,
                        table=self._table,
                        target=self._target,
                    )
                )
                self._factory = factory
            return self._factory

    def spark_engine(self) -> tuple[Engine, bool]:
        """Return a Spark engine, and whether it belongs to the compaction service and so must not be closed."""
        from lastword.compaction.spark import SparkEngine

        factory = self.factory()
        if isinstance(factory, EngineFactory) and isinstance(factory.engine, SparkEngine):
            return factory.engine, True
        return SparkEngine(self._config.spark, log_path=spark_log(self._data_folder)), False

    def run_rounds(self, rounds: Sequence[Round]) -> Iterator[list[tuple[Round, object]]]:
        """Carry out rounds of sealing, some at a time, and yield these with their results.

        They run on a Spark that is running, if it is idle, reaches the WAL, and they pay for a job; otherwise in this
        process.
        """
        left = list(rounds)
        while left:
            engine = self._engine_for(left)
            some = [left.pop(0)]
            while (
                left
                and len(some) < engine.rounds_at_a_time
                and sum(each.size_bytes for each in some) + left[0].size_bytes <= ROUNDS_AT_A_TIME_BYTES
            ):
                some.append(left.pop(0))
            yield list(zip(some, engine.run_rounds(some), strict=True))

    def _engine_for(self, rounds: Sequence[Round]) -> Engine:
        factory = self._factory
        engine = factory.engine if isinstance(factory, EngineFactory) else None
        if (
            engine is not None
            and len(rounds) > 1
            and sum(each.size_bytes for each in rounds) >= ROUNDS_JOB_BYTES
            and getattr(engine, "state", "") == "running"
            # Tasks of a compaction would have to end first.
            and not engine.is_busy
            and engine.reaches_local_files
        ):
            return engine
        return InlineEngine()

    def engine_state(self) -> dict[str, str]:
        """Return the factory that compacts and the state of its engine. Start nothing."""
        factory = self._factory
        engine = factory.engine if isinstance(factory, EngineFactory) else None
        return {
            "factory": self._config.compaction_service_factory,
            "state": "not started" if factory is None else getattr(engine, "state", "ready"),
        }

    def service(self, topic: str) -> TopicCompactionService:
        """Return the compaction service of a topic."""
        factory = self.factory()
        with self._lock:
            if topic not in self._services:
                service = factory.new_topic_compaction_service(topic)
                check_service(service, f"the compaction service of {topic!r} is {type(service).__name__}")
                self._services[topic] = service
            return self._services[topic]

    def forget(self, topic: str) -> None:
        """Close the service of a topic that has been deleted."""
        with self._lock:
            service = self._services.pop(topic, None)
        if service is not None:
            service.close()

    def close(self) -> None:
        errors: list[LastwordError] = []
        for topic in list(self._services):
            try:
                self.forget(topic)
            except LastwordError as error:
                errors.append(error)
        if self._factory is not None:
            self._factory.close()
        if errors:
            raise errors[0]
