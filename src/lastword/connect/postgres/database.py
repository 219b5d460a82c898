"""The queries other than those for rows: tables and their keys, types, the publication and the slot.

Besides snapshot.py and stream.py the only module that uses psycopg2; its errors become ours here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg2
import psycopg2.errors
import psycopg2.extensions
from psycopg2.extensions import quote_ident

from lastword.connect.postgres.position import parse_lsn
from lastword.connect.postgres.values import INTEGERS, SESSION, UUID, Type
from lastword.errors import InvalidError, LastwordError, UnavailableError

CONNECT_TIMEOUT_S: Final = 10
CREATE_SLOT_S: Final = 0.5
"""After this long without a slot, the status reports the wait for open transactions."""
KEEPALIVES: Final = {
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}
"""With these, a server that vanishes silently is noticed within a minute, not after hours."""

_TABLE_QUERY: Final = """
    SELECT c.oid, n.nspname, c.relname, c.relkind, c.relreplident, c.reltuples::bigint,
           format('%%I.%%I', n.nspname, c.relname), c.relpersistence
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = to_regclass(%s)
"""
_HIDDEN_QUERY: Final = """
    WITH name AS (SELECT parse_ident(%s) AS parts)
    SELECT format('%%I', n.nspname), format('%%I', c.relname), format('%%I', current_user)
    FROM name, pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname = parts[cardinality(parts)] AND c.relkind IN ('r', 'p')
      AND (cardinality(parts) = 1 AND n.nspname NOT LIKE 'pg\\_%%' OR n.nspname = parts[cardinality(parts) - 1])
      AND NOT has_schema_privilege(n.oid, 'USAGE')
    ORDER BY 1
"""
# The columns of an index, in the table's order, so that a key looks the same wherever it comes from.
_INDEX_QUERY: Final = """
    SELECT a.attname FROM pg_index i
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey[0:i.indnkeyatts - 1])
    WHERE i.indrelid = %s AND (CASE WHEN %s THEN i.indisreplident ELSE i.indisprimary END)
    ORDER BY a.attnum
"""
_COLUMNS_QUERY: Final = """
    SELECT attname, atttypid, attnotnull FROM pg_attribute
    WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
    ORDER BY attnum
"""
_TYPE_QUERY: Final = """
    SELECT typbasetype, CASE WHEN typoutput = 'array_out'::regproc THEN typelem ELSE 0 END,
           CASE WHEN typelem <> 0 THEN (SELECT e.typdelim FROM pg_type e WHERE e.oid = t.typelem) ELSE typdelim END
    FROM pg_type t WHERE oid = %s
"""
_SLOT_QUERY: Final = """
    SELECT plugin, database = current_database(), active, confirmed_flush_lsn, wal_status, safe_wal_size,
           pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint
    FROM pg_replication_slots WHERE slot_name = %s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table as it is now."""

    oid: int
    schema: str
    name: str
    identity: str
    quoted: str
    """Its name in SQL, by which positions know it."""
    key: tuple[str, ...]
    columns: tuple[tuple[str, int], ...]
    """The names and types of the published columns."""
    estimated_rows: int
    is_partitioned: bool
    row_filter: str | None = None
    membership: str = ""
    """The id of the table's membership in the publication: it changes if the table is removed and added again."""

    def type_of(self, column: str) -> int:
        return dict(self.columns)[column]


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    plugin: str
    is_of_this_database: bool
    active: bool
    confirmed_lsn: int
    wal_status: str | None
    safe_bytes: int | None
    lag_bytes: int


