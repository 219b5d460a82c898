"""Positions: `positions`.

Legality: if one reader of the positions completes before another one begins, in the same life, the later one sees no lower
log start, first dirty offset, sealed end or log end. Concurrent readers prove nothing. A crash that may lose the end of
the log, a takeover and a restore begin a new life. The first dirty offset of a fetch belongs to the snapshot that the
response comes from, which may be old: it is a lower bound for later readers, and is not checked itself.

After an acknowledged DeleteRecords the log start is at least its offset, and no reader that begins later sees a record
below it.
"""

from __future__ import annotations

from bisect import bisect_left

from lastword.testing.history.events import DeleteRecords, Fetch, Outcome, Positions, TimeTravel
from lastword.testing.history.findings import Findings
from lastword.testing.history.rules.rule import Rule
from lastword.testing.history.truth.partition import PartitionLog
from lastword.testing.history.truth.reading import Truth
from lastword.testing.history.words import record_text

RULES = (
    Rule(
        "positions",
        "Log start, first dirty offset, sealed end and log end never move back, and no record below the log start is read.",
    ),
)

_NAMES = {
    "log_start": "log start",
    "first_dirty": "first dirty offset",
    "sealed_end": "sealed end",
    "log_end": "log end",
}

Look = Fetch | Positions
Proof = tuple[int, int, Look | DeleteRecords]
"""The number by which a position was reached, its value, and the operation that proves it."""


def check(truth: Truth, findings: Findings) -> None:
    for log in truth.logs():
        deletions = _deletions(log, truth)
        for name in _NAMES:
            _check(log, name, deletions if name == "log_start" else [], truth, findings)
        _check_deleted(log, _rising(deletions), truth, findings)


def _deletions(log: PartitionLog, truth: Truth) -> list[Proof]:
    """Return the log starts that acknowledged DeleteRecords requests set in the life of a log."""
    lives = truth.topics[log.life.topic].lives
    return [
        (each.completed, each.before_offset, each)
        for each in log.deletions
        if each.outcome is Outcome.OK
        and each.completed is not None
        and lives.only(each.invoked, each.completed) is log.life
    ]


def _rising(proofs: list[Proof]) -> list[Proof]:
    """Return the proofs whose value exceeds all values before them."""
    highest: list[Proof] = []
    for proof in sorted(proofs, key=lambda each: each[:2]):
        if not highest or proof[1] > highest[-1][1]:
            highest.append(proof)
    return highest


def _check(log: PartitionLog, name: str, deletions: list[Proof], truth: Truth, findings: Findings) -> None:
    looks: list[tuple[Look, int]] = []
    every: list[Look] = [*log.fetches, *log.positions]
    for each in every:
        field = "high_watermark" if name == "log_end" and isinstance(each, Fetch) else name
        value = getattr(each, field, None)
        if value is not None and each.completed is not None:
            looks.append((each, value))
    highest = _rising([*deletions, *((look.completed or 0, value, look) for look, value in looks)])
    completions = [each[0] for each in highest]
    for look, value in looks:
        if isinstance(look, Fetch) and name == "first_dirty":
            continue
        index = bisect_left(completions, truth.reader_began(look))
        if not index:
            continue
        findings.checked("positions")
        _, before, proof = highest[index - 1]
        if before > value:
            findings.anomaly(
                "positions",
                f"The {_NAMES[name]} of {log.name} moved back from {before} to {value}.",
                [
                    (
                        proof,
                        "" if isinstance(proof, DeleteRecords) else f"and got the {_NAMES[name]} {before}",
                    ),
                    (look, f"and got the {_NAMES[name]} {value}"),
                ],
                topic=log.life.topic,
                partition=log.number,
                offset=value,
            )


def _check_deleted(log: PartitionLog, deletions: list[Proof], truth: Truth, findings: Findings) -> None:
    if not deletions:
        return
    completions = [each[0] for each in deletions]
    reads: list[Fetch | TimeTravel] = [*log.fetches, *log.travels]
    for read in reads:
        index = bisect_left(completions, truth.reader_began(read))
        if not index:
            continue
        _, before, proof = deletions[index - 1]
        findings.checked("positions", len(read.records))
        for record in read.records:
            if record.offset < before:
                text = record_text(record.key, record.value)
                findings.anomaly(
                    "positions",
                    f"{text} at offset {record.offset} of {log.name} was deleted, but a later read returned it.",
                    [(proof, ""), (read, f"and saw {text} at offset {record.offset}")],
                    topic=log.life.topic,
                    partition=log.number,
                    offset=record.offset,
                    key=record.key,
                )
                break
