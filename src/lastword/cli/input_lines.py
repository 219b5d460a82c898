"""Input lines: read as they arrive, and parsed into records or refused with the reason."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Callable, Iterator

from lastword.errors import InvalidRecordError
from lastword.record_json import Parsed, parse_record

READ_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 28

Format = Callable[[bytes], Parsed | None]
"""Parses a line into a record, or into None if it is blank. Raises InvalidRecordError with the problem."""


def read_runs(fd: int, max_lines: int) -> Iterator[list[bytes]]:
    """Yield runs of lines without their ends: the lines that are available, up to `max_lines`.

    So a file is read in large runs, and typed lines are passed on one by one.
    """
    lines: list[bytes] = []
    begun: list[bytes] = []
    while chunk := os.read(fd, READ_BYTES):
        first, *rest = chunk.split(b"\n")
        begun.append(first)
        if rest:
            lines += [b"".join(begun), *rest[:-1]]
            begun = [rest[-1]]
        elif sum(map(len, begun)) > MAX_LINE_BYTES:
            raise InvalidRecordError(f"a line has more than {MAX_LINE_BYTES} bytes")
        while len(lines) >= max_lines:
            yield lines[:max_lines]
            del lines[:max_lines]
        if lines and not select.select([fd], [], [], 0)[0]:
            yield lines
            lines = []
    if last := b"".join(begun):
        lines.append(last)
    if lines:
        yield lines


def key_value_format(separator: str, null_value: str | None) -> Format:
    """Return the format `key:value`, split at the first separator."""
    from lastword.record import NewRecord

    split_at, null = separator.encode(), _encoded(null_value)

    def parse(line: bytes) -> Parsed:
        key, found, value = line.partition(split_at)
        if not found:
            raise InvalidRecordError(
                f"there is no {separator!r} between key and value; allowed: KEY{separator}VALUE, "
                f"another --separator, or --no-key for lines without keys"
            )
        return Parsed(NewRecord(key=key, value=None if value == null else value))

    return parse


def value_format(null_value: str | None) -> Format:
    """Return the format in which the whole line is the value, and there is no key."""
    from lastword.record import NewRecord

    null = _encoded(null_value)
    return lambda line: Parsed(NewRecord(value=None if line == null else line))


def json_format(line: bytes) -> Parsed | None:
    """Parse a line that is a JSON object."""
    if not line.strip():
        return None
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRecordError(f"is not JSON: {error}") from None
    return parse_record(entry)


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)
