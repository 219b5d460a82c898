"""Anomalies as short stories: the operations that prove an anomaly, with their processes and times."""

from __future__ import annotations

from collections.abc import Iterator

from lastword.testing.history.events import (
    DeleteRecords,
    Erase,
    Fetch,
    OffsetCommit,
    OffsetRead,
    Operation,
    Outcome,
    Point,
    Positions,
    Produce,
    Restart,
    Restore,
    StateRead,
    Takeover,
    TimeTravel,
    TopicCreated,
    TopicDeleted,
    TopicSettings,
)
from lastword.testing.history.report import Anomaly, Report
from lastword.testing.history.rules import RULES
from lastword.testing.history.words import text_of, time_text

_ENDS = {
    Outcome.OK: "",
    Outcome.REFUSED: " (refused)",
    Outcome.DOUBT: " (in doubt)",
}


def story(anomaly: Anomaly) -> str:
    """Return the story of an anomaly."""
    lines = [f"{anomaly.rule}: {anomaly.what}", f"  Promised: {RULES[anomaly.rule].promise}"]
    lines += [f"  {_sentence(operation, words)}" for operation, words in anomaly.events]
    return "\n".join(lines)


def tell(report: Report) -> str:
    """Return the stories of a report, and the number of facts that each rule checked."""
    parts = [story(each) for each in report.anomalies]
    told = {name: sum(each.rule == name for each in report.anomalies) for name in report.found}
    more = [
        f"{name}: {count - told[name]} more" for name, count in report.found.items() if count > told[name]
    ]
    return "\n\n".join([*parts, *more, "\n".join(counts(report))])


def counts(report: Report) -> Iterator[str]:
    """Yield a line per rule: how many facts it checked, and how many anomalies it found."""
    for name in report.checked:
        found = report.found.get(name, 0)
        checked = report.checked[name]
        yield f"{name:14} {checked:>10,} facts  {f'{found:,} anomalies' if found else 'ok' if checked else 'nothing checked'}"


def _sentence(operation: Operation, words: str) -> str:
    when = time_text(operation.invoked_ms)
    if operation.completed_ms is not None and operation.completed_ms != operation.invoked_ms:
        when += f" to {time_text(operation.completed_ms)}"
    joined = (
        (" " if words.startswith("and ") else ", " if words.startswith("which ") else ": ") if words else ""
    )
    end = _ENDS[operation.outcome] if operation.completed is not None else " (never returned)"
    return f"{when}  {operation.process} {_did(operation)}{end}{joined}{words}. [{_numbers(operation)}]"


def _numbers(operation: Operation) -> str:
    return f"{operation.invoked} to {'…' if operation.completed is None else operation.completed}"


def _did(operation: Operation) -> str:
    match operation:
        case Produce():
            records = f"{len(operation.records)} record{'' if len(operation.records) == 1 else 's'}"
            return f"sent {records} to {operation.topic}/{operation.partition}"
        case Fetch():
            session = "" if operation.session is None else f" (session {operation.session})"
            return (
                f"read {operation.topic}/{operation.partition} from {operation.from_offset} "
                f"up to {operation.next_offset}{session}"
            )
        case Positions():
            return f"looked at the positions of {operation.topic}/{operation.partition}"
        case OffsetCommit():
            return (
                f"committed the offset {operation.offset} of {operation.topic}/{operation.partition} "
                f"for group {operation.group}"
            )
        case OffsetRead():
            return f"read the offset of group {operation.group} for {operation.topic}/{operation.partition}"
        case StateRead():
            return f"read the state of {operation.topic}{_as_of(operation.as_of)}"
        case TimeTravel():
            return f"read {operation.topic}/{operation.partition}{_as_of(operation.as_of)}"
        case Erase():
            return f"erased {', '.join(text_of(key) for key in operation.keys[:5])} from {operation.topic}"
        case DeleteRecords():
            return (
                f"deleted the records of {operation.topic}/{operation.partition} "
                f"before {operation.before_offset}"
            )
        case TopicCreated():
            settings = ", ".join(f"{name}={value}" for name, value in operation.settings.items())
            return f"created the topic {operation.topic}{f' with {settings}' if settings else ''}"
        case TopicDeleted():
            return f"deleted the topic {operation.topic}"
        case TopicSettings():
            settings = ", ".join(f"{name}={value}" for name, value in operation.settings.items())
            return f"changed {operation.topic}: {settings}"
        case Restart():
            return f"restarted the server ({operation.kind})"
        case Restore():
            return f"restored a backup made from {operation.backup_invoked} to {operation.backup_completed}"
        case Takeover():
            return "took the topics over"
    return type(operation).__name__


def _as_of(point: Point | None) -> str:
    if point is None:
        return ""
    if point.offsets is not None:
        return " as of " + ", ".join(
            f"offset {last} of {number}" for number, last in sorted(point.offsets.items())
        )
    return f" as of {time_text(point.time_ms or 0)}"
