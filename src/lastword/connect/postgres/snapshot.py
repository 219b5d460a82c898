"""The first rows of tables: `COPY` of each table in the order of its key, from one consistent snapshot.

PostgreSQL sends rows as fast as they are taken: a thread reads them into a bounded queue, and waits when it is full.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import psycopg2

from lastword.connect.postgres.database import Database, Table, connect, errors_of, ordered_natively
from lastword.connect.postgres.pgoutput import Value

ROWS: Final = 8_000
"""The number of rows that are passed on together, or fewer if they are large."""
BYTES: Final = 4 << 20
LOCK_WAIT_MS: Final = 5_000
"""How long to wait for a transaction that is altering a table. After that, the source tries again later."""
WAITING: Final = 3
"""How many such groups of rows may wait in the queue."""

_ESCAPES: Final = {
    ord("b"): b"\b",
    ord("f"): b"\f",
    ord("n"): b"\n",
    ord("r"): b"\r",
    ord("t"): b"\t",
    ord("v"): b"\v",
}


class SnapshotReader:
    """One consistent view of the database, held open while tables are read from it."""

    def __init__(self, database: Database, tables: Sequence[Table]) -> None:
        """First lock the tables that will be read, as any query locks them: none is rewritten until the end.

        A table that ALTER TABLE rewrites looks empty to older snapshots, and no change says so.
        """
        self._dsn = database.dsn
        self._connection = connect(self._dsn)
        try:
            with errors_of(self._dsn):
                self._connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
                with self._connection.cursor() as cursor:
                    # Locks are not queries: the snapshot is taken after them.
                    cursor.execute(f"SET LOCAL lock_timeout = {LOCK_WAIT_MS}")
                    listed = ", ".join(each.quoted for each in tables)
                    cursor.execute(f"LOCK TABLE {listed} IN ACCESS SHARE MODE")
                    cursor.execute("SET LOCAL lock_timeout = 0")
                    cursor.execute("SELECT pg_current_snapshot()::text")
                    self.snapshot = str(cursor.fetchone()[0])
                    # Queried after the snapshot was taken: everything that it has seen was committed before.
                    cursor.execute("SELECT pg_current_wal_insert_lsn()::text")
                    self.until_lsn = str(cursor.fetchone()[0])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._connection.close()

    def rows(self, query: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Query the snapshot, over the same connection.

        Another connection would wait for a client that waits for the locks held here, and so forever.
        """
        with errors_of(self._dsn), self._connection.cursor() as cursor:
            cursor.execute(query, tuple(arguments) or None)
            return list(cursor.fetchall())

    def rows_of_keys(self, table: Table, keys: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
        """Return the keys, as texts, of the rows that have one of these. A text that is not of its type has no row."""
        keys = [each for each in keys if not any("\0" in text for text in each)]
        if not keys:
            return []
        query = self._keys_query(table)
        columns = [list(each) for each in zip(*keys, strict=True)]
        with self._connection.cursor() as cursor:
            with errors_of(self._dsn):
                cursor.execute("SAVEPOINT look")
            try:
                cursor.execute(query, columns)
                return list(cursor.fetchall())
            except psycopg2.DataError:
                with errors_of(self._dsn):
                    cursor.execute("ROLLBACK TO look")
            except psycopg2.Error as error:
                with errors_of(self._dsn):
                    raise error
        if len(keys) == 1:
            return []
        half = len(keys) // 2
        return self.rows_of_keys(table, keys[:half]) + self.rows_of_keys(table, keys[half:])

    def read(
        self, table: Table, after: Sequence[str] | None, *, partition: int | None = None
    ) -> Iterator[list[bytes]]:
        """Yield the rows of a table after a key, some at a time, each as a line of COPY; `row_of` parses it.

        With a partition, yield only its rows. While rows take long to arrive, an empty list is yielded in between.
        """
        query = self._query(table, after, partition)
        rows: queue.Queue[list[bytes] | BaseException | None] = queue.Queue(WAITING)
        gone = threading.Event()
        thread = threading.Thread(
            target=self._copy, args=(query, _Sink(rows, gone)), name="lastword-snapshot", daemon=True
        )
        thread.start()
        try:
            while True:
                try:
                    some = rows.get(timeout=1)
                except queue.Empty:
                    yield []
                    continue
                if some is None:
                    return
                if isinstance(some, BaseException):
                    with errors_of(self._dsn):
                        raise some
                yield some
        finally:
            if thread.is_alive():
                gone.set()
                with suppress(psycopg2.Error):
                    self._connection.cancel()
                while thread.is_alive():
                    with suppress(queue.Empty):
                        rows.get(timeout=0.05)
            thread.join()

    def _copy(self, query: str, sink: _Sink) -> None:
        try:
            with self._connection.cursor() as cursor:
                cursor.copy_expert(query, sink)
            sink.end(None)
        except BaseException as error:  # noqa: BLE001
            sink.end(error)

    def _keys_query(self, table: Table) -> str:
        # The query has arguments, so a % in a name is doubled.
        names = [_quoted(self._connection, each).replace("%", "%%") for each in table.key]
        types = [
            # -1 gives the type without a length: a char(3) is not cut to one character.
            self.rows("SELECT format_type(%s, -1)", [table.type_of(each)])[0][0]
            for each in table.key
        ]
        places = [f"k{index}" for index in range(len(names))]
        only = "" if table.is_partitioned else "ONLY "
        condition = f" WHERE {table.row_filter}" if table.row_filter else ""
        rows = f"FROM {only}{table.quoted}{condition}".replace("%", "%%")
        matches = " AND ".join(
            # The JSON of an array does not have its bounds, which PostgreSQL compares too.
            f"to_jsonb(t.{name}) = to_jsonb(k.{place}::{kind})"
            if kind.endswith("[]")
            else f"t.{name} = k.{place}::{kind}"
            for name, place, kind in zip(names, places, types, strict=True)
        )
        texts = ", ".join(f"format('%%s', t.{name})" for name in names)
        return (
            f"SELECT {texts} "
            f"FROM unnest({', '.join('%s::text[]' for _ in names)}) AS k({', '.join(places)}) "
            f"JOIN (SELECT {', '.join(names)} {rows}) t ON {matches}"
        )

    def _query(self, table: Table, after: Sequence[str] | None, partition: int | None) -> str:
        with self._connection.cursor() as cursor:
            names = [_quoted(self._connection, each) for each, _ in table.columns]
            order = [
                _quoted(self._connection, each)
                if ordered_natively(table.type_of(each))
                else f"(format('%s', {_quoted(self._connection, each)}) COLLATE \"C\")"
                for each in table.key
            ]
            conditions = [f"({table.row_filter})"] if table.row_filter else []
            if after is not None:
                values = ", ".join(
                    cursor.mogrify("%s", [each]).decode()
                    + (
                        f"::{_native_type(table.type_of(name))}"
                        if ordered_natively(table.type_of(name))
                        else ""
                    )
                    for each, name in zip(after, table.key, strict=True)
                )
                conditions.append(f"({', '.join(order)}) > ({values})")
            if partition is not None:
                # Through the table, whose rights are enough, with the bounds by which PostgreSQL finds the partition.
                bounds = self.rows("SELECT pg_get_partition_constraintdef(%s)", [partition])[0][0]
                conditions += [f"tableoid = {partition}", *([f"({bounds})"] if bounds else [])]
            condition = f" WHERE {' AND '.join(conditions)}" if conditions else ""
            # As in the stream: the rows of partitions belong to the table, those of inheriting tables don't.
            only = "" if table.is_partitioned else "ONLY "
            return (
                f"COPY (SELECT {', '.join(names)} FROM {only}{table.quoted}{condition} "
                f"ORDER BY {', '.join(order)}) TO STDOUT"
            )


class _Sink:
    """The file that COPY writes to: gathers lines for the queue."""

    def __init__(self, rows: queue.Queue[list[bytes] | BaseException | None], gone: threading.Event) -> None:
        self._rows = rows
        self._gone = gone
        self._lines: list[bytes] = []
        self._bytes = 0

    def write(self, line: bytes) -> None:
        self._lines.append(line)
        self._bytes += len(line)
        if len(self._lines) >= ROWS or self._bytes >= BYTES:
            self._hand_on()

    def end(self, error: BaseException | None) -> None:
        if error is None:
            self._hand_on()
        self._rows.put(error)

    def _hand_on(self) -> None:
        if self._gone.is_set():
            raise InterruptedError("the rows are not wanted any more")
        if self._lines:
            self._rows.put(self._lines)
            self._lines, self._bytes = [], 0


def row_of(line: bytes) -> list[Value]:
    """Parse a line of COPY's text format: tabs between columns, \\N is null, a backslash escapes special characters."""
    cells = line.removesuffix(b"\n").split(b"\t")
    if b"\\" not in line:
        return [*cells]
    values: list[Value] = []
    for each in cells:
        if b"\\" not in each:
            values.append(each)
        elif each == b"\\N":
            values.append(None)
        else:
            values.append(_unescaped(each))
    return values


def _unescaped(value: bytes) -> bytes:
    first, *rest = value.split(b"\\")
    out = bytearray(first)
    parts = iter(rest)
    for part in parts:
        if not part:
            # Two backslashes stand for one.
            out += b"\\" + next(parts, b"")
        else:
            out += _ESCAPES.get(part[0], part[:1]) + part[1:]
    return bytes(out)


def _quoted(connection: Any, name: str) -> str:
    from psycopg2.extensions import quote_ident

    return str(quote_ident(name, connection))


def _native_type(oid: int) -> str:
    return {20: "bigint", 21: "smallint", 23: "integer", 26: "oid", 2950: "uuid"}[oid]
