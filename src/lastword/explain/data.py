"""Explanations as plain data, for JSON."""

from __future__ import annotations

from dataclasses import asdict

from lastword.explain.model import VALUE_BYTES, ExplainedRecord, Explanation, PartitionExplanation
from lastword.record_json import Json, json_bytes


def explanation_data(explanation: Explanation) -> Json:
    following = explanation.next
    return {
        "topic": explanation.topic,
        "run": explanation.run,
        "seals": explanation.seals,
        "now_ms": explanation.now_ms,
        "next": None if following is None else {"partition": following[0], "offset": following[1]},
        "partitions": [_partition_data(each) for each in explanation.partitions],
    }


def _partition_data(explained: PartitionExplanation) -> Json:
    return {
        "partition": explained.partition,
        "log_start": explained.log_start,
        "first_dirty": explained.first_dirty,
        "sealed_end": explained.sealed_end,
        "log_end": explained.log_end,
        "due": explained.due,
        "not_due": explained.not_due,
        "problem": explained.problem,
        "next_offset": explained.next_offset,
        "records": [record_data(each) for each in explained.records],
    }


def record_data(record: ExplainedRecord) -> Json:
    """Return a record and its verdict. A long value is cut to its beginning; `value_bytes` is its full size."""
    verdict = record.verdict
    return {
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        **json_bytes("key", record.key),
        **json_bytes("value", beginning(record.value, record.value_bytes)),
        "value_bytes": record.value_bytes,
        "is_tombstone": record.is_tombstone,
        "is_hidden": record.is_hidden,
        "place": asdict(record.place),
        "goes": verdict.goes,
        "rule": verdict.rule,
        "beaten_by": verdict.beaten_by,
        "waits_for": verdict.waits_for,
        "until_ms": verdict.until_ms,
        "readers": [{"reader": each.reader, "position": each.position} for each in verdict.readers],
        "reason": record.reason,
    }


def beginning(value: bytes | None, size_bytes: int | None) -> bytes | None:
    """Return at most VALUE_BYTES of a value of some size, not cut within a character if it is text."""
    if value is None:
        return None
    start = value[:VALUE_BYTES]
    if len(start) == size_bytes:
        return start
    try:
        start.decode()
    except UnicodeDecodeError as error:
        return start[: error.start] if error.start > len(start) - 4 else start
    return start