class Database:
    """A plain connection, opened when it is first needed."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._connection: Any = None
        self._types: dict[int, Type] = {}

    @property
    def connection(self) -> Any:
        if self._connection is None:
            self._connection = connect(self.dsn)
            self._connection.autocommit = True
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def rows(self, query: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with errors_of(self.dsn), self.connection.cursor() as cursor:
            cursor.execute(query, tuple(arguments) or None)
            return list(cursor.fetchall()) if cursor.description else []

    def one(self, query: str, arguments: Sequence[object] = ()) -> tuple[Any, ...] | None:
        return next(iter(self.rows(query, arguments)), None)

    def quote(self, name: str) -> str:
        with errors_of(self.dsn):
            return str(quote_ident(name, self.connection))

    def check_server(self) -> None:
        found = self.one(
            "SELECT current_setting('wal_level'), current_setting('server_version_num')::int, "
            "pg_is_in_recovery()"
        )
        assert found is not None
        if found[1] < 140000:
            raise InvalidError(f"PostgreSQL {found[1] // 10000} is too old; 14 or newer is needed.")
        if found[0] != "logical":
            raise InvalidError(
                f"wal_level is {found[0]!r}; logical replication needs 'logical' (ALTER SYSTEM SET wal_level = "
                f"logical, and a restart of PostgreSQL)."
            )
        if found[2]:
            raise InvalidError(
                f"PostgreSQL ({where(self.dsn)}) is a standby: name the primary in dsn, which has the slot and the publication."
            )

    def table(self, name: str, *, key: Sequence[str] | None = None) -> Table:
        """Return a table by its SQL name. Raise InvalidError if it has no key, or its changes don't name the row."""
        found = self._found_table(name)
        oid, schema, relname, kind, identity, estimate, quoted, persistence = found
        if kind not in ("r", "p"):
            raise InvalidError(f"{quoted} is not a table, so it has no changes.")
        if persistence != "p":
            raise InvalidError(
                f"{quoted} is unlogged or temporary: PostgreSQL does not write its changes to the WAL."
            )
        if identity == "n":
            raise InvalidError(
                f"{quoted} has REPLICA IDENTITY NOTHING: its updates and deletes don't say which row they change. "
                f"ALTER TABLE {quoted} REPLICA IDENTITY DEFAULT (or FULL) changes that."
            )
        described = self.rows(_COLUMNS_QUERY, [oid])
        columns = tuple((each, type_oid) for each, type_oid, _ in described)
        names = [each for each, _ in columns]
        own = [each for (each,) in self.rows(_INDEX_QUERY, [oid, identity == "i"])]
        for each in key or ():
            if each not in names:
                raise InvalidError(
                    f"primary_key names {each!r}, which {quoted} does not have; it has {', '.join(names)}."
                )
        chosen = [each for each in names if each in key] if key else own
        if not chosen:
            raise InvalidError(
                f"{quoted} has no primary key, so its rows can't be told apart. Give it one (ALTER TABLE {quoted} "
                f"ADD PRIMARY KEY …), or a unique index as REPLICA IDENTITY, or REPLICA IDENTITY FULL and "
                f"primary_key in the source's config."
            )
        if generated := [each for each in chosen if each not in names]:
            raise InvalidError(
                f"The key column {generated[0]!r} of {quoted} is generated, and PostgreSQL does not send it. Set a unique "
                f"index on other columns as REPLICA IDENTITY, or REPLICA IDENTITY FULL and primary_key in the source's "
                f"config."
            )
        if key and identity != "f" and set(chosen) != set(own):
            raise InvalidError(
                f"primary_key is {', '.join(chosen)}, but the key of {quoted} is {', '.join(own) or 'none'}: its "
                f"deletes would not carry that key. Leave primary_key out, or set REPLICA IDENTITY FULL."
            )
        if nullable := [each for each, _, not_null in described if each in chosen and not not_null]:
            raise InvalidError(
                f"The key column {nullable[0]!r} of {quoted} may be null; a key must be unique and without nulls. "
                f"ALTER TABLE {quoted} ALTER {nullable[0]} SET NOT NULL."
            )
        return Table(
            oid=oid,
            schema=schema,
            name=relname,
            identity=identity,
            quoted=quoted,
            key=tuple(chosen),
            columns=columns,
            estimated_rows=max(0, estimate),
            is_partitioned=kind == "p",
        )

    def oid_of(self, quoted: str) -> int | None:
        """Return the oid of the table that has a name now; None if there is none."""
        found = self.one("SELECT to_regclass(%s)::oid::bigint", [quoted])
        return None if found is None or found[0] is None else int(found[0])

    def published(self, table: Table, publication: str) -> Table | None:
        """Return the table with its published columns and row filter; None if it is not in the publication."""
        found = self.one(
            "SELECT to_jsonb(t), coalesce(r.oid, p.oid)::bigint FROM pg_publication_tables t "
            "JOIN pg_publication p USING (pubname) "
            "LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = %s "
            "WHERE t.pubname = %s AND t.schemaname = %s AND t.tablename = %s",
            [table.oid, publication, table.schema, table.name],
        )
        if found is None:
            return None
        names = found[0].get("attnames")
        columns = table.columns if names is None else tuple(c for c in table.columns if c[0] in names)
        return replace(table, columns=columns, row_filter=found[0].get("rowfilter"), membership=str(found[1]))

    def publication_exists(self, name: str) -> bool:
        return self.one("SELECT 1 FROM pg_publication WHERE pubname = %s", [name]) is not None

    def check_publication(self, name: str, *, truncates: bool) -> None:
        """Raise InvalidError if a publication leaves out some changes."""
        found = self.one(
            "SELECT pubinsert, pubupdate, pubdelete, pubtruncate FROM pg_publication WHERE pubname = %s",
            [name],
        )
        if found is None:
            return
        way_out = f"ALTER PUBLICATION {self.quote(name)} SET (publish = 'insert, update, delete, truncate') changes that"
        if not all(found[:3]):
            raise InvalidError(
                f"The publication {name!r} does not publish every insert, update and delete. {way_out}."
            )
        if truncates and not found[3]:
            raise InvalidError(
                f"The publication {name!r} does not publish truncates, so rows would stay in the topic. {way_out}; "
                f"`truncate: ignore` in the source's config leaves them there."
            )

    def check_partitions(self, table: Table, name: str) -> None:
        """Raise InvalidError if an unpublished table is partitioned, and could only be published in parts."""
        found = self.one(
            "SELECT 1 FROM pg_publication p, pg_class c "
            "WHERE p.pubname = %s AND NOT p.pubviaroot AND c.oid = %s AND c.relkind = 'p'",
            [name, table.oid],
        )
        if found is not None:
            raise InvalidError(
                f"{table.quoted} is partitioned, and the publication {name!r} publishes partitions as separate tables. "
                f"ALTER PUBLICATION {self.quote(name)} SET (publish_via_partition_root = true) changes that."
            )

    def check_reaches(self, lsn: int) -> None:
        """Raise InvalidError if the WAL does not reach a position: this is another database, or an older state of it."""
        found = self.one("SELECT pg_current_wal_insert_lsn()::text")
        assert found is not None
        if parse_lsn(found[0]) < lsn:
            raise InvalidError(
                f"PostgreSQL ({where(self.dsn)}) is at {found[0]} of its WAL, before the position of the source: it was "
                f"restored from a backup, or is another database. `lastword connect reset` lets the source start over."
            )

    def create_publication(self, name: str, tables: Sequence[Table]) -> None:
        self.rows(self.create_publication_query(name, tables))

    def create_publication_query(self, name: str, tables: Sequence[Table]) -> str:
        listed = ", ".join(each.quoted for each in tables)
        return f"CREATE PUBLICATION {self.quote(name)} FOR TABLE {listed} WITH (publish_via_partition_root = true)"

    def add_to_publication(self, name: str, table: Table) -> None:
        self.rows(f"ALTER PUBLICATION {self.quote(name)} ADD TABLE {table.quoted}")

    def slot(self, name: str) -> Slot | None:
        found = self.one(_SLOT_QUERY, [name])
        if found is None:
            return None
        plugin, ours, active, confirmed, wal_status, safe, lag = found
        return Slot(
            plugin=plugin,
            is_of_this_database=bool(ours),
            active=active,
            confirmed_lsn=parse_lsn(confirmed or "0/0"),
            wal_status=wal_status,
            safe_bytes=safe,
            lag_bytes=max(0, lag or 0),
        )

    def create_slot(self, name: str, wait: Callable[[float], bool]) -> bool:
        """Create a slot. PostgreSQL waits for all open transactions; return False if `wait` says to give up."""
        failed: list[Exception] = []

        def create() -> None:
            try:
                self.rows("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
            except Exception as error:  # noqa: BLE001
                failed.append(error)

        connection = self.connection
        thread = threading.Thread(target=create, name="lastword-slot", daemon=True)
        thread.start()
        thread.join(CREATE_SLOT_S)
        while thread.is_alive():
            if wait(CREATE_SLOT_S):
                with errors_of(self.dsn):
                    connection.cancel()
                thread.join()
                return not failed
            thread.join(0)
        if failed:
            raise failed[0]
        return True

    def next_transaction(self) -> int:
        """Return the lowest number that no transaction has yet."""
        found = self.one("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")
        assert found is not None
        return int(found[0])

    def oldest_transaction(self) -> int:
        """Return the lowest number of an open transaction; without one, that of the next."""
        found = self.one("SELECT pg_snapshot_xmin(pg_current_snapshot())::text")
        assert found is not None
        return int(found[0])

    def type(self, oid: int) -> Type:
        """Return a type; one that is gone is treated as text."""
        if oid not in self._types:
            found = self.one(_TYPE_QUERY, [oid])
            self._types[oid] = Type(oid) if found is None else Type(oid, found[0], found[1], found[2])
        return self._types[oid]

    def _found_table(self, name: str) -> tuple[Any, ...]:
        try:
            found = self.one(_TABLE_QUERY, [name])
        except InvalidError:
            found = None
        if found is None:
            self._check_schema_of(name)
            raise InvalidError(
                f"there is no table {name} in the database (as in SQL, a name with capitals or special characters "
                f'needs double quotes: "Users")'
            )
        return found

    def _check_schema_of(self, name: str) -> None:
        """Raise InvalidError if a table of this name is in a schema that the role may not use."""
        try:
            found = self.one(_HIDDEN_QUERY, [name])
        except InvalidError:
            # It is not a valid name.
            return
        if found is not None:
            schema, table, role = found
            raise InvalidError(
                f"the role {role} may not use the schema of {schema}.{table}: `GRANT USAGE ON SCHEMA {schema} TO {role}`"
            )


def ordered_natively(type_oid: int) -> bool:
    """Return whether PostgreSQL's own order of a key is the one that position.py compares by."""
    return type_oid in INTEGERS or type_oid == UUID


def is_integer(type_oid: int) -> bool:
    return type_oid in INTEGERS


def connect(dsn: str, **more: Any) -> Any:
    """Open a connection that returns values as the texts that values.py understands."""
    with errors_of(dsn):
        options = " ".join(f"-c {name}={value}" for name, value in SESSION.items())
        given = psycopg2.extensions.parse_dsn(dsn)
        if given.get("options"):
            options = f"{given['options']} {options}"
        given.setdefault("connect_timeout", str(CONNECT_TIMEOUT_S))
        given.setdefault("application_name", "lastword")
        try:
            return psycopg2.connect(**{**KEEPALIVES, **given, "options": options}, **more)
        except psycopg2.OperationalError as error:
            if "does not have CONNECT privilege" not in str(error):
                raise
            raise InvalidError(
                f"PostgreSQL ({where(dsn)}): the role may not connect: `GRANT CONNECT ON DATABASE {given.get('dbname', '…')} "
                f"TO {given.get('user', '…')}`"
            ) from error


@contextmanager
def errors_of(dsn: str) -> Iterator[None]:
    """Map psycopg2's errors: to InvalidError for a user's mistake, to UnavailableError for one that may pass."""
    try:
        yield
    except LastwordError:
        raise
    except (psycopg2.errors.InsufficientPrivilege, psycopg2.ProgrammingError) as error:
        raise InvalidError(f"PostgreSQL ({where(dsn)}) refuses: {_text(error)}") from error
    except psycopg2.Error as error:
        raise UnavailableError(f"PostgreSQL ({where(dsn)}): {_text(error)}") from error


def is_dsn(text: str) -> bool:
    try:
        psycopg2.extensions.parse_dsn(text)
    except psycopg2.ProgrammingError:
        return False
    return True


def where(dsn: str) -> str:
    """Return the database that a connection string names, without secrets."""
    given = psycopg2.extensions.parse_dsn(dsn)
    return (
        " ".join(f"{key}={given[key]}" for key in ("host", "port", "dbname", "user") if key in given)
        or "local"
    )


def _text(error: psycopg2.Error) -> str:
    return " ".join(str(error).split()) or type(error).__name__
