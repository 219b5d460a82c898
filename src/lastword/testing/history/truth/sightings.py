"""The records that readers saw, compared with the records that were sent and with other reads.

Checks `refused`, `immutable`, `next-life`, and one part of `durable`: a record is there once, at its offset.

Legality: a record is identified by its key and value, a tombstone by its offset. A read that can belong to one life only
returns records that were sent in that life or an ancestor, or in an earlier life if that produce was in doubt, the doubt
may have ended in this life, and no earlier life showed the record. Tombstones that were seen but not acknowledged at their
offset are counted: there may be as many as were sent without a known offset. Timestamps and headers are those that were
sent, unless the log sets timestamps, and the same for every reader. A produce that was concurrent with a crash may have
been appended before the cut and again after it.
"""

from __future__ import annotations

from collections import defaultdict

from lastword.testing.history.events import Fetch, Operation, Outcome, SeenRecord, TimeTravel
from lastword.testing.history.findings import Event, Findings
from lastword.testing.history.options import Options
from lastword.testing.history.truth.clockline import NEVER, Clockline
from lastword.testing.history.truth.entries import Entry
from lastword.testing.history.truth.lives import Life, Lives
from lastword.testing.history.truth.partition import PartitionLog
from lastword.testing.history.truth.sent import Identity, Sending, Sent
from lastword.testing.history.words import record_text

Read = Fetch | TimeTravel


