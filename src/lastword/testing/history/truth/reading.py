"""Builds the logs of the partitions from a history.

For each life, in this order: note the acknowledged records at their offsets; note the records that readers saw, and compare
them with the records that were sent and with other reads of the same offset; after a cut, inherit the records that were
kept; note the remaining sent records as possibly in the log, at an unknown offset.

The rules `refused`, `immutable`, `next-life` and a part of `durable` are checked on the way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lastword.testing.history.events import (
    DeleteRecords,
    Erase,
    Fetch,
    OffsetCommit,
    OffsetRead,
    Operation,
    Outcome,
    Positions,
    Produce,
    Restart,
    Restore,
    StateRead,
    Takeover,
    TimeTravel,
)
from lastword.testing.history.findings import Findings
from lastword.testing.history.options import Options
from lastword.testing.history.truth.clockline import NEVER, Clockline
from lastword.testing.history.truth.entries import Entry
from lastword.testing.history.truth.excuses import excuse
from lastword.testing.history.truth.inheritance import inherit
from lastword.testing.history.truth.lives import Cause, Life, Lives, lives_of
from lastword.testing.history.truth.partition import PartitionLog
from lastword.testing.history.truth.sent import Sending, Sent
from lastword.testing.history.truth.sightings import Sightings, report_unsent


@dataclass(slots=True, eq=False)
class TopicTruth:
    """A topic: its lives, the records sent to its partitions, and its operations on no single partition."""

    name: str
    lives: Lives
    sent: dict[int, Sent]
    states: list[StateRead] = field(default_factory=list)
    commits: list[OffsetCommit] = field(default_factory=list)
    offset_reads: list[OffsetRead] = field(default_factory=list)
    erasures: list[Erase] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Truth:
    """The logs, as far as a history shows them."""

    clock: Clockline
    topics: Mapping[str, TopicTruth]
    options: Options
    session_began: Mapping[tuple[str, int, str], int]
    """When the first fetch of each session was invoked. A session may keep its first snapshot."""

    def logs(self) -> Iterable[PartitionLog]:
        """Return the logs whose content is known, life by life."""
        for topic in self.topics.values():
            for life in topic.lives.lives:
                if not life.is_blind:
                    yield from life.partitions.values()

    def reader_began(self, operation: Operation) -> int:
        """Return when the reader of an operation began."""
        if isinstance(operation, Fetch) and operation.session is not None:
            key = (operation.topic, operation.partition, operation.session)
            return self.session_began.get(key, operation.invoked)
        return operation.invoked


def read_truth(operations: Sequence[Operation], options: Options, findings: Findings) -> Truth:
    """Reconstruct the logs."""
    clock = Clockline(operations, options.clock_skew_ms)
    causes: dict[str | None, list[Cause]] = defaultdict(list)
    by_topic: dict[str, list[Operation]] = defaultdict(list)
    sessions: dict[tuple[str, int, str], int] = {}
    for each in operations:
        if isinstance(each, Restart):
            causes[None].append(each)
        elif isinstance(each, Restore | Takeover):
            for topic in each.topics if each.topics is not None else (None,):
                causes[topic].append(each)
        else:
            by_topic[each.topic].append(each)  # type: ignore[attr-defined]
            if isinstance(each, Fetch) and each.session is not None:
                sessions.setdefault((each.topic, each.partition, each.session), each.invoked)
    topics = {
        name: _Reading(name, found, [*causes[None], *causes[name]], clock, options, findings).topic
        for name, found in by_topic.items()
    }
    return Truth(clock, topics, options, sessions)


class _Reading:
    """Reconstructs the logs of one topic."""

    def __init__(
        self,
        name: str,
        operations: Sequence[Operation],
        causes: Sequence[Cause],
        clock: Clockline,
        options: Options,
        findings: Findings,
    ) -> None:
        self._clock = clock
        self._options = options
        self._findings = findings
        sent: dict[int, list[Produce]] = defaultdict(list)
        for each in operations:
            if isinstance(each, Produce):
                sent[each.partition].append(each)
        self._sent: dict[int, Sent] = {number: Sent(found) for number, found in sent.items()}
        self.topic = TopicTruth(name, lives_of(name, operations, causes, options), self._sent)
        self._lives = self.topic.lives
        self._seen: dict[tuple[int, int], Life] = {}
        self._deal(operations)
        for life in self._lives.lives:
            if life.is_blind:
                continue
            if life.parent is not None:
                for number in life.parent.partitions:
                    self._log(life, number)
            for log in life.partitions.values():
                self._read(log)

    # ---------------------------------------------------------------------------------------------- dealing

    def _log(self, life: Life, number: int) -> PartitionLog:
        log = life.partitions.get(number)
        if log is None:
            log = life.partitions[number] = PartitionLog(life, number)
        return log

    def _deal(self, operations: Sequence[Operation]) -> None:
        """Assign each operation to the log that it belongs to, if only one is possible."""
        for each in operations:
            completed = NEVER if each.completed is None else each.completed
            if isinstance(each, Produce):
                if each.outcome is Outcome.REFUSED:
                    continue
                for life in self._lives.possible(each.invoked, self._clock.effect_until(each)):
                    self._log(life, each.partition)
            elif isinstance(each, StateRead):
                if each.outcome is Outcome.OK and each.state is not None:
                    self.topic.states.append(each)
            elif isinstance(each, OffsetCommit):
                self.topic.commits.append(each)
            elif isinstance(each, OffsetRead):
                self.topic.offset_reads.append(each)
            elif isinstance(each, DeleteRecords | Erase):
                self._deal_deletion(each)
            elif isinstance(each, Fetch | TimeTravel | Positions) and each.outcome is Outcome.OK:
                only = self._lives.only(each.invoked, completed)
                if only is None or only.is_blind:
                    if isinstance(each, Fetch | TimeTravel):
                        self._only_sent(each)
                    continue
                log = self._log(only, each.partition)
                if isinstance(each, Fetch):
                    log.fetches.append(each)
                elif isinstance(each, TimeTravel):
                    log.travels.append(each)
                else:
                    log.positions.append(each)

    def _deal_deletion(self, each: DeleteRecords | Erase) -> None:
        if isinstance(each, Erase):
            self.topic.erasures.append(each)
        if each.outcome is Outcome.REFUSED:
            return
        for life in self._lives.possible(each.invoked, self._clock.effect_until(each)):
            if isinstance(each, DeleteRecords):
                self._log(life, each.partition).deletions.append(each)
            else:
                # More partitions of the life may become known later.
                for number in self._sent:
                    self._log(life, number).erasures.append(each)

    def _only_sent(self, read: Fetch | TimeTravel) -> None:
        """Check only that the records of a read were sent. The read may belong to several lives."""
        sent = self._sent.get(read.partition) or Sent(())
        for record in read.records:
            self._findings.checked("refused")
            if not sent.accepted(record.key, record.value) and self._options.only_recorded:
                report_unsent(self._findings, read, record, sent)

    # ---------------------------------------------------------------------------------------------- reading

    def _read(self, log: PartitionLog) -> None:
        sent = self._sent.get(log.number) or Sent(())
        waiting = self._acknowledged(log, sent)
        sightings = Sightings(log, sent, self._lives, self._clock, self._options, self._findings, self._seen)
        reads: list[Fetch | TimeTravel] = [*log.fetches, *log.travels]
        for read in sorted(reads, key=lambda each: each.completed or 0):
            sightings.see(read)
        parent = log.life.parent
        if parent is not None and log.number in parent.partitions:
            inherit(log, parent.partitions[log.number], self._findings)
        self._loose(log, waiting, sightings)
        log.index()
        excuse(log, self._clock)

    def _acknowledged(self, log: PartitionLog, sent: Sent) -> list[Sending]:
        """Note the records that were acknowledged in this life. Return those that may have been appended at an unknown offset."""
        waiting: list[Sending] = []
        has_append_time = log.has_append_time
        for produce in sent.produces:
            until = self._clock.effect_until(produce)
            if produce.outcome is Outcome.REFUSED or not log.life.may_be_at(produce.invoked, until):
                continue
            if produce.outcome is not Outcome.OK or produce.base_offset is None:
                waiting += [(produce, index) for index in range(len(produce.records))]
                continue
            is_sure = self._lives.only(produce.invoked, until) is log.life
            target = log.entries if is_sure else log.maybes
            for index, record in enumerate(produce.records):
                offset = produce.base_offset + index
                entry = Entry(
                    offset,
                    record.key,
                    record.value,
                    record.headers,
                    None if has_append_time else record.timestamp_ms,
                    produce.invoked,
                    known_by=until if is_sure else NEVER,
                    until=until,
                    produce=produce,
                    is_acknowledged=True,
                )
                earlier = target.get(offset)
                if earlier is not None and is_sure:
                    self._findings.anomaly(
                        "durable",
                        f"Two records were acknowledged at offset {offset} of {log.name}.",
                        [
                            (earlier.produce, f"the record at offset {offset}"),
                            (produce, f"another record at offset {offset}"),
                        ],
                        topic=log.life.topic,
                        partition=log.number,
                        offset=offset,
                        key=record.key,
                    )
                if earlier is not None and not is_sure:
                    # It is unknown which of the two has this offset in this life.
                    if record.key is not None:
                        log.doubts.setdefault(record.key, []).append(entry)
                    continue
                target[offset] = entry
        return waiting

    def _loose(self, log: PartitionLog, waiting: Sequence[Sending], sightings: Sightings) -> None:
        """Note the records that may be in the log although no reader saw them there."""
        parent = log.life.parent
        if parent is not None and log.number in parent.partitions:
            known = {(produce.invoked, produce.records[index].key) for produce, index in waiting}
            for key, found in parent.partitions[log.number].doubts.items():
                for each in found:
                    if each.produce is not None and (each.produce.invoked, key) not in known:
                        log.doubts.setdefault(key, []).append(each)
        for produce, index in waiting:
            record = produce.records[index]
            if record.key is None:
                continue
            if record.value is not None:
                # A record that was seen, in this life or another, is not in the log a second time.
                if self._seen.get((produce.invoked, index)) is not None and not self._options.at_least_once:
                    continue
            elif sightings.unattributed_tombstones(record.key) <= 0:
                continue
            log.doubts.setdefault(record.key, []).append(
                Entry(
                    None,
                    record.key,
                    record.value,
                    record.headers,
                    None if log.has_append_time else record.timestamp_ms,
                    produce.invoked,
                    until=self._clock.effect_until(produce),
                    produce=produce,
                )
            )
