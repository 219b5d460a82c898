"""The records that a fetch must return: `durable`, `gaps`, `tombstones`.

A fetch covers the offsets from `from_offset` up to `next_offset`. Offsets are dense: if the reader has passed an offset,
the offset was assigned, so the record that is known to have it is there or has been removed.

Legality of a missing record: its removal may be permitted from some moment on (truth/excuses.py), and the fetch had not
returned by then. Records that are not certainly in this log are never missing. A missing record violates `durable` if it
was acknowledged, `gaps` if only other readers saw it, and `tombstones` if it is a tombstone.

A log start is legal if every record below it may be removed. The log end that a reader gets is above every record that was
acknowledged before the reader began. If one acknowledged produce ended before another began, it has the lower offsets.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate, pairwise

from lastword.testing.history.events import Fetch, Outcome, Positions
from lastword.testing.history.findings import Event, Findings
from lastword.testing.history.rules.rule import Rule
from lastword.testing.history.rules.skips import Skips
from lastword.testing.history.truth.clockline import NEVER
from lastword.testing.history.truth.entries import Entry
from lastword.testing.history.truth.partition import PartitionLog
from lastword.testing.history.truth.reading import Truth
from lastword.testing.history.words import record_text

RULES = (
    Rule("durable", "An acknowledged record is there, once, in order, until a rule permits its removal."),
    Rule("gaps", "A record that a reader saw is there for later readers, until a rule permits its removal."),
    Rule("tombstones", "A tombstone that is the newest record of its key stays for delete.retention.ms."),
)


def check(truth: Truth, findings: Findings) -> None:
    for log in truth.logs():
        _Passes(log, findings).check()
        _check_log_start(log, findings)
        _check_log_end(log, truth, findings)
        _check_order(log, findings)


class _Passes:
    """All fetches of a log, in the order of their completion. Records whose removal is permitted are skipped from then on."""

    def __init__(self, log: PartitionLog, findings: Findings) -> None:
        self._log = log
        self._findings = findings
        self._skips = Skips(len(log.offsets))
        """For each position in offset order, the next record that must be there."""
        self._leaving = sorted(
            (log.entries[offset].gone_from, place)
            for place, offset in enumerate(log.offsets)
            if log.entries[offset].gone_from < NEVER
        )
        self._left = 0

    def check(self) -> None:
        for fetch in sorted(self._log.fetches, key=lambda each: each.completed or 0):
            if fetch.next_offset is not None and fetch.completed is not None:
                self._check(fetch, fetch.next_offset, fetch.completed)

    def _check(self, fetch: Fetch, end: int, completed: int) -> None:
        while self._left < len(self._leaving) and self._leaving[self._left][0] <= completed:
            place = self._leaving[self._left][1]
            self._skips.skip(place)
            self._left += 1
        offsets, entries = self._log.offsets, self._log.entries
        shown = [record.offset for record in fetch.records]
        seen = set(shown)
        if shown and (
            shown[0] < fetch.from_offset
            or shown[-1] >= end
            or any(one >= two for one, two in pairwise(shown))
        ):
            self._is_unordered(fetch, shown)
        place = self._skips.first_from(bisect_left(offsets, fetch.from_offset))
        acknowledged = others = tombstones = 0
        while place < len(offsets) and offsets[place] < end:
            entry = entries[offsets[place]]
            rule = _rule_of(entry)
            if rule == "durable":
                acknowledged += 1
            elif rule == "gaps":
                others += 1
            else:
                tombstones += 1
            if offsets[place] not in seen:
                self._is_missing(rule, entry, fetch)
            place = self._skips.first_from(place + 1)
        self._findings.checked("durable", acknowledged)
        self._findings.checked("gaps", others)
        self._findings.checked("tombstones", tombstones)

    def _is_missing(self, rule: str, entry: Entry, fetch: Fetch) -> None:
        text = record_text(entry.key, entry.value)
        self._findings.anomaly(
            rule,
            f"{text} is missing at offset {entry.offset} of {self._log.name}.",
            [
                *how_known(entry),
                *_next_of_key(self._log, entry),
                (fetch, f"and did not see {text} at offset {entry.offset}"),
            ],
            topic=self._log.life.topic,
            partition=self._log.number,
            offset=entry.offset,
            key=entry.key,
        )

    def _is_unordered(self, fetch: Fetch, shown: list[int]) -> None:
        self._findings.anomaly(
            "durable",
            f"A fetch of {self._log.name} returned records out of order, or outside of the requested offsets.",
            [(fetch, f"and saw the offsets {', '.join(map(str, shown[:20]))}")],
            topic=self._log.life.topic,
            partition=self._log.number,
        )


def _rule_of(entry: Entry) -> str:
    if entry.is_tombstone:
        return "tombstones"
    return "durable" if entry.is_acknowledged else "gaps"


def how_known(entry: Entry) -> list[Event]:
    """Return the events that prove that an entry is in the log."""
    text = record_text(entry.key, entry.value)
    return [
        (entry.produce, f"{text}{f' at offset {entry.offset}' if entry.is_acknowledged else ''}"),
        (entry.sighting, f"and saw {text} at offset {entry.offset}"),
    ]


def _next_of_key(log: PartitionLog, entry: Entry) -> list[Event]:
    """Return the next record of the key, which supersedes this one but does not permit its removal yet."""
    if entry.key is None or entry.offset is None:
        return []
    for later in log.by_key.get(entry.key, ()):
        if later.offset is not None and later.offset > entry.offset:
            text = record_text(later.key, later.value)
            return [
                (later.produce, f"{text} at offset {later.offset}, which does not permit the removal yet")
            ]
    return []


def _check_log_start(log: PartitionLog, findings: Findings) -> None:
    offsets, entries = log.offsets, log.entries
    latest = list(accumulate((entries[each].gone_from for each in offsets), max))
    looks: list[Fetch | Positions] = [*log.fetches, *log.positions]
    for each in looks:
        if each.log_start is None or each.completed is None:
            continue
        findings.checked("durable")
        below = bisect_left(offsets, each.log_start)
        if not below or latest[below - 1] <= each.completed:
            continue
        entry = next(
            entries[offset] for offset in offsets[:below] if entries[offset].gone_from > each.completed
        )
        text = record_text(entry.key, entry.value)
        findings.anomaly(
            "durable",
            f"The log start of {log.name} is {each.log_start}, but no rule permits the removal of {text} at offset {entry.offset}.",
            [*how_known(entry), (each, f"and got the log start {each.log_start}")],
            topic=log.life.topic,
            partition=log.number,
            offset=entry.offset,
            key=entry.key,
        )


def _check_log_end(log: PartitionLog, truth: Truth, findings: Findings) -> None:
    looks: list[tuple[Fetch | Positions, int]] = [
        (each, each.high_watermark) for each in log.fetches if each.high_watermark is not None
    ]
    looks += [(each, each.log_end) for each in log.positions if each.log_end is not None]
    proofs: list[tuple[int, int]] = []
    for known_by, end in sorted(
        (entry.known_by, offset + 1) for offset, entry in log.entries.items() if entry.is_acknowledged
    ):
        if not proofs or end > proofs[-1][1]:
            proofs.append((known_by, end))
    for each, end in looks:
        findings.checked("durable")
        index = bisect_left(proofs, (truth.reader_began(each), -1))
        if index and proofs[index - 1][1] > end:
            entry = log.entries[proofs[index - 1][1] - 1]
            findings.anomaly(
                "durable",
                f"The log end of {log.name} is {end}, but offset {entry.offset} had been acknowledged.",
                [*how_known(entry), (each, f"and got the log end {end}")],
                topic=log.life.topic,
                partition=log.number,
                offset=entry.offset,
                key=entry.key,
            )


def _check_order(log: PartitionLog, findings: Findings) -> None:
    latest: Entry | None = None
    for offset in log.offsets:
        entry = log.entries[offset]
        produce = entry.produce
        if produce is None or (not entry.is_acknowledged and entry.sighting is None):
            continue
        if produce.outcome is Outcome.OK and produce.completed is not None and latest is not None:
            findings.checked("durable")
            if produce.completed < latest.since:
                findings.anomaly(
                    "durable",
                    f"{record_text(latest.key, latest.value)} has offset {latest.offset} of {log.name}, before "
                    f"{record_text(entry.key, entry.value)} at offset {offset}, which was acknowledged before "
                    "the other was sent.",
                    [*how_known(entry), *how_known(latest)],
                    topic=log.life.topic,
                    partition=log.number,
                    offset=offset,
                    key=entry.key,
                )
        if latest is None or entry.since > latest.since:
            latest = entry