class Sightings:
    """Notes the records that reads of one log return, read by read."""

    def __init__(
        self,
        log: PartitionLog,
        sent: Sent,
        lives: Lives,
        clock: Clockline,
        options: Options,
        findings: Findings,
        seen: dict[tuple[int, int], Life],
    ) -> None:
        self._log = log
        self._sent = sent
        self._lives = lives
        self._clock = clock
        self._options = options
        self._findings = findings
        self._seen = seen
        """The life in which each sending was seen."""
        self._family = log.life.family
        self._places: dict[Identity, int] = {}
        self._tombstones: dict[bytes, int] = defaultdict(int)
        parent = log.life.parent
        self._parent = parent.partitions.get(log.number) if parent is not None else None

    def see(self, read: Read) -> None:
        """Note the records of a read."""
        completed = NEVER if read.completed is None else read.completed
        entries = self._log.entries
        self._findings.checked("immutable", len(read.records))
        self._findings.checked("refused", len(read.records))
        if self._family[-1].number > 0:
            self._findings.checked("next-life", len(read.records))
        for record in read.records:
            entry = entries.get(record.offset)
            if entry is None:
                self._find(read, record, completed)
            elif entry.key != record.key or entry.value != record.value:
                self._is_another(entry, read, record)
            else:
                if entry.headers != record.headers or (
                    entry.timestamp_ms != record.timestamp_ms
                    and entry.timestamp_ms is not None
                    and record.timestamp_ms is not None
                ):
                    self._has_changed(entry, read, record)
                if entry.timestamp_ms is None:
                    entry.timestamp_ms = record.timestamp_ms
                if completed < entry.known_by:
                    entry.known_by = completed
                if entry.sighting is None:
                    entry.sighting = read
                    if completed < entry.since:
                        self._is_early(entry, read, record)

    def unattributed_tombstones(self, key: bytes) -> int:
        """Return how many tombstones of a key were sent without a known offset, and not seen."""
        return len(self._tombstone_sendings(key, NEVER)) - self._tombstones.get(key, 0)

    # ---------------------------------------------------------------------------------- records seen first here

    def _find(self, read: Read, record: SeenRecord, completed: int) -> None:
        """Find the produce of a record that was not seen before, and note it."""
        log = self._log
        maybe = log.maybes.pop(record.offset, None)
        if maybe is not None and maybe.is_same_as(record):
            maybe.known_by, maybe.sighting = completed, read
            log.entries[record.offset] = maybe
            return
        entry = Entry(
            record.offset,
            record.key,
            record.value,
            record.headers,
            record.timestamp_ms,
            -1,
            known_by=completed,
            until=completed,
            sighting=read,
        )
        before = self._parent.entries.get(record.offset) if self._parent is not None else None
        if before is None and self._parent is not None:
            before = self._parent.maybes.get(record.offset)
        if before is not None and before.is_same_as(record):
            entry.since = before.since
            # A tombstone may also be another one, at an offset that was cut off and reused.
            entry.produce = None if before.is_tombstone else before.produce
        elif record.key is not None and record.value is None:
            if not self._attribute_tombstone(entry, read, record, completed):
                return
        elif not self._attribute(entry, read, record, completed):
            return
        log.entries[record.offset] = entry

    def _attribute(self, entry: Entry, read: Read, record: SeenRecord, completed: int) -> bool:
        sendings = self._sent.accepted(record.key, record.value)
        if not sendings:
            if self._options.only_recorded:
                report_unsent(self._findings, read, record, self._sent)
            return not self._options.only_recorded
        ours = [each for each in sendings if self._may_be_here(each)]
        if not ours:
            self._is_of_another_life(read, record, sendings[0])
            return False
        produce, index = ours[0]
        if completed < produce.invoked:
            entry.produce = produce
            self._is_early(entry, read, record)
            return False
        place = self._place(produce, index)
        identity = (record.key, record.value)
        earlier = self._places.get(identity, place)
        if earlier is not None and earlier != record.offset and len(ours) == 1:
            if not self._options.at_least_once:
                self._is_double(earlier, produce, read, record)
            return self._options.at_least_once
        self._places[identity] = record.offset
        self._seen.setdefault((produce.invoked, index), self._log.life)
        entry.since, entry.produce = produce.invoked, produce
        entry.is_acknowledged = produce.outcome is Outcome.OK
        sent = produce.records[index]
        if sent.headers != record.headers or (
            not self._log.has_append_time
            and sent.timestamp_ms is not None
            and record.timestamp_ms is not None
            and sent.timestamp_ms != record.timestamp_ms
        ):
            self._has_changed(entry, read, record)
        return True

    def _place(self, produce: Operation, index: int) -> int | None:
        """Return the offset at which a record was acknowledged, if it can be in no other life's log."""
        base: int | None = getattr(produce, "base_offset", None)
        if produce.outcome is not Outcome.OK or base is None:
            return None
        return base + index if self._lives.only(produce.invoked, self._clock.effect_until(produce)) else None

    def _may_be_here(self, sending: Sending) -> bool:
        produce, index = sending
        until = self._clock.effect_until(produce)
        if not any(each.may_be_at(produce.invoked, until) for each in self._family):
            return False
        seen_in = self._seen.get((produce.invoked, index))
        return seen_in is None or seen_in.root is self._log.life.root or self._options.at_least_once

    def _attribute_tombstone(self, entry: Entry, read: Read, record: SeenRecord, completed: int) -> bool:
        assert record.key is not None
        if not self._options.only_recorded:
            return True
        sendings = self._tombstone_sendings(record.key, completed)
        self._tombstones[record.key] += 1
        if not self._options.at_least_once and self._tombstones[record.key] > len(sendings):
            report_unsent(self._findings, read, record, self._sent)
            return False
        if not sendings:
            report_unsent(self._findings, read, record, self._sent)
            return False
        entry.since = min(produce.invoked for produce, _ in sendings)
        if len(sendings) == 1:
            entry.produce = sendings[0][0]
        return True

    def _tombstone_sendings(self, key: bytes, completed: int) -> list[Sending]:
        """Return the sendings of tombstones of a key that may be in this log at an unknown offset."""
        return [
            each
            for each in self._sent.accepted(key, None)
            if each[0].invoked <= completed and self._may_be_here(each) and self._place(*each) is None
        ]

    # -------------------------------------------------------------------------------------------- anomalies

    def _report(self, rule: str, what: str, events: list[Event], record: SeenRecord) -> None:
        self._findings.anomaly(
            rule,
            what,
            events,
            topic=self._log.life.topic,
            partition=self._log.number,
            offset=record.offset,
            key=record.key,
        )

    def _is_another(self, entry: Entry, read: Read, record: SeenRecord) -> None:
        shown = record_text(record.key, record.value)
        proper = record_text(entry.key, entry.value)
        first = entry.sighting is not None
        events: list[Event] = [(entry.produce, f"{proper} at offset {entry.offset}")]
        if first:
            events.append((entry.sighting, f"and saw {proper} at offset {entry.offset}"))
        events.append((read, f"and saw {shown} at offset {record.offset}"))
        rule = "durable" if entry.is_acknowledged and not first else "immutable"
        self._report(
            rule,
            f"Offset {record.offset} of {self._log.name} shows {shown} instead of {proper}.",
            events,
            record,
        )

    def _has_changed(self, entry: Entry, read: Read, record: SeenRecord) -> None:
        shown = record_text(record.key, record.value)
        self._report(
            "immutable",
            f"{shown} at offset {record.offset} of {self._log.name} has another timestamp or other headers than before.",
            [
                (entry.produce, f"{shown}"),
                (entry.sighting if entry.sighting is not read else None, f"and saw {_details(entry)}"),
                (read, f"and saw {_details(record)}"),
            ],
            record,
        )

    def _is_double(self, earlier: int, produce: Operation, read: Read, record: SeenRecord) -> None:
        shown = record_text(record.key, record.value)
        other = self._log.entries.get(earlier)
        self._report(
            "durable",
            f"{shown} was sent once, and is in {self._log.name} at offset {earlier} and at offset {record.offset}.",
            [
                (produce, shown),
                (other.sighting if other is not None else None, f"and saw {shown} at offset {earlier}"),
                (read, f"and saw {shown} at offset {record.offset}"),
            ],
            record,
        )

    def _is_early(self, entry: Entry, read: Read, record: SeenRecord) -> None:
        shown = record_text(record.key, record.value)
        self._report(
            "refused",
            f"{self._log.name} shows {shown} before it was sent.",
            [(read, f"and saw {shown} at offset {record.offset}"), (entry.produce, shown)],
            record,
        )

    def _is_of_another_life(self, read: Read, record: SeenRecord, sending: Sending) -> None:
        shown = record_text(record.key, record.value)
        self._report(
            "next-life",
            f"{self._log.name} shows {shown}, which was sent to another life of the topic.",
            [
                (sending[0], f"{shown}, to an earlier or later life of the topic"),
                (self._log.life.created, "which began a new life"),
                (read, f"and saw {shown} at offset {record.offset}"),
            ],
            record,
        )


def _details(record: Entry | SeenRecord) -> str:
    return f"timestamp {record.timestamp_ms} and headers {list(record.headers)}"


def report_unsent(findings: Findings, read: Read, record: SeenRecord, sent: Sent) -> None:
    """Report a record that was refused or never sent."""
    shown = record_text(record.key, record.value)
    refused = [
        produce for produce, _ in sent.of(record.key, record.value) if produce.outcome is Outcome.REFUSED
    ]
    events: list[Event] = [(each, f"{shown}, and was refused") for each in refused[:1]]
    findings.anomaly(
        "refused",
        f"{read.topic}/{read.partition} shows {shown}, which "
        f"{'was refused' if refused else 'was not sent there, or not that often'}.",
        [*events, (read, f"and saw {shown} at offset {record.offset}")],
        topic=read.topic,
        partition=read.partition,
        offset=record.offset,
        key=record.key,
    )
