"""Reading records. The caller bounds their number and size."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lastword.errors import InvalidError
from lastword.operations.options import Spelled, check_together
from lastword.operations.state_page import state_page
from lastword.reading.timetravel import AsOf, parse_as_of
from lastword.record_json import parse_time, record_data
from lastword.segments.rows import to_records

if TYPE_CHECKING:
    import pyarrow as pa

    from lastword.log import Log
    from lastword.log.topic import Topic
    from lastword.reading.streaming import Start


def read_records(
    log: Log,
    name: str,
    *,
    start: str | None = None,
    from_time: str | None = None,
    partition: int | None = None,
    max_records: int,
    max_bytes: int,
    state: bool = False,
    after_key: bytes | None = None,
    as_of: str | None = None,
) -> dict[str, Any]:
    """Return some records, and the offset to continue from for each partition that was read. Takes no lock.

    The result ends with the record that passes `max_bytes` of keys and values. With `state`, return the newest record
    of each key, by key, and the key to continue after. With `as_of` alone, there is nothing to continue from.
    """
    topic = log.topic(name)
    check_together(
        {
            "from": start,
            "from_time": from_time,
            "state": state,
            "after_key_base64": after_key,
            "partition": partition,
            "max": max_records,
            "max_bytes": max_bytes,
            "as_of": as_of,
        }
    )
    point = None if as_of is None else point_of(topic, as_of, partition)
    if state:
        page = state_page(topic, as_of=point, after=after_key, limit=max_records, max_bytes=max_bytes)
        following = None if page.next is None else {"after_key_base64": base64.b64encode(page.next).decode()}
        return {"topic": name, "records": [record_data(each) for each in page.records], "next": following}
    if after_key is not None:
        raise InvalidError("after_key_base64 continues a read of the state. It needs state=true.")
    if point is not None:
        batches = topic.read_as_of(point, partition=partition)
        return {"topic": name, "records": _take(batches, max_records, max_bytes), "next": None}
    begin = start_of(topic, start, from_time, partition)
    records: list[dict[str, Any]] = []
    size_bytes = 0
    with topic.reader(None, start=begin, partition=partition) as reader:
        ends = {each: extent.log_end for each, extent in topic.extents().items()}
        positions = dict(reader.positions)
        while len(records) < max_records and size_bytes < max_bytes:
            if all(offset >= ends[each] for each, offset in reader.positions.items()):
                break
            found = reader.poll(max_records=min(500, max_records - len(records)), timeout_s=0)
            if not found:
                break
            for index, record in enumerate(found):
                records.append(record_data(record))
                positions[record.partition] = record.offset + 1
                size_bytes += len(record.key or b"") + len(record.value or b"")
                if size_bytes >= max_bytes and index + 1 < len(found):
                    break
            else:
                positions = dict(reader.positions)
    return {
        "topic": name,
        "records": records,
        "next": {str(each): offset for each, offset in sorted(positions.items())},
    }


def _take(batches: Iterator[pa.RecordBatch], max_records: int, max_bytes: int) -> list[dict[str, Any]]:
    taken: list[dict[str, Any]] = []
    size_bytes = 0
    for batch in batches:
        for record in to_records(batch):
            if len(taken) >= max_records or size_bytes >= max_bytes:
                return taken
            taken.append(record_data(record))
            size_bytes += len(record.key or b"") + len(record.value or b"")
    return taken


def point_of(topic: Topic, as_of: str, partition: int | None, spelled: Spelled = str) -> AsOf:
    """Parse a point in the past: an offset, a time, or snapshot:ID."""
    point = parse_as_of(as_of, spelled("as_of"))
    if point.offset is not None and partition is None and topic.partitions > 1:
        raise InvalidError(
            f"{spelled('as_of')} {as_of}: {topic.name} has {topic.partitions} partitions, and an offset refers to one of "
            f"them; say which with {spelled('partition')}, or give a time or a snapshot"
        )
    return point


def start_of(
    topic: Topic, start: str | None, from_time: str | None, partition: int | None, spelled: Spelled = str
) -> Start | dict[int, Start]:
    """Parse the start of a read: earliest, latest, an offset, or a time."""
    if from_time is not None:
        return topic.offsets_for_time(parse_time(from_time))
    if start is None or start == "earliest":
        return "earliest"
    if start == "latest":
        return "latest"
    if not start.isascii() or not start.isdigit():
        raise InvalidError(
            f"{spelled('from')} is {start!r}; allowed: earliest, latest, or an offset such as 1000"
        )
    if partition is None and topic.partitions > 1:
        raise InvalidError(
            f"{spelled('from')} {start}: {topic.name} has {topic.partitions} partitions, and an offset refers to one of "
            f"them; say which with {spelled('partition')}"
        )
    return int(start)
