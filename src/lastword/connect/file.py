"""`file`: the lines of a growing file as records: JSON objects as `produce --jsonl` takes them, or whole lines as values.

The position is the file's inode, the byte after the last line that was read, and a checksum of its beginning. A line
without a line end waits until it has one. After a rotation the rest of the old file is read first, then each file that
was rotated after it (rotation.py), and then the new one. If one of them is gone, the source stops, unless `on_lost: skip`
tells it to continue without it. After a truncation, reading starts again at the file's beginning. The status reports all
of this.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from lastword.connect import rotation
from lastword.connect.options import Options
from lastword.connect.protocol import Chunk, Context, Position, SourceRecord
from lastword.errors import InvalidConfigError, InvalidError, InvalidRecordError, UnavailableError
from lastword.record_json import parse_record

logger = logging.getLogger(__name__)

MAX_RECORDS: Final = 10_000
MAX_BYTES: Final = 4 << 20
POLL_S: Final = 0.2
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
        self._on_lost = options.choice("on_lost", "stop", ("stop", "skip"))
        options.finish()
        if self._key is not None and self._format != "json":
            raise options.invalid("key", "needs `format: json`: it names the field that is the key")
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
                    yield Chunk(records, self._position(at))
                continue
            yield Chunk((), self._position(at))
            self._context.report({"file": str(self._path), "offset": at, "skipped_lines": self._skipped})
            change = self._change(inode, at)
            if change == "rotated" and (late := self._file.read(READ_BYTES)):
                # It was written between the last read and the check.
                self._file.seek(-len(late), os.SEEK_CUR)
                continue
            if change is not None:
                self._tell(change)
                if rest and change == "rotated":
                    # No writer will finish this line any more.
                    at += len(rest)
                    yield Chunk(self._records([rest], at - len(rest)), self._position(at))
                if change == "rotated":
                    self._open_following(inode)
                else:
                    self._file.seek(0)
                at, rest = 0, b""
            elif self._context.wait(POLL_S):
                return

    def appended(self, position: Position | None) -> None: ...

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, position: Position | None) -> int:
        """Open the file of a position, or the current one without a position, and return the offset to read from."""
        self.close()
        path = self._path if position is None else rotation.find(self._path, position["inode"])
        if path is not None:
            self._file = _opened(path)
            if position is None:
                return 0
            at = self._offset(position)
            if at is not None:
                self._file.seek(at)
                return at
        self.close()
        self._file = _opened(self._path)
        assert position is not None
        self._lose(
            f"{self._path}: the file that was read up to byte {position['offset']} (inode {position['inode']}) is gone: it "
            f"was removed, replaced or compressed while it was not being read, and some of its lines may be unread. Put "
            f"it back beside the new one"
        )
        return 0

    def _offset(self, position: Position) -> int | None:
        """Return the offset to continue at in the open file; None if it is not the file of the position."""
        assert self._file is not None
        at: int = position["offset"]
        found = os.fstat(self._file.fileno())
        if found.st_ino != position["inode"]:
            return None
        if found.st_size < at:
            self._tell("cut")
            return 0
        # Positions of earlier versions have no checksum.
        known = position.get("head")
        return at if known is None or known == rotation.head_of(self._file, at) else None

    def _open_following(self, inode: int) -> None:
        """Open the file that follows the one with an inode, which was read to its end."""
        while True:
            found = rotation.following(self._path, inode)
            if found is None:
                raise UnavailableError(f"{self._path}: the new file does not exist yet")
            if found.is_compressed:
                self._lose(f"{found.path} was compressed before it was read. Decompress it")
                inode = found.inode
                continue
            opened = _opened(found.path)
            if os.fstat(opened.fileno()).st_ino == found.inode:
                self.close()
                self._file = opened
                return
            # It was rotated since it was looked up.
            opened.close()

    def _lose(self, what: str) -> None:
        if self._on_lost == "stop":
            raise InvalidError(
                f"{what}; or let the source continue with the next file (`on_lost: skip`), or start over "
                f"(`lastword connect reset {self._context.source}`)."
            )
        self._tell("lost")

    def _tell(self, change: str) -> None:
        logger.warning("source %s: %s was %s", self._context.source, self._path, change)
        self._context.report({"last_change": change})

    def _position(self, at: int) -> dict[str, Any]:
        assert self._file is not None
        inode = os.fstat(self._file.fileno()).st_ino
        return {"inode": inode, "offset": at, "head": rotation.head_of(self._file, at)}

    def _change(self, inode: int, at: int) -> str | None:
        """Return the change of the path since it was opened: "cut", "rotated" or None."""
        assert self._file is not None
        if os.fstat(self._file.fileno()).st_size < at:
            return "cut"
        try:
            return "rotated" if self._path.stat().st_ino != inode else None
        except FileNotFoundError:
            # The new file will appear.
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
                        f"{self._path}: the line at byte {at} {error}; `on_error: skip` skips such lines"
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


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise UnavailableError(f"{path}: {error.strerror or error}") from error
