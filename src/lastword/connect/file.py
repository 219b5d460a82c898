"""`file`: lines of a file that grows, as records: JSON objects as `produce --jsonl` takes them, or whole lines as values.

The position is the file's inode and the byte after the last line that was read. A line without its end waits until it
has one. When the file was replaced (rotated), what is left of the old one is read first if it can still be found beside
the new one; when it was cut, reading begins again at its start. Both are told in the status.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from lastword.connect.options import Options
from lastword.connect.protocol import Chunk, Context, Position, SourceRecord
from lastword.errors import InvalidConfigError, InvalidError, InvalidRecordError, UnavailableError
from lastword.record_json import parse_record

logger = logging.getLogger(__name__)

MAX_RECORDS: Final = 10_000
MAX_BYTES: Final = 4 << 20
LOOK_S: Final = 0.2
READ_BYTES: Final = 1 << 20
MAX_LINE_BYTES: Final = 64 << 20


class FileConnector:
    """Reads one file."""

    def __init__(self, options: Options, context: Context) -> None:
        self._context = context
        self._path = Path(options.required("path", "the file to read"))
        self._format = options.choice("format", "records", ("records", "json", "lines"))
        self._key = options.text("key")
        self._on_error = options.choice("on_error", "stop", ("stop", "skip"))
        options.finish()
        if self._key is not None and self._format != "json":
            raise options.invalid("key", "goes with `format: json` only: it names the field that is the key")
        if context.topic is None:
            raise InvalidConfigError(f"{options.where}: sources.{context.source}.topic is missing")
        self._topic: str = context.topic
        self._file: BinaryIO | None = None
        self._skipped = 0

    def check(self) -> list[str]:
        self._context.needs_topic(self._topic, None)
        try:
            with self._path.open("rb"):
                return []
        except OSError as error:
            return [f"{self._path}: {error.strerror or error}"]

    def read(self, position: Position | None) -> Iterator[Chunk]:
        self._context.needs_topic(self._topic, None)
        at = self._open(position)
        rest = b""
        while True:
            assert self._file is not None
            inode = os.fstat(self._file.fileno()).st_ino
            data = self._file.read(READ_BYTES)
            if data:
                *lines, rest = (rest + data).split(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    raise InvalidRecordError(
                        f"{self._path}: the line at byte {at} has more than {MAX_LINE_BYTES} bytes"
                    )
                for records, size_bytes in self._chunks(lines, at):
                    at += size_bytes
                    yield Chunk(records, {"inode": inode, "offset": at})
                continue
            yield Chunk((), {"inode": inode, "offset": at})
            self._context.report({"file": str(self._path), "offset": at, "skipped_lines": self._skipped})
            change = self._change(inode, at)
            if change == "rotated" and (late := self._file.read(READ_BYTES)):
                # It came between the last read and the look.
                self._file.seek(-len(late), os.SEEK_CUR)
                continue
            if change is not None:
                logger.warning("source %s: %s was %s", self._context.source, self._path, change)
                self._context.report({"last_change": change})
                if rest and change == "rotated":
                    # Nobody will end this line any more.
                    at += len(rest)
                    yield Chunk(self._records([rest], at - len(rest)), {"inode": inode, "offset": at})
                at, rest = self._open(None), b""
            elif self._context.wait(LOOK_S):
                return

    def appended(self, position: Position | None) -> None: ...

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, position: Position | None) -> int:
        """Open the file that the position speaks of, at its offset, else the one of now at its start."""
        self.close()
        at, path = 0, self._path
        try:
            if position is not None:
                path = _find(self._path, position["inode"]) or self._path
            self._file = path.open("rb")
        except OSError as error:
            raise UnavailableError(f"{path}: {error.strerror or error}") from error
        found = os.fstat(self._file.fileno())
        if position is not None:
            if found.st_ino != position["inode"]:
                logger.warning("source %s: %s was replaced while nobody read it", self._context.source, path)
            elif found.st_size < position["offset"]:
                logger.warning("source %s: %s was cut while nobody read it", self._context.source, path)
            else:
                at = position["offset"]
        self._file.seek(at)
        return at

    def _change(self, inode: int, at: int) -> str | None:
        """What has happened to the path since it was opened."""
        assert self._file is not None
        if os.fstat(self._file.fileno()).st_size < at:
            return "cut"
        try:
            return "rotated" if self._path.stat().st_ino != inode else None
        except FileNotFoundError:
            # The new one will come.
            return None

    def _chunks(self, lines: list[bytes], at: int) -> Iterator[tuple[list[SourceRecord], int]]:
        first, size_bytes = 0, 0
        for index, line in enumerate(lines):
            size_bytes += len(line) + 1
            if size_bytes >= MAX_BYTES or index - first + 1 >= MAX_RECORDS or index == len(lines) - 1:
                yield self._records(lines[first : index + 1], at), size_bytes
                at += size_bytes
                first, size_bytes = index + 1, 0

    def _records(self, lines: list[bytes], at: int) -> list[SourceRecord]:
        records: list[SourceRecord] = []
        for line in lines:
            try:
                if line.strip():
                    records.append(self._record(line))
            except (InvalidError, ValueError) as error:
                if self._on_error == "stop":
                    raise InvalidRecordError(
                        f"{self._path}: the line at byte {at} {error}; `on_error: skip` leaves such lines out"
                    ) from None
                self._skipped += 1
            at += len(line) + 1
        return records

    def _record(self, line: bytes) -> SourceRecord:
        if self._format == "lines":
            return SourceRecord(self._topic, None, line.removesuffix(b"\r"))
        try:
            entry = json.loads(line)
        except ValueError as error:
            raise InvalidRecordError(f"is not JSON: {error}") from None
        if self._format == "records":
            parsed = parse_record(entry)
            record = parsed.record
            return SourceRecord(
                self._topic, record.key, record.value, record.timestamp_ms, record.headers, parsed.partition
            )
        key = None
        if self._key is not None:
            if not isinstance(entry, dict) or self._key not in entry:
                raise InvalidRecordError(f"has no field {self._key!r}, which is the key")
            found = entry[self._key]
            key = found.encode() if isinstance(found, str) else json.dumps(found).encode()
        return SourceRecord(self._topic, key, line.strip())


def _find(path: Path, inode: int) -> Path | None:
    """The file of an inode among those whose names begin as the path does: where rotation puts it."""
    try:
        beside = [path, *path.parent.glob(f"{path.name}*")]
        return next((each for each in beside if each.exists() and each.stat().st_ino == inode), None)
    except OSError:
        return None
