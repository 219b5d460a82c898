"""`lastword produce`: append lines to a topic.

A file is read twice: first to check every line, and if one is invalid nothing is appended; then to append. Standard
input may never end, so lines are appended as they arrive: an invalid line stops the command, and the lines before it
are appended.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lastword.cli.backend import Backend
from lastword.cli.input_lines import (
    Format,
    json_format,
    key_value_format,
    read_runs,
    value_format,
)
from lastword.cli.options import Session, TopicArgument, command, option
from lastword.cli.output import count, size, table
from lastword.errors import InvalidError, InvalidRecordError, LastwordError
from lastword.record_json import Parsed

STDIN = "standard input"
PIECE_BYTES = 4 << 20
"""The bytes of keys and values that are appended at once, and sent to a server in one request."""


class CompressionName(StrEnum):
    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class BadLineError(InvalidRecordError):
    """A line that is not a valid record, or one that the topic refuses."""


def register(app: typer.Typer) -> None:
    command(
        app,
        "produce",
        examples=[
            "echo 'alice:Oslo' | lastword produce users",
            "lastword produce users --file users.txt --separator '\\t'",
            "echo 'alice:NULL' | lastword produce users --null-value NULL",
            'echo \'{"key": "alice", "value": null}\' | lastword produce users --jsonl',
            "tail -F access.log | lastword produce clicks --no-key",
        ],
    )(produce)


def produce(
    session: Session,
    name: TopicArgument,
    file: Annotated[
        Path | None,
        option(
            "--file",
            "FILE",
            "Read this file instead of standard input. Every line is checked before any is appended.",
        ),
    ] = None,
    separator: Annotated[
        str,
        typer.Option("--separator", metavar="TEXT", help="The text between key and value; \\t is a tab."),
    ] = ":",
    no_key: Annotated[
        bool, typer.Option("--no-key", help="The whole line is the value; the key is null.")
    ] = False,
    null_value: Annotated[
        str | None,
        option(
            "--null-value",
            "TEXT",
            "A value of exactly this text is null: a tombstone. Without it no line is a tombstone.",
        ),
    ] = None,
    jsonl: Annotated[
        bool,
        typer.Option("--jsonl", help='JSON lines: {"key": "k", "value": "v"}; a null value is a tombstone.'),
    ] = False,
    partition: Annotated[
        int | None,
        option(
            "--partition", "P", "Append to this partition [the key's partition; without a key, round robin]."
        ),
    ] = None,
    compression: Annotated[
        CompressionName, typer.Option("--compression", help="Compress the record batches.")
    ] = CompressionName.NONE,
    batch_records: Annotated[
        int,
        typer.Option(
            "--batch-records", metavar="N", min=1, help="Append at most this many records at a time."
        ),
    ] = 10_000,
) -> None:
    """Append lines to a topic: KEY:VALUE, values without keys, or JSON.

    An empty value is a value. On a terminal each line is appended as it is typed; Ctrl-D ends the input.
    """
    line_format = _format(separator, no_key=no_key, null_value=null_value, jsonl=jsonl)
    from lastword.operations.table import PRODUCE

    with session.backend.writing() as backend, _input(file) as source:
        # Report a missing topic before any line is read.
        backend.run(PRODUCE, name, [], check_only=True)
        job = _Job(
            session=session,
            topic=name,
            backend=backend,
            source=source,
            line_format=line_format,
            partition=partition,
            compression=compression.value,
            batch_records=batch_records,
        )
        try:
            job.run()
        except KeyboardInterrupt:
            job.show_summary()
            raise
        except LastwordError as error:
            if not isinstance(error, BadLineError):
                session.output.warn(
                    f"{count(job.records, 'record')} had been appended to {name} before this error:"
                )
            raise
    job.show_summary()


def _format(separator: str, *, no_key: bool, null_value: str | None, jsonl: bool) -> Format:
    if jsonl:
        if no_key or null_value is not None or separator != ":":
            raise InvalidError(
                "--jsonl defines the whole record; --separator, --no-key and --null-value can't be used with it."
            )
        return json_format
    if no_key:
        return value_format(null_value)
    separator = separator.replace("\\t", "\t")
    if not separator:
        raise InvalidError("--separator must not be empty; --no-key is for lines without keys.")
    return key_value_format(separator, null_value)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The input. A regular file has a size, and can be read twice."""

    name: str
    fd: int
    size_bytes: int | None
    is_terminal: bool


