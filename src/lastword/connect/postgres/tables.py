"""The rows of tables as records: at first, after a reset, and of partitions that come."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from lastword.connect.postgres.config import PgConfig
from lastword.connect.postgres.database import Database, Table, is_integer
from lastword.connect.postgres.monitor import Monitor
from lastword.connect.postgres.partitions import PartitionWatch, difference, marks_of
from lastword.connect.postgres.pgoutput import Value
from lastword.connect.postgres.position import Epoch, PgPosition, parse_lsn
from lastword.connect.postgres.rows import Envelope, Shape
from lastword.connect.postgres.snapshot import SnapshotReader, row_of
from lastword.connect.postgres.sweep import keys_without_rows
from lastword.connect.protocol import Chunk, Context, SourceRecord

logger = logging.getLogger(__name__)


class TableReader:
    """Reads the rows of a source's tables, each time from one snapshot."""

    def __init__(
        self,
        database: Database,
        config: PgConfig,
        context: Context,
        *,
        monitor: Monitor,
        watch: PartitionWatch,
        envelope: Envelope | None,
    ) -> None:
        self._database = database
        self._config = config
        self._context = context
        self._monitor = monitor
        self._watch = watch
        self._envelope = envelope

    def shape(self, table: Table, columns: Sequence[tuple[str, int]], key: Sequence[str]) -> Shape:
        """Return the shape of a table's rows as records."""
        return Shape.make(
            table=table.quoted,
            schema=table.schema,
            name=table.name,
            topic=self._config.topic(table),
            columns=columns,
            key=key,
            types=self._database.type,
            is_integer=is_integer,
        )

    def read(self, tables: Sequence[Table], at: PgPosition) -> Iterator[Chunk]:
        """Yield the rows of tables that have not been read yet, then sweep those that must be."""
        waiting = [table for table in tables if not at.tables[table.quoted].done]
        swept = [table for table in tables if at.tables[table.quoted].sweep]
        reader = SnapshotReader(
            self._database, list({each.oid: each for each in [*waiting, *swept]}.values())
        )
        try:
            for table in waiting:
                progress = at.tables[table.quoted]
                if table.is_partitioned and progress.partitions is None:
                    progress.partitions = marks_of(reader.rows, table)
            after = {table.quoted: at.tables[table.quoted].after for table in waiting}
            epoch = Epoch(reader.snapshot, parse_lsn(reader.until_lsn), after)
            # An epoch that began at the same keys has read nothing.
            if waiting:
                at.epochs = [*(each for each in at.epochs if dict(each.after) != after), epoch]
            time_ms = self._context.clock.now_ms()
            for table in waiting:
                progress = at.tables[table.quoted]
                shape = self.shape(table, table.columns, table.key)
                for lines in reader.read(table, progress.after):
                    if not lines:
                        yield Chunk((), at.to_json())
                        continue
                    records = [self._read_record(shape, row_of(line), time_ms) for line in lines]
                    progress.rows += len(lines)
                    progress.after = shape.order_key_texts(row_of(lines[-1]))
                    self._monitor.report("snapshot", at)
                    yield Chunk(records, at.to_json())
                progress.done, progress.after = True, None
                logger.info(
                    "source %s: read %d rows of %s", self._context.source, progress.rows, table.quoted
                )
                self._monitor.report("snapshot", at, now=True)
            for table in swept:
                yield from self._sweep(reader, table, at)
                at.tables[table.quoted].sweep = False
                yield Chunk((), at.to_json())
        finally:
            reader.close()

    def _sweep(self, reader: SnapshotReader, table: Table, at: PgPosition) -> Iterator[Chunk]:
        """Yield tombstones for the rows that the topic has and the table does not."""
        self._monitor.report("sweep", at, now=True)
        shape = self.shape(table, table.columns, table.key)
        gone = 0
        for keys in keys_without_rows(reader, table, shape, self._context.topics.live_keys(shape.topic)):
            time_ms = self._context.clock.now_ms()
            gone += len(keys)
            yield Chunk([SourceRecord(shape.topic, key, None, time_ms) for key in keys], at.to_json())
        logger.info(
            "source %s: %d keys of %s have no row in %s any more",
            self._context.source,
            gone,
            shape.topic,
            table.quoted,
        )

    def look_into_partitions(self, tables: Sequence[Table], at: PgPosition) -> Iterator[Chunk]:
        """Handle partitions that were attached, detached, dropped or truncated; the stream is past that."""
        for table in tables:
            reader = SnapshotReader(self._database, [table])
            try:
                marks = marks_of(reader.rows, table)
                if not self._watch.has_seen(table, marks):
                    # The stream may have changes of a partition that is gone since: that needs another wait.
                    continue
                progress = at.tables[table.quoted]
                found = difference(progress.partitions, marks)
                shape = self.shape(table, table.columns, table.key)
                time_ms = self._context.clock.now_ms()
                for partition in found.new:
                    self._monitor.report("reading a new partition", at, now=True)
                    for lines in reader.read(table, None, partition=partition):
                        records = [self._read_record(shape, row_of(line), time_ms) for line in lines]
                        yield Chunk(records, at.to_json())
                if found.some_are_gone and self._config.truncates:
                    yield from self._sweep(reader, table, at)
                progress.partitions = marks
                yield Chunk((), at.to_json())
            finally:
                reader.close()

    def _read_record(self, shape: Shape, row: Sequence[Value], time_ms: int) -> SourceRecord:
        value = shape.row(row)
        if self._envelope is not None:
            value = self._envelope.value(
                "r", shape, before=None, after=value, lsn=None, xid=None, time_ms=time_ms
            )
        return SourceRecord(shape.topic, shape.key(row), value, time_ms)
