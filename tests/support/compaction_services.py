"""Factories that tests name in `compaction.service.factory`: Spark with one session for all, and broken ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from lastword.compaction.engine import InlineEngine, Job, Result
from lastword.compaction.inline import InlineCompactionServiceFactory
from lastword.compaction.reports import PartitionReport
from lastword.compaction.service import WHAT_IS_DUE, CompactionRequest, ServiceContext
from lastword.compaction.spark import SparkCompactionServiceFactory, SparkEngine
from lastword.errors import LastwordError
from lastword.record import Record
from lastword.segments.rows import to_records, with_partition

HERE = __name__


class SharedEngine(SparkEngine):
    """Stays open when the log that uses it is closed."""

    def close(self) -> None:
        pass

    def stop(self) -> None:
        super().close()


class OneSessionSparkFactory(SparkCompactionServiceFactory):
    """The Spark factory, whose logs all use one session. `stop` ends it."""

    engine_of_all: ClassVar[SharedEngine | None] = None

    def make_engine(self, context: ServiceContext) -> SparkEngine:
        if OneSessionSparkFactory.engine_of_all is None:
            settings = super().make_engine(context)._settings
            OneSessionSparkFactory.engine_of_all = SharedEngine(settings)
        return OneSessionSparkFactory.engine_of_all

    @classmethod
    def stop(cls) -> None:
        if cls.engine_of_all is not None:
            cls.engine_of_all.stop()
            cls.engine_of_all = None


class _TwoStages:
    """An engine that takes the way of large partitions, however small they are."""

    def run(self, jobs: Sequence[Job]) -> list[Result]:
        found: list[Result] = super().run(  # type: ignore[misc]
            [replace(job, way="two stages", shares=2) if job.unit.keyed else job for job in jobs]
        )
        return found


class TwoStagesInline(_TwoStages, InlineEngine):
    pass


class TwoStagesSpark(_TwoStages, SparkEngine):
    pass


class TwoStagesInlineFactory(InlineCompactionServiceFactory):
    def make_engine(self, context: ServiceContext) -> InlineEngine:
        return TwoStagesInline()


class TwoStagesSparkFactory(SparkCompactionServiceFactory):
    def make_engine(self, context: ServiceContext) -> SparkEngine:
        made = super().make_engine(context)
        return TwoStagesSpark(made._settings, log_path=made._log_path)


class WrappedService:
    """A service that does what the inline one does. Broken ones differ from it in one method."""

    def __init__(self, factory: WrappingFactory, topic: str) -> None:
        self.inline = factory.inline.new_topic_compaction_service(topic)
        self.factory = factory
        self.topic = topic

    def compact(self, request: CompactionRequest = WHAT_IS_DUE) -> Sequence[PartitionReport]:
        return self.inline.compact(request)

    def read_compacted_entries(self, partition: int, start: int, count: int) -> Sequence[Record] | None:
        return self.inline.read_compacted_entries(partition, start, count)

    def last_compacted_entry(self, partition: int) -> Record | None:
        return self.inline.last_compacted_entry(partition)

    def last_compacted_position(self, partition: int) -> int | None:
        return self.inline.last_compacted_position(partition)

    def close(self) -> None:
        self.inline.close()


class WrappingFactory:
    service: ClassVar[Callable[[Any, str], Any]] = WrappedService

    def __init__(self) -> None:
        self.inline = InlineCompactionServiceFactory()

    def initialize(self, context: ServiceContext) -> None:
        self.inline.initialize(context)

    def new_topic_compaction_service(self, topic: str) -> Any:
        return type(self).service(self, topic)

    def close(self) -> None:
        self.inline.close()


# ------------------------------------------------------------------------------------------- broken services

BROKEN: list[tuple[str, str]] = []
"""Names of factories, and a test of the contract that must find out."""


def found_by(*tests: str) -> Callable[[type], type]:
    def register(service: type) -> type:
        name = f"{service.__name__}Factory"
        globals()[name] = type(name, (WrappingFactory,), {"service": service})
        BROKEN.extend((f"{HERE}:{name}", test) for test in tests)
        return service

    return register


@found_by("test_records_are_as_they_were_appended")
class DropsHeaders(WrappedService):
    def read_compacted_entries(self, partition: int, start: int, count: int) -> Sequence[Record]:
        return [
            replace(each, headers=()) for each in self.inline.read_compacted_entries(partition, start, count)
        ]


@found_by("test_records_are_as_they_were_appended")
class EmptiesBecomeNull(WrappedService):
    def read_compacted_entries(self, partition: int, start: int, count: int) -> Sequence[Record]:
        return [
            replace(each, value=each.value or None)
            for each in self.inline.read_compacted_entries(partition, start, count)
        ]


@found_by("test_records_are_as_they_were_appended")
class LosesNullKeys(WrappedService):
    def read_compacted_entries(self, partition: int, start: int, count: int) -> Sequence[Record]:
        found = self.inline.read_compacted_entries(partition, start, 1000)
        return [each for each in found if each.key is not None][:count]


@found_by("test_tombstones_are_readable_until_they_may_go")
class HidesTombstones(WrappedService):
    def read_compacted_entries(self, partition: int, start: int, count: int) -> Sequence[Record]:
        found = self.inline.read_compacted_entries(partition, start, 1000)
        return [each for each in found if not each.is_tombstone][:count]


@found_by("test_a_page_has_at_most_as_many_records_as_asked_for")
class IgnoresTheCount(WrappedService):
    def read_compacted_entries(self, partition: int, start: int, count: int) -> Sequence[Record]:
        return self.inline.read_compacted_entries(partition, start, 1000)


@found_by(
    "test_a_page_may_begin_anywhere", "test_a_compacted_read_is_the_compacted_entries_and_then_the_rest"
)
class MissesStartsInGaps(WrappedService):
    def read_compacted_entries(self, partition: int, start: int, count: int) -> Sequence[Record]:
        found = self.inline.read_compacted_entries(partition, start, count)
        return found if found and found[0].offset == start else []


@found_by(
    "test_what_comes_later_is_not_compacted_yet",
    "test_a_page_beyond_the_end_is_empty",
    "test_before_the_first_compaction_there_is_nothing",
)
class ReadsPastThePosition(WrappedService):
    def read_compacted_entries(self, partition: int, start: int, count: int) -> Sequence[Record]:
        table = self.factory.inline.context.table(self.topic)
        snapshot = table.snapshot()
        return [
            record
            for segment in table.plan(snapshot, partition, start)
            for records in table.read(segment, None, start)
            for record in to_records(with_partition(records, partition))
        ][:count]


@found_by("test_the_newest_record_of_each_key_stays")
class CompactsNothing(WrappedService):
    def compact(self, request: CompactionRequest = WHAT_IS_DUE) -> Sequence[PartitionReport]:
        return ()


@found_by("test_compaction_again_at_once_does_nothing_more")
class CompactsAlways(WrappedService):
    def compact(self, request: CompactionRequest = WHAT_IS_DUE) -> Sequence[PartitionReport]:
        reports = self.inline.compact(request)
        return [replace(each, written_bytes=1) for each in reports] or [
            PartitionReport(
                topic=self.topic, partition=0, reason="asked for", way="one stage", segments_compacted=1
            )
        ]


@found_by("test_compact_without_arguments_does_what_is_due")
class NeedsARequest(WrappedService):
    def compact(self, request: CompactionRequest) -> Sequence[PartitionReport]:  # type: ignore[override]
        return self.inline.compact(request)


@found_by("test_the_newest_record_of_each_key_stays", "test_the_position_stays_when_the_last_records_go")
class PositionIsTheLastEntry(WrappedService):
    def last_compacted_position(self, partition: int) -> int | None:
        last = self.inline.last_compacted_entry(partition)
        return None if last is None else last.offset


@found_by("test_the_newest_record_of_each_key_stays")
class LastEntryIsTheFirst(WrappedService):
    def last_compacted_entry(self, partition: int) -> Record | None:
        return next(iter(self.inline.read_compacted_entries(partition, 0, 1)), None)


@found_by(
    "test_a_later_compaction_goes_on_from_an_earlier_one",
    "test_a_topic_created_again_shares_nothing_with_the_old_one",
)
class KeepsAStaleCopy(WrappedService):
    """Serves what it first compacted, for ever, and also to a topic that was created again."""

    copies: ClassVar[dict[tuple[str, str, int], tuple[int, list[Record]]]] = {}

    def _copy(self, partition: int) -> tuple[int, list[Record]] | None:
        key = (str(self.factory.inline.context.data_folder), self.topic, partition)
        position = self.inline.last_compacted_position(partition)
        if key not in self.copies and position is not None:
            entries = self.inline.read_compacted_entries(partition, 0, 1000)
            self.copies[key] = (position, list(entries))
        return self.copies.get(key)

    def read_compacted_entries(self, partition: int, start: int, count: int) -> Sequence[Record] | None:
        copy = self._copy(partition)
        return None if copy is None else [each for each in copy[1] if each.offset >= start][:count]

    def last_compacted_entry(self, partition: int) -> Record | None:
        copy = self._copy(partition)
        return None if copy is None else copy[1][-1]

    def last_compacted_position(self, partition: int) -> int | None:
        copy = self._copy(partition)
        return None if copy is None else copy[0]


@found_by("test_compacted_data_outlive_the_log", "test_closing_twice_is_closing_once")
class ForgetsAtClose(WrappedService):
    closed: ClassVar[set[str]] = set()

    def close(self) -> None:
        self.closed.add(str(self.factory.inline.context.data_folder))

    def last_compacted_position(self, partition: int) -> int | None:
        gone = str(self.factory.inline.context.data_folder) in self.closed
        return None if gone else self.inline.last_compacted_position(partition)


@found_by("test_partitions_are_compacted_each_for_itself")
class KnowsOnePartition(WrappedService):
    def read_compacted_entries(self, partition: int, start: int, count: int) -> Sequence[Record]:
        return self.inline.read_compacted_entries(0, start, count)


@found_by("test_a_compaction_meanwhile_leaves_no_gap_and_no_double")
class StaysWithItsFirstPosition(WrappedService):
    """Reads to the first position that it had, but from what is compacted now."""

    def __init__(self, factory: WrappingFactory, topic: str) -> None:
        super().__init__(factory, topic)
        self.first: int | None = None

    def last_compacted_position(self, partition: int) -> int | None:
        self.first = self.first or self.inline.last_compacted_position(partition)
        return self.first


@found_by("test_topics_are_compacted_each_for_itself")
class KnowsOneTopic(WrappedService):
    def __init__(self, factory: WrappingFactory, topic: str) -> None:
        super().__init__(factory, topic.replace("-", "."))


@found_by("test_a_compacted_read_begins_at_the_log_start")
class IsStuckAtTheLogStart(WrappedService):
    """Has nothing to give as soon as records have been deleted."""

    def read_compacted_entries(self, partition: int, start: int, count: int) -> Sequence[Record]:
        return self.inline.read_compacted_entries(partition, start, count) if start == 0 else []


@found_by("test_erased_keys_are_not_served_any_more", "test_a_reader_beside_is_not_served_erased_keys_either")
class ServesErasedKeys(WrappedService):
    """Has a copy of each topic id, made anew when the position moves: an erasure does not move it."""

    copies: ClassVar[dict[tuple[str, int, int], list[Record]]] = {}

    def read_compacted_entries(self, partition: int, start: int, count: int) -> Sequence[Record] | None:
        position = self.inline.last_compacted_position(partition)
        if position is None:
            return None
        topic_id = self.factory.inline.context.table(self.topic).snapshot().topic.id.hex
        key = (topic_id, partition, position)
        if key not in self.copies:
            self.copies[key] = list(self.inline.read_compacted_entries(partition, 0, 1000) or ())
        return [each for each in self.copies[key] if each.offset >= start][:count]


@found_by("test_erased_keys_are_not_served_any_more")
class HasAnErasedLastEntry(WrappedService):
    def __init__(self, factory: WrappingFactory, topic: str) -> None:
        super().__init__(factory, topic)
        self.last: dict[tuple[int, int], Record | None] = {}

    def last_compacted_entry(self, partition: int) -> Record | None:
        position = self.inline.last_compacted_position(partition)
        if position is None:
            return None
        key = (partition, position)
        return self.last.setdefault(key, self.inline.last_compacted_entry(partition))


@found_by("test_a_key_that_is_written_again_after_its_erasure_is_served")
class BansErasedKeys(WrappedService):
    """Remembers keys that have gone, and never serves them again."""

    def __init__(self, factory: WrappingFactory, topic: str) -> None:
        super().__init__(factory, topic)
        self.seen: set[bytes] = set()
        self.banned: set[bytes] = set()

    def compact(self, request: CompactionRequest = WHAT_IS_DUE) -> Sequence[PartitionReport]:
        reports = self._look()
        made = self.inline.compact(request)
        self._look()
        return made or reports

    def _look(self) -> Sequence[PartitionReport]:
        entries = self.inline.read_compacted_entries(0, 0, 1000) or ()
        keys = {each.key for each in entries if each.key is not None}
        self.banned |= self.seen - keys
        self.seen = keys
        return ()

    def read_compacted_entries(self, partition: int, start: int, count: int) -> Sequence[Record] | None:
        found = self.inline.read_compacted_entries(partition, start, 1000)
        return [each for each in found if each.key not in self.banned][:count]


@found_by("test_the_service_of_a_deleted_topic_has_nothing_more_to_give")
class OutlivesItsTopic(WrappedService):
    """Goes on serving from memory when its topic is gone."""

    def __init__(self, factory: WrappingFactory, topic: str) -> None:
        super().__init__(factory, topic)
        self.kept: Sequence[Record] = ()

    def read_compacted_entries(self, partition: int, start: int, count: int) -> Sequence[Record] | None:
        try:
            self.kept = self.inline.read_compacted_entries(partition, start, count)
        except LastwordError:
            return self.kept
        return self.kept