@contextmanager
def _input(file: Path | None) -> Iterator[_Source]:
    if file is None or str(file) == "-":
        if sys.stdin is None:
            raise InvalidError("Standard input is closed; name a file to read with --file.")
        fd = sys.stdin.fileno()
        yield _Source(name=STDIN, fd=fd, size_bytes=None, is_terminal=os.isatty(fd))
        return
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        kind = os.fstat(fd)
    except OSError as error:
        raise InvalidError(f"{file}: can't be read: {error.strerror or error}") from error
    try:
        if stat.S_ISDIR(kind.st_mode):
            raise InvalidError(f"{file}: is a folder, not a file")
        yield _Source(
            name=str(file),
            fd=fd,
            size_bytes=kind.st_size if stat.S_ISREG(kind.st_mode) else None,
            is_terminal=False,
        )
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class _Numbered:
    number: int
    parsed: Parsed


@dataclass(slots=True)
class _Range:
    """The records that one partition got."""

    first_offset: int
    last_offset: int
    records: int = 0


@dataclass(slots=True, kw_only=True)
class _Job:
    """One run of the command: reads, checks and appends records, and counts them."""

    session: Session
    topic: str
    backend: Backend
    source: _Source
    line_format: Format
    partition: int | None
    compression: str
    batch_records: int
    records: int = 0
    size_bytes: int = 0
    ranges: dict[int, _Range] = field(default_factory=dict)

    def run(self) -> None:
        if self.source.is_terminal:
            self._run_terminal()
        elif self.source.size_bytes is None:
            self._run_stream()
        else:
            self._run_file(self.source.size_bytes)

    # ---------------------------------------------------------------------------------- kinds of input

    def _run_file(self, size_bytes: int) -> None:
        with self.session.output.progress(f"Checking {self.source.name}") as progress:
            for lines, bad in self._parsed_runs():
                if (wrong := self._first_wrong(lines) or bad) is not None:
                    raise self._bad_line(*wrong, "Nothing was appended.")
                progress.update(os.lseek(self.source.fd, 0, os.SEEK_CUR), size_bytes)
        os.lseek(self.source.fd, 0, os.SEEK_SET)
        with self.session.output.progress(f"Appending to {self.topic}") as progress:
            for lines, bad in self._parsed_runs():
                self._append_checked(lines, bad)
                progress.update(os.lseek(self.source.fd, 0, os.SEEK_CUR), size_bytes)

    def _run_stream(self) -> None:
        for lines, bad in self._parsed_runs():
            self._append_checked(lines, bad)

    def _run_terminal(self) -> None:
        for lines, bad in self._parsed_runs(stop_at_bad=False):
            try:
                self._append_checked(lines, bad)
            except BadLineError as error:
                self.session.output.fail(type(error).__name__, str(error))

    def _parsed_runs(
        self, *, stop_at_bad: bool = True
    ) -> Iterator[tuple[list[_Numbered], tuple[int, LastwordError] | None]]:
        """Yield runs of parsed lines, each with the invalid line that ends it, if any."""
        number = 0
        for run in read_runs(self.source.fd, self.batch_records):
            lines: list[_Numbered] = []
            for line in run:
                number += 1
                try:
                    parsed = self.line_format(line)
                except InvalidError as error:
                    yield lines, (number, error)
                    if stop_at_bad:
                        return
                    lines = []
                    continue
                if parsed is not None:
                    lines.append(_Numbered(number, parsed))
            if lines:
                yield lines, None

    # -------------------------------------------------------------------------------- check and append

    def _append_checked(self, lines: Sequence[_Numbered], bad: tuple[int, LastwordError] | None) -> None:
        """Append lines up to the first invalid one, and raise its error."""
        for together in _pieces(lines):
            try:
                self._append(together)
            except InvalidError:
                wrong = self._first_wrong(together)
                if wrong is None:
                    raise
                self._append([each for each in together if each.number < wrong[0]])
                raise self._bad_line(*wrong, self._appended()) from None
        if bad is not None:
            raise self._bad_line(*bad, self._appended())

    def _append(self, lines: Sequence[_Numbered]) -> None:
        from lastword.operations.table import PRODUCE

        if not lines:
            return
        records = [each.parsed for each in lines]
        appended = self.backend.run(
            PRODUCE, self.topic, records, partition=self.partition, compression=self.compression
        )
        for each in appended["positions"]:
            self._count(each["partition"], each["offset"])
        self.records += len(records)
        self.size_bytes += sum(_size(each) for each in records)

    def _check(self, lines: Sequence[_Numbered]) -> None:
        from lastword.operations.table import PRODUCE

        records = [each.parsed for each in lines]
        self.backend.run(PRODUCE, self.topic, records, partition=self.partition, check_only=True)

    def _first_wrong(self, lines: Sequence[_Numbered]) -> tuple[int, LastwordError] | None:
        """Return the first line that the topic refuses, and the error."""
        for together in _pieces(lines):
            try:
                self._check(together)
                continue
            except InvalidError:
                pass
            # Bisect: the first invalid line is in the first half that is refused.
            while len(together) > 1:
                half = together[: len(together) // 2]
                try:
                    self._check(half)
                    together = together[len(half) :]
                except InvalidError:
                    together = half
            try:
                self._check(together)
            except InvalidError as error:
                return together[0].number, error
        return None

    # ------------------------------------------------------------------------------------------ report

    def _count(self, partition: int, offset: int) -> None:
        got = self.ranges.setdefault(partition, _Range(offset, offset))
        got.last_offset = offset
        got.records += 1

    def _appended(self) -> str:
        if self.source.is_terminal:
            return "This line was not appended."
        return (
            f"The lines before it were appended ({count(self.records, 'record')}); it and the rest were not."
        )

    def _bad_line(self, number: int, error: LastwordError, done: str) -> BadLineError:
        return BadLineError(f"{self.source.name}:{number}: {str(error).rstrip('.')}. {done}")

    def show_summary(self) -> None:
        self.session.output.show(
            {
                "topic": self.topic,
                "records": self.records,
                "size_bytes": self.size_bytes,
                "partitions": [
                    {
                        "partition": partition,
                        "first_offset": got.first_offset,
                        "last_offset": got.last_offset,
                        "records": got.records,
                    }
                    for partition, got in sorted(self.ranges.items())
                ],
            },
            f"Appended {count(self.records, 'record')} ({size(self.size_bytes)}) to {self.topic}.",
            *(
                [
                    table(
                        [">partition", ">first offset", ">last offset", ">records"],
                        [
                            (partition, got.first_offset, got.last_offset, got.records)
                            for partition, got in sorted(self.ranges.items())
                        ],
                    )
                ]
                if self.ranges
                else []
            ),
        )


def _pieces(lines: Sequence[_Numbered]) -> Iterator[Sequence[_Numbered]]:
    """Yield runs of lines that are appended at once, none much larger than PIECE_BYTES."""
    first, size_bytes = 0, 0
    for index, line in enumerate(lines):
        if size_bytes >= PIECE_BYTES:
            yield lines[first:index]
            first, size_bytes = index, 0
        size_bytes += _size(line.parsed)
    if first < len(lines):
        yield lines[first:]


def _size(parsed: Parsed) -> int:
    return len(parsed.record.key or b"") + len(parsed.record.value or b"")
