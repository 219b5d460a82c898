"""The records that a life inherits from its parent when the log may have been cut.

The cut is at an unknown offset. It is above each record that is certainly kept: records that were sealed before a crash or
a takeover, were acknowledged before a backup began, or are seen again. It is not above an offset that another record got
afterwards, a log end that was read afterwards, or a record that was sent after a backup ended. Records below the cut are
in the log, records above it are not, and the others may be.

Excuses are inherited with a record. After a restore, only those from before the end of the backup are.
"""

from __future__ import annotations

from dataclasses import replace

from lastword.testing.history.events import Outcome, Restore
from lastword.testing.history.findings import Findings
from lastword.testing.history.truth.clockline import NEVER
from lastword.testing.history.truth.entries import Entry
from lastword.testing.history.truth.partition import PartitionLog
from lastword.testing.history.words import record_text


def inherit(log: PartitionLog, parent: PartitionLog, findings: Findings) -> None:
    """Add the records that were certainly kept to a log's entries, and those that may have been kept to its maybes."""
    cause = log.life.cause
    assert cause is not None
    kept, kept_by = _kept_below(log, parent)
    cut, cut_by = _cut_above(log, parent)
    if kept > cut:
        lost = kept_by or cut_by
        findings.anomaly(
            "durable",
            f"{log.name} kept offset {kept - 1}, but assigned offset {cut} to another record.",
            [
                (lost.produce if lost is not None else None, _text(lost)),
                (cause, "which may cut the log"),
                (cut_by.produce if cut_by is not None else None, _text(cut_by)),
                (cut_by.sighting if cut_by is not None else None, f"and saw {_text(cut_by)}"),
            ],
            topic=log.life.topic,
            partition=log.number,
            offset=cut,
        )
        kept = cut
    reset = cause.backup_completed if isinstance(cause, Restore) else NEVER
    for entries, sure in ((parent.entries, True), (parent.maybes, False)):
        for offset, entry in entries.items():
            if offset >= cut:
                continue
            own = log.entries.get(offset)
            if own is not None and not own.is_same_as(entry):
                continue
            if own is None:
                own = replace(entry)
                own.gone_from = own.taken_from = own.expired_from = NEVER
                if sure and offset < kept:
                    own.known_by = min(entry.known_by, log.life.born_from)
                    log.entries[offset] = own
                else:
                    own.known_by = NEVER
                    log.maybes.setdefault(offset, own)
            for name in ("gone_from", "taken_from", "expired_from"):
                if getattr(entry, name) <= reset:
                    setattr(own, name, getattr(entry, name))
    if not isinstance(cause, Restore):
        log.erasures += [each for each in parent.erasures if each not in log.erasures]
    log.deletions += [
        each for each in parent.deletions if each.invoked <= reset and each not in log.deletions
    ]


def _text(entry: Entry | None) -> str:
    return "" if entry is None else f"{record_text(entry.key, entry.value)} at offset {entry.offset}"


def _kept_below(log: PartitionLog, parent: PartitionLog) -> tuple[int, Entry | None]:
    """Return an offset below which the log was certainly not cut, and the record that proves this."""
    cause = log.life.cause
    kept, proof = 0, None
    if isinstance(cause, Restore):
        for offset, entry in parent.entries.items():
            if entry.known_by < cause.backup_invoked and offset >= kept:
                kept, proof = offset + 1, entry
    elif cause is not None:
        for each in parent.positions:
            if each.sealed_end is not None and each.completed is not None and each.completed < cause.invoked:
                kept = max(kept, each.sealed_end)
    for offset, own in log.entries.items():
        before = parent.entries.get(offset) or parent.maybes.get(offset)
        # Tombstones of a key are indistinguishable, so a tombstone proves nothing.
        if before is None or offset < kept or own.is_tombstone or not own.is_same_as(before):
            continue
        produce = before.produce
        if produce is None or produce.outcome is not Outcome.OK or not before.is_acknowledged:
            continue
        if cause is not None and produce.completed is not None and produce.completed < cause.invoked:
            kept, proof = offset + 1, own
    return kept, proof


def _cut_above(log: PartitionLog, parent: PartitionLog) -> tuple[int, Entry | None]:
    """Return an offset above which no record was kept, and the record that proves this."""
    cause = log.life.cause
    cut, proof = NEVER, None
    for offset, own in log.entries.items():
        if offset >= cut:
            continue
        before = parent.entries.get(offset)
        is_new = own.produce is not None and own.produce.invoked > parent.life.dead_by
        is_other = before is not None and not own.is_same_as(before)
        if is_new or is_other:
            cut, proof = offset, own
    ends = [(each.completed, each.high_watermark) for each in log.fetches]
    ends += [(each.completed, each.log_end) for each in log.positions]
    for completed, end in ends:
        if completed is not None and end is not None and end < cut:
            cut, proof = end, None
    if isinstance(cause, Restore):
        for offset, entry in parent.entries.items():
            if entry.since > cause.backup_completed and offset < cut:
                cut, proof = offset, None
    return cut, proof
