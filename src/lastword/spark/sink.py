"""Writes: tasks stage record batches in the data folder, and the driver has them appended as one unit.

1. each task encodes its rows as record batches and writes them to its own file, synced. Tasks that fail, or that Spark
   runs twice, leave files that no commit names;
2. when all are done, the driver names their files as one unit (staged.py) and has it appended: by the log's writer if
   there is one, such as a server, else the driver itself is the writer for a moment.

A unit is appended exactly once for each sink and number. A streaming query is a sink, by the id in its checkpoint, and
its micro-batches are numbered: one that Spark repeats after a crash is already there, or is finished. A batch write is
a separate sink, unless the options `sink` and `unit` name one: then it can be repeated too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import lastword
from lastword.clock import SystemClock, monotonic_s, new_uuid
from lastword.errors import InvalidError, UnavailableError
from lastword.folder import disk
from lastword.folder.steps import reached
from lastword.log.topic import Topic
from lastword.spark.opened import opened
from lastword.spark.options import Where, WriteOptions
from lastword.spark.schema import check_writable
from lastword.wal.staged import Piece, Sink, Unit, ask_writer

QUERY_ID: Final = "sql.streaming.queryId"
"""The property in which Spark tells tasks the id that a query keeps across restarts."""

WAIT_S: Final = 60.0
"""How long a commit waits for a writer that comes or goes."""


@dataclass(frozen=True, kw_only=True)
class StagedRows(WriterCommitMessage):
    """The rows that a task has staged: a file, and which bytes of it are for which partition."""

    sink: str
    file: str
    pieces: tuple[tuple[int, Piece], ...] = field(repr=False)


class BatchWriter(DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        _check(schema, overwrite, "mode('append')")
        self._where = options.where
        self._once = options.sink is None
        self._sink = options.sink or f"job-{new_uuid().hex}"
        self._unit = options.unit or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        return stage(self._where, self._sink, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self._where, self._sink, self._unit, _staged(messages))
        if self._once:
            shutil.rmtree(_sink(self._where, self._sink)[1].folder, ignore_errors=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        discard(self._where, self._sink, _staged(messages))


class StreamWriter(DataSourceStreamArrowWriter):
    """A streaming write."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        _check(schema, overwrite, "outputMode 'append' or 'update'")
        self._where = options.where

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        context = TaskContext.get()
        query_id = context.getLocalProperty(QUERY_ID) if context is not None else None
        if query_id is None:
            raise InvalidError(
                "Spark does not say which streaming query this is, so it can't be written exactly once"
            )
        return stage(self._where, query_id, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        staged = _staged(messages)
        if staged:
            commit(self._where, staged[0].sink, batchId, staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        staged = _staged(messages)
        if staged:
            discard(self._where, staged[0].sink, staged)


def stage(where: Where, name: str, rows: Iterator[pa.RecordBatch]) -> StagedRows:
    """Write rows as record batches to a new file of a sink."""
    topic, sink = _sink(where, name)
    with opened(where).lease_for_staging(topic.id):
        return _stage(topic, sink, name, rows)


def _stage(topic: Topic, sink: Sink, name: str, rows: Iterator[pa.RecordBatch]) -> StagedRows:
    disk.make_folder(sink.folder)
    file_name = f"{new_uuid().hex}.batches"
    pieces: list[tuple[int, Piece]] = []
    fd = os.open(sink.folder / file_name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        position = 0
        for each in rows:
            for partition, data in topic.encode_arrow(each):
                disk.write_all(fd, data)
                pieces.append((partition, Piece(file_name, position, len(data))))
                position += len(data)
        disk.sync_data(fd)
    finally:
        os.close(fd)
    disk.sync_folder(sink.folder)
    return StagedRows(sink=name, file=file_name, pieces=tuple(_joined(pieces)))


def _joined(pieces: Sequence[tuple[int, Piece]]) -> Iterator[tuple[int, Piece]]:
    """Join adjacent pieces of one partition."""
    last: tuple[int, Piece] | None = None
    for partition, piece in pieces:
        if last is not None and last[0] == partition:
            last = (partition, last[1]._replace(size_bytes=last[1].size_bytes + piece.size_bytes))
            continue
        if last is not None:
            yield last
        last = (partition, piece)
    if last is not None:
        yield last


def commit(where: Where, name: str, number: int, staged: Sequence[StagedRows]) -> None:
    """Append the rows that tasks have staged, unless that number was appended before."""
    topic, sink = _sink(where, name)
    pieces: dict[int, list[Piece]] = {}
    for each in staged:
        for partition, piece in each.pieces:
            pieces.setdefault(partition, []).append(piece)
    files = [each.file for each in staged]
    if not pieces:
        sink.discard(files)
        return
    reached("sink.staged")
    if not sink.propose(Unit(number=number, pieces=pieces)):
        sink.discard(files)
    if sink.committed is None or sink.committed < number:
        _append(where, topic.name, name, number)


def _append(where: Where, topic: str, sink: str, number: int) -> None:
    """Have a unit appended by the log's writer or, if there is none, by this process.

    Asking again is safe: parts that have been appended by then are not appended twice.
    """
    folder = Path(where.path)
    until_s = monotonic_s() + WAIT_S
    while True:
        try:
            if ask_writer(folder, topic, sink, number) is None:
                with lastword.open(folder, config=where.config, create=False) as log:
                    log.topic(topic).append_staged(sink, number)
            return
        except UnavailableError as error:
            # Another process has just become the writer, or is closing the log, or is the writer for a moment.
            if monotonic_s() > until_s:
                raise type(error)(
                    f"{error} The staged rows may be in the log, all or in part: write them again with the options "
                    f"sink={sink} and unit={number}, which appends only the missing ones."
                ) from error
            SystemClock().sleep_ms(100)


def discard(where: Where, name: str, staged: Sequence[StagedRows]) -> None:
    """Remove the files that tasks have staged for a failed write. Spark also calls this if a commit failed half-way."""
    _sink(where, name)[1].discard([each.file for each in staged])


def _sink(where: Where, name: str) -> tuple[Topic, Sink]:
    topic = opened(where).topic(where.topic)
    return topic, Sink(Path(where.path), topic.id, name)


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    return [each for each in messages if isinstance(each, StagedRows)]


def _check(schema: StructType, overwrite: bool, instead: str) -> None:
    if overwrite:
        raise InvalidError(f"a topic can't be overwritten; use {instead}")
    check_writable(schema)
