"""Notices changes to the partitions of a table: PostgreSQL's stream does not report them.

An attached partition brings rows. A detached, dropped or truncated one takes rows with it. No change in the stream says
so. So the source queries the catalog: when it starts, when the stream describes the table again, and every few seconds.
The position keeps a *mark* of each partition: the transaction that attached it, and the file of its rows, which a
TRUNCATE replaces (so does VACUUM FULL, and then nothing is found to be gone).

A change is handled in these steps:
1. the marks differ from those of the position: note a place in the WAL that is after the change;
2. follow the stream up to there, so that it has no changes left of a partition that is gone;
3. read the rows of new partitions, from one snapshot; if others are gone or truncated, look up the topic's keys in the
   table (sweep.py);
4. put the marks of that snapshot into the position.

Killed in any of these: the position has the old marks, and all steps are repeated. Changes between the place in the
stream and the snapshot come after the rows that were read: for a moment such a row is older than it was before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lastword.connect.postgres.database import Table
from lastword.connect.postgres.position import PgPosition
from lastword.errors import InvalidError

Rows = Callable[[str, Sequence[object]], list[tuple[Any, ...]]]
"""Runs a query on a database."""

_LEAVES_QUERY: Final = """
    WITH RECURSIVE tree AS (
        SELECT inhrelid, xmin::text AS attached FROM pg_inherits WHERE inhparent = %s
        UNION ALL
        SELECT i.inhrelid, tree.attached || '.' || i.xmin::text
        FROM tree JOIN pg_inherits i ON i.inhparent = tree.inhrelid
    )
    SELECT c.oid::bigint, tree.attached, c.relfilenode::bigint, c.relkind, c.relpersistence,
           format('%%I.%%I', n.nspname, c.relname),
           CASE WHEN c.relreplident <> 'f' THEN (
               SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a
               ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])
               WHERE i.indrelid = c.oid AND CASE WHEN c.relreplident = 'i' THEN i.indisreplident ELSE i.indisprimary END
           ) END
    FROM tree JOIN pg_class c ON c.oid = tree.inhrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind <> 'p' ORDER BY 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The changes to the partitions of a table since their marks were noted."""

    new: tuple[int, ...]
    """The oids of those that have been attached."""
    some_are_gone: bool
    """Whether some are gone or truncated: rows may be gone with them."""


def marks_of(rows: Rows, table: Table) -> dict[str, str]:
    """Return the marks of a table's partitions, by oid. Raise InvalidError if the changes of one can't be followed."""
    marks: dict[str, str] = {}
    if not table.is_partitioned:
        return marks
    for oid, attached, file, kind, persistence, name, identity in rows(_LEAVES_QUERY, [table.oid]):
        if kind != "r" or persistence != "p":
            what = "unlogged" if kind == "r" else "a foreign table"
            raise InvalidError(
                f"{name}, a partition of {table.quoted}, is {what}: PostgreSQL does not write its changes to the WAL. "
                + (
                    f"ALTER TABLE {name} SET LOGGED"
                    if kind == "r"
                    else f"ALTER TABLE … DETACH PARTITION {name}"
                )
                + " changes that."
            )
        if identity is not None and not set(table.key) <= set(identity):
            # One without an identity does not matter: PostgreSQL refuses to update or delete its rows.
            raise InvalidError(
                f"The changes of {name}, a partition of {table.quoted}, name rows by {', '.join(identity)}, but the key is "
                f"{', '.join(table.key)}. ALTER TABLE {name} REPLICA IDENTITY FULL changes that."
            )
        marks[str(oid)] = f"{attached}/{file}"
    return marks


def difference(noted: Mapping[str, str] | None, now: Mapping[str, str]) -> Difference:
    """Compare marks. Without noted ones, existing rows have been read or will come, and others may be gone."""
    if noted is None:
        return Difference(new=(), some_are_gone=True)
    return Difference(
        new=tuple(
            int(oid)
            for oid, mark in now.items()
            if oid not in noted or noted[oid].partition("/")[0] != mark.partition("/")[0]
        ),
        some_are_gone=any(now.get(oid) != mark for oid, mark in noted.items()),
    )


class PartitionWatch:
    """Watches the partitions of tables, and says from which place in the stream on a change can be handled."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = [each for each in tables if each.is_partitioned]
        self._seen: dict[int, dict[str, str]] = {}
        self._due: dict[int, int] = {}
        self._oids: dict[int, frozenset[str]] = {}

    def check(self, rows: Rows, at: PgPosition) -> None:
        for table in self._tables:
            now = marks_of(rows, table)
            self._oids[table.oid] = frozenset(now)
            if now == at.tables[table.quoted].partitions:
                self._seen.pop(table.oid, None)
                self._due.pop(table.oid, None)
            elif now != self._seen.get(table.oid):
                self._seen[table.oid] = now
                # Queried after the marks: the changes seen are before it.
                self._due[table.oid] = _wal_end(rows)

    def passed(self, lsn: int) -> list[Table]:
        """Return the tables whose partitions have changed before a place that the stream has reached."""
        return [each for each in self._tables if self._due.get(each.oid, lsn + 1) <= lsn] if self._due else []

    def is_partition(self, oid: int) -> bool:
        """Return whether it was a partition of one of the tables at the last look."""
        return any(str(oid) in each for each in self._oids.values())

    def has_seen(self, table: Table, marks: Mapping[str, str]) -> bool:
        """Return whether nothing has changed since the last look."""
        return self._seen.get(table.oid) == marks


def _wal_end(rows: Rows) -> int:
    """Return the end of the WAL, and make sure that the stream gets there soon.

    The end may belong to records that nothing waits for, and that a quiet server flushes much later. A transaction with
    its own number ends with a record after them, and PostgreSQL flushes those within a second.
    """
    end = rows("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint", ())
    rows("SELECT pg_current_xact_id()::text", ())
    return int(end[0][0])
