"""Notices that the partitions of a table are others than they were: PostgreSQL's stream says nothing of it.

A partition that is attached brings rows, one that is detached, dropped or truncated takes rows along, and no change
tells of them. So the catalog is looked at: when a source starts, when the stream describes the table anew, and every few
seconds. The position keeps a *mark* of each partition: the transaction that attached it, and the file that has its rows,
which a TRUNCATE replaces (so does VACUUM FULL, and then nothing is found to be gone).

What has changed is looked into by these steps:
1. the marks are not those of the position: the place in the WAL is noted, which is behind the change;
2. the stream is followed up to there, so that it has no change of a partition that is gone left;
3. the rows of new partitions are read, from one snapshot, and if others are gone or truncated the topic's keys are
   looked up in the table (sweep.py);
4. the marks of that snapshot become part of the position.

Killed at any of these: the marks of the position are the old ones, and all of it is done again. Changes between the place
in the stream and the snapshot come after the rows that were read: for a moment such a row is older than it was before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lastword.connect.postgres.database import Table
from lastword.connect.postgres.position import PgPosition
from lastword.errors import InvalidError

Rows = Callable[[str, Sequence[object]], list[tuple[Any, ...]]]
"""Asks a query of a database."""

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
    """What has happened to the partitions of a table since their marks were noted."""

    new: tuple[int, ...]
    """Those that have been attached, by their oids."""
    some_are_gone: bool
    """Or have been truncated: rows may be gone with them."""


def marks_of(rows: Rows, table: Table) -> dict[str, str]:
    """The marks of a table's partitions, by their oids. InvalidError if the changes of one can't be followed."""
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
            # One without any is no matter: PostgreSQL refuses to update or delete its rows.
            raise InvalidError(
                f"The changes of {name}, a partition of {table.quoted}, name rows by {', '.join(identity)}, and the key is "
                f"{', '.join(table.key)}. ALTER TABLE {name} REPLICA IDENTITY FULL changes that."
            )
        marks[str(oid)] = f"{attached}/{file}"
    return marks


def difference(noted: Mapping[str, str] | None, now: Mapping[str, str]) -> Difference:
    """Without noted marks nobody knows: rows that are there have been read or come, others may be gone."""
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
    """Looks at the partitions of tables, and says from which place in the stream on a change can be looked into."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self._tables = [each for each in tables if each.is_partitioned]
        self._seen: dict[int, dict[str, str]] = {}
        self._due: dict[int, int] = {}
        self._oids: dict[int, frozenset[str]] = {}

    def look(self, rows: Rows, at: PgPosition) -> None:
        for table in self._tables:
            now = marks_of(rows, table)
            self._oids[table.oid] = frozenset(now)
            if now == at.tables[table.quoted].partitions:
                self._seen.pop(table.oid, None)
                self._due.pop(table.oid, None)
            elif now != self._seen.get(table.oid):
                self._seen[table.oid] = now
                # Asked after the look: what was seen is before it.
                self._due[table.oid] = _wal_end(rows)

    def passed(self, lsn: int) -> list[Table]:
        """The tables whose partitions have changed before a place that the stream has come to."""
        return [each for each in self._tables if self._due.get(each.oid, lsn + 1) <= lsn] if self._due else []

    def is_partition(self, oid: int) -> bool:
        """Whether it was a partition of one of the tables at the last look."""
        return any(str(oid) in each for each in self._oids.values())

    def has_seen(self, table: Table, marks: Mapping[str, str]) -> bool:
        """Whether nothing has happened since the last look."""
        return self._seen.get(table.oid) == marks


def _wal_end(rows: Rows) -> int:
    """Where the WAL ends, and make sure that the stream gets there soon.

    The end may be of records that nobody waits for, and that are flushed much later on a quiet server. A transaction with
    a number of its own ends with a record behind them, and PostgreSQL flushes those within a second.
    """
    end = rows("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint", ())
    rows("SELECT pg_current_xact_id()::text", ())
    return int(end[0][0])
