"""Removed records never return: `no-return`.

A reader that passes an offset below the first dirty offset of its snapshot, and sees no record there, proves that the
record is in neither this snapshot nor any later one. Above the first dirty offset it proves nothing: sealing may have left
a superseded record out of the table, while other readers still find it in the write-ahead log.

Legality: a reader may still return the record if it began before the first reader had completed, because a session may
keep its first snapshot. A restore, and a cut of the log, begin a new life, in which no record has been removed yet.
"""

from __future__ import annotations

from bisect import bisect_left

from lastword.testing.history.events import Fetch
from lastword.testing.history.findings import Findings
from lastword.testing.history.rules.rule import Rule
from lastword.testing.history.rules.skips import Skips
from lastword.testing.history.rules.visible import how_known
from lastword.testing.history.truth.clockline import NEVER
from lastword.testing.history.truth.partition import PartitionLog
from lastword.testing.history.truth.reading import Truth
from lastword.testing.history.words import record_text

RULES = (
    Rule(
        "no-return",
        "A record that compaction has removed for one reader is never shown to a reader that begins later.",
    ),
)


def check(truth: Truth, findings: Findings) -> None:
    for log in truth.logs():
        absent = _absences(log, truth.options.gaps_never_close)
        for fetch in log.fetches:
            if not absent:
                break
            began = truth.reader_began(fetch)
            for record in fetch.records:
                proof = absent.get(record.offset)
                if proof is None:
                    continue
                findings.checked("no-return")
                if proof.completed is None or proof.completed >= began:
                    continue
                entry = log.entries.get(record.offset)
                text = record_text(record.key, record.value)
                findings.anomaly(
                    "no-return",
                    f"{text} at offset {record.offset} of {log.name} was removed, but a later reader saw it.",
                    [
                        *(how_known(entry)[:1] if entry is not None else []),
                        (proof, f"and did not see {text} at offset {record.offset}"),
                        (fetch, f"and saw {text} at offset {record.offset}"),
                    ],
                    topic=log.life.topic,
                    partition=log.number,
                    offset=record.offset,
                    key=record.key,
                )


def _absences(log: PartitionLog, never_close: bool) -> dict[int, Fetch]:
    """Return for each known offset the first fetch that proves its removal."""
    offsets = log.offsets
    skips = Skips(len(offsets))
    absent: dict[int, Fetch] = {}

    for fetch in sorted(log.fetches, key=lambda each: each.completed or 0):
        if fetch.next_offset is None:
            continue
        limit = NEVER if never_close else fetch.first_dirty or 0
        end = min(fetch.next_offset, limit)
        at = fetch.from_offset
        for shown in [*sorted(record.offset for record in fetch.records), end]:
            until = min(shown, end)
            place = skips.first_from(bisect_left(offsets, at)) if at < until else len(offsets)
            while place < len(offsets) and offsets[place] < until:
                absent[offsets[place]] = fetch
                skips.skip(place)
                place = skips.first_from(place + 1)
            at = max(at, shown + 1)
    return absent
