"""Records as lines: for people, and as JSON that `lastword produce --jsonl` accepts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from lastword import record_json
from lastword.record_json import record_data

if TYPE_CHECKING:
    from lastword.record import Record

TOMBSTONE = "<tombstone>"
NULL = "<null>"
EMPTY = "<empty>"
NO_TIME = "<no timestamp>"
_MARKS = (TOMBSTONE, NULL, EMPTY)

_OFFSET_WIDTH = 8
_TIME_WIDTH = 24
_KEY_WIDTH = 12


def header_line(partitions: int) -> str:
    """Return the names of the columns of `text_line`."""
    return "  ".join(
        [
            "p".rjust(_partition_width(partitions)),
            "offset".rjust(_OFFSET_WIDTH),
            "time (UTC)".ljust(_TIME_WIDTH),
            "key".ljust(_KEY_WIDTH),
            "value",
        ]
    )


def text_line(record: Record, partitions: int, mark: Callable[[str], str]) -> str:
    """Format a record on one line. `mark` highlights text that is not in the record, such as `<tombstone>`."""
    key = text(record.key, mark, null=NULL)
    plain_width = len(text(record.key, str, null=NULL))
    value = text(record.value, mark, null=TOMBSTONE if record.is_tombstone else NULL)
    columns = [
        str(record.partition).rjust(_partition_width(partitions)),
        str(record.offset).rjust(_OFFSET_WIDTH),
        time_text(record.timestamp_ms).ljust(_TIME_WIDTH),
        key + " " * max(0, _KEY_WIDTH - plain_width),
        value,
    ]
    if record.headers:
        pairs = ", ".join(f"{text(name.encode(), str)}={text(value, str)}" for name, value in record.headers)
        columns.append(mark(f"[{pairs}]"))
    return "  ".join(columns)


def text(data: bytes | None, mark: Callable[[str], str], *, null: str = NULL) -> str:
    """Format bytes for people: UTF-8, with unprintable characters escaped, so that it is always one line."""
    if data is None:
        return mark(null)
    if not data:
        return mark(EMPTY)
    shown = data.decode(errors="backslashreplace")
    if not shown.isprintable():
        shown = "".join(
            each if each.isprintable() else each.encode("unicode_escape").decode() for each in shown
        )
    # A value that reads like one of the marks must not be mistaken for it.
    return f"\\x3c{shown[1:]}" if shown in _MARKS else shown


def time_text(timestamp_ms: int) -> str:
    if timestamp_ms < 0:
        return NO_TIME
    return record_json.time_text(timestamp_ms)


def json_line(record: Record) -> str:
    """Format a record as one JSON object. Bytes that are not UTF-8 are in base64, under another name."""
    return json.dumps(record_data(record), ensure_ascii=False)


def _partition_width(partitions: int) -> int:
    return len(str(partitions - 1))
