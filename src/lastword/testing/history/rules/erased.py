"""Erased keys: `erased`.

Legality: an erasure removes the records that were in the log when it was invoked, and maybe more. A read that is invoked
after the acknowledgement returns none of them. Records that were appended later stay, so the rule checks only offsets below
a log end that was reached before the erasure was invoked. A state is checked by the offsets of its values. An erasure
applies to one life of the topic and to the lives that follow a crash or a takeover, but not to a restored backup.
"""

from __future__ import annotations

from lastword.testing.history.events import Erase, Fetch, Operation, Outcome, TimeTravel
from lastword.testing.history.findings import Findings
from lastword.testing.history.rules.rule import Rule
from lastword.testing.history.truth.partition import PartitionLog
from lastword.testing.history.truth.reading import Truth
from lastword.testing.history.words import record_text

RULES = (
    Rule(
        "erased",
        "After an acknowledged erasure, no reader sees records of its keys that were appended before it.",
    ),
)


def check(truth: Truth, findings: Findings) -> None:
    for log in truth.logs():
        erased: dict[bytes, list[tuple[Erase, int]]] = {}
        for each in log.erasures:
            if each.outcome is Outcome.OK and each.completed is not None:
                end = _end_at(log, each)
                for key in each.keys:
                    erased.setdefault(key, []).append((each, end))
        if not erased:
            continue
        reads: list[Fetch | TimeTravel] = [*log.fetches, *log.travels]
        for read in reads:
            for record in read.records:
                if record.key in erased:
                    _check(log, erased[record.key], read, record.offset, record.key, record.value, findings)
        topic = truth.topics[log.life.topic]
        for state in topic.states:
            completed = state.invoked if state.completed is None else state.completed
            if state.state is None or topic.lives.only(state.invoked, completed) is not log.life:
                continue
            for key in erased.keys() & state.state.keys():
                value = state.state[key]
                for entry in log.by_key.get(key, ()):
                    if entry.value == value and entry.offset is not None:
                        _check(log, erased[key], state, entry.offset, key, value, findings)


def _end_at(log: PartitionLog, erase: Erase) -> int:
    """Return an offset that the log end had reached when an erasure was invoked, in this life or a parent."""
    life = log.life
    while erase.invoked < life.born_from and life.parent is not None:
        life = life.parent
    if life is log.life:
        return log.end_known_before(erase.invoked)
    # The end of a parent's log may have been cut, and its offsets reused.
    return min(
        life.partitions[log.number].end_known_before(erase.invoked) if log.number in life.partitions else 0,
        min((o for o, e in log.entries.items() if e.since > erase.invoked), default=0),
    )


def _check(
    log: PartitionLog,
    erasures: list[tuple[Erase, int]],
    read: Operation,
    offset: int,
    key: bytes,
    value: bytes | None,
    findings: Findings,
) -> None:
    for erase, end in erasures:
        if erase.completed is None or read.invoked <= erase.completed:
            continue
        findings.checked("erased")
        if offset < end:
            text = record_text(key, value)
            entry = log.entries.get(offset)
            findings.anomaly(
                "erased",
                f"{text} at offset {offset} of {log.name} was erased, but a later read returned it.",
                [
                    (entry.produce if entry is not None else None, f"{text} at offset {offset}"),
                    (erase, ""),
                    (read, f"and saw {text} at offset {offset}"),
                ],
                topic=log.life.topic,
                partition=log.number,
                offset=offset,
                key=key,
            )
            return
