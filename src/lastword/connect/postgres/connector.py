"""`postgres-cdc` as a whole: what must be there is made or asked for, rows are read, then changes are followed.

By its steps:
1. the tables, the publication and the slot are looked up, and made where `create` allows it;
2. the position is kept for the first time: from now on the slot holds every change until it is in the log;
3. tables that have not been read yet are read, from one snapshot, in the order of their keys;
4. after a reset, rows that the topics have and the tables have not get their tombstones;
5. the slot's stream is followed from its last position on;
6. when the partitions of a table have changed the stream is left, and they are looked into (partitions.py).

Killed in 1 or 2: a slot may be there without a position. It is taken as it is, because what a snapshot has seen is left
out of the stream anyway (position.py). Killed in 3: the reading goes on after the last key that is in the log, from a new
snapshot. Killed in 4 or 6: it is done again. Killed in 5: PostgreSQL sends again what was not confirmed, and what is in the log is passed over.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from lastword.clock import monotonic_s
from lastword.connect.options import Options
from lastword.connect.postgres import pgoutput
from lastword.connect.postgres.changes import Changes
from lastword.connect.postgres.database import Database, Slot, Table, is_dsn, is_integer, where
from lastword.connect.postgres.partitions import PartitionWatch, difference, marks_of
from lastword.connect.postgres.pgoutput import Relation, Truncate, Value
from lastword.connect.postgres.position import Epoch, PgPosition, TableProgress, lsn_text, parse_lsn
from lastword.connect.postgres.rights import Need, missing_rights
from lastword.connect.postgres.rows import Envelope, Shape
from lastword.connect.postgres.snapshot import SnapshotReader, row_of
from lastword.connect.postgres.stream import ReplicationStream
from lastword.connect.postgres.sweep import keys_without_rows
from lastword.connect.postgres.toast import Filler, Incomplete
from lastword.connect.protocol import Chunk, Context, Position, SourceRecord
from lastword.errors import InvalidConfigError, InvalidError, UnavailableError

logger = logging.getLogger(__name__)

IDLE_S: Final = 0.5
LINGER_S: Final = 0.05
"""How long the rest of a transaction is waited for before what has come of it is appended."""
MONITOR_S: Final = 10.0
MAX_PASSED: Final = 20_000
"""Messages after which a word is given, although there was nothing in them."""
_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")
_PLACEHOLDER = re.compile(r"\{(.*?)\}")
_NOT_IN_TOPICS = re.compile(r"[^a-zA-Z0-9._-]")


class PostgresConnector:
    """Reads tables of one database through one slot."""

    def __init__(self, options: Options, context: Context) -> None:
        self._context = context
        dsn = options.required("dsn", "the database, as a libpq connection string", secret=True)
        if not is_dsn(dsn):
            # It is not shown, and neither is what libpq says of it: there may be a password in it.
            raise options.invalid(
                "dsn", "is not a libpq connection string, such as `host=db dbname=shop user=lastword`"
            )
        self._database = Database(dsn)
        self._table_names = _tables(options)
        self._key = _names(options.texts("primary_key"))
        default = "lastword_" + re.sub(r"[^a-z0-9_]", "_", context.source.lower())
        self._publication = options.text("publication", default) or default
        self._slot = options.text("slot", default) or default
        self._create = options.switch("create", False)
        self._snapshot = options.choice("snapshot", "initial", ("initial", "never"))
        self._is_envelope = options.choice("format", "row", ("row", "debezium")) == "debezium"
        self._fills = options.choice("toast", "fill", ("fill", "mark")) == "fill"
        self._truncates = options.choice("truncate", "tombstones", ("tombstones", "ignore")) == "tombstones"
        self._lag_warn_bytes = options.number("slot_lag_warn_bytes", 1 << 30, low=1)
        options.finish()
        if not _SLOT_NAME.fullmatch(self._slot):
            raise options.invalid(
                "slot", f"is {self._slot!r}; allowed: 1 to 63 of the characters a-z, 0-9 and '_'"
            )
        if self._key and len(self._table_names) > 1:
            raise options.invalid("primary_key", "goes with one table only; each of several has its own")
        self._pattern = _pattern(options, context, len(self._table_names))
        self._envelope: Envelope | None = None
        self._filler: Filler | None = None
        self._stream: ReplicationStream | None = None
        self._made_slot = False
        self._followed = False
        self._tables: dict[int, Table] = {}
        self._watch = PartitionWatch(())
        self._next_look_s = 0.0
        self._warned = False

    # ---------------------------------------------------------------------------------------------- protocol

    def check(self) -> list[str]:
        """All that is in the way, not only the first of it."""
        database = self._database
        database.check_server()
        problems: list[str] = []
        tables: list[Table] = []
        for name in self._table_names:
            with _noted(problems):
                tables.append(database.table(name, key=self._key))
        with _noted(problems):
            self._check_topics(tables)
        for table in tables:
            with _noted(problems):
                self._context.needs_topic(self._topic(table), None)
            with _noted(problems):
                marks_of(database.rows, table)
        problems += missing_rights(database, self._need(tables))
        with _noted(problems):
            database.check_publication(self._publication, truncates=self._truncates)
        for table in tables:
            with _noted(problems):
                self._check_published(table)
        with _noted(problems):
            self._check_slot(database.slot(self._slot))
        return problems

    def read(self, position: Position | None) -> Iterator[Chunk]:
        database = self._database
        database.check_server()
        followed = {} if position is None else PgPosition.from_json(position).tables
        tables = self._prepare_tables(followed)
        at = self._prepare_slot(position)
        if at is None:
            return
        for table in tables:
            if table.quoted not in at.tables:
                again = position is None and self._context.was_reset
                at.tables[table.quoted] = TableProgress(done=self._snapshot == "never", sweep=again)
            at.tables[table.quoted].oid = table.oid
        self._tables = {table.oid: table for table in tables}
        self._watch = PartitionWatch(tables)
        if self._is_envelope:
            found = database.one("SELECT current_database()")
            self._envelope = Envelope(source=self._context.source, database=found[0] if found else "")
        self._filler = Filler(self._context.topics, self._fetch, is_envelope=self._is_envelope)
        yield Chunk((), at.to_json())
        waiting = [progress for table in tables if not (progress := at.tables[table.quoted]).done]
        if not self._made_slot and any(progress.after is None for progress in waiting):
            yield from self._outwait_transactions(at)
        if waiting or any(at.tables[table.quoted].sweep for table in tables):
            yield from self._read_rows(tables, at)
        while True:
            changed = yield from self._follow(at)
            yield from self._look_into_partitions(changed, at)

    def appended(self, position: Position | None) -> None:
        if self._stream is not None and position is not None:
            self._stream.flushed(parse_lsn(position["lsn"]))

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._database.close()

    # ------------------------------------------------------------------------------------------- preparation

    def _need(self, tables: Sequence[Table]) -> Need:
        return Need(tables=tables, publication=self._publication, slot=self._slot, creates=self._create)

    def _check_published(self, table: Table) -> None:
        """InvalidError if a table is not in the publication, and can't be put there."""
        if self._database.published(table, self._publication) is not None:
            return
        self._database.check_partitions(table, self._publication)
        if not self._create:
            raise InvalidError(
                f"{table.quoted} is not in the publication {self._publication!r}; `create: true` in the source's config "
                f"puts it there, or ALTER PUBLICATION … ADD TABLE."
            )

    def _check_topics(self, tables: Sequence[Table]) -> None:
        topics = [self._topic(table) for table in tables]
        for topic in topics:
            if topics.count(topic) > 1:
                raise InvalidError(
                    f"Two tables would have the topic {topic!r}; use {{schema}} in its name, too."
                )

    def _check_slot(self, slot: Slot | None) -> None:
        """InvalidError if there is no slot and it may not be created, or if it is none that can be used."""
        if slot is None:
            if not self._create:
                raise InvalidError(
                    f"There is no slot {self._slot!r}; `create: true` in the source's config makes it."
                )
            return
        if slot.plugin != "pgoutput" or not slot.is_of_this_database:
            raise InvalidError(
                f"The slot {self._slot!r} is of the plugin {slot.plugin!r}"
                f"{'' if slot.is_of_this_database else ' and of another database'}; "
                f"one of 'pgoutput' and of this database is needed. Name another slot."
            )
        if slot.wal_status == "lost":
            raise InvalidError(self._lost())

    def _prepare_tables(self, followed: Mapping[str, TableProgress]) -> list[Table]:
        """The tables with what is published of them; their topics are there. `followed` are those of the position."""
        database, name = self._database, self._publication
        tables = [database.table(name, key=self._key) for name in self._table_names]
        self._check_topics(tables)
        for table in tables:
            known = followed.get(table.quoted)
            if known is not None and known.oid not in (0, table.oid):
                raise self._created_anew(table.quoted)
        if not database.publication_exists(name):
            if followed:
                raise InvalidError(
                    f"The publication {name!r} is gone, and with it the changes since then. {self._with_a_new_slot()}"
                )
            if not self._create:
                raise InvalidError(
                    f"There is no publication {name!r}; `create: true` in the source's config makes it."
                )
        if missing := missing_rights(database, self._need(tables)):
            raise InvalidError("; ".join(missing))
        if not database.publication_exists(name):
            database.create_publication(name, tables)
            logger.info("source %s: created the publication %s", self._context.source, name)
        database.check_publication(name, truncates=self._truncates)
        published = []
        for table in tables:
            found = database.published(table, name)
            if found is None:
                database.check_partitions(table, name)
            if found is None and table.quoted in followed:
                raise self._unpublished(table.quoted)
            if found is None:
                self._check_published(table)
                database.add_to_publication(name, table)
                found = database.published(table, name)
            if found is None:
                raise InvalidError(
                    f"{table.quoted} is a partition of a table that is in the publication {name!r} as a whole, so its "
                    f"changes are sent as that table's. Name that table, or another publication."
                )
            published.append(found)
            self._context.needs_topic(self._topic(table), None)
        return published

    def _prepare_slot(self, position: Position | None) -> PgPosition | None:
        """Where to begin; None if the source shall end."""
        slot = self._database.slot(self._slot)
        if slot is None:
            if position is not None:
                raise InvalidError(
                    f"The slot {self._slot!r} is gone, and with it the changes since the last position. "
                    f"`lastword connect reset {self._context.source}` lets the source begin again with a new snapshot."
                )
            self._check_slot(slot)
            if not self._database.create_slot(self._slot, self._waits_for_transactions):
                return None
            self._made_slot = True
            logger.info("source %s: created the slot %s", self._context.source, self._slot)
            slot = self._database.slot(self._slot)
            assert slot is not None
        self._check_slot(slot)
        if position is None:
            if slot.active:
                raise UnavailableError(
                    f"The slot {self._slot!r} is in use by somebody else, maybe a source of the same name; changes that "
                    f"one of the two has confirmed the other would miss. Name another slot."
                )
            return PgPosition(lsn=slot.confirmed_lsn)
        at = PgPosition.from_json(position)
        self._database.check_reaches(at.commit_lsn)
        if self._context.restored is not None and slot.confirmed_lsn > at.lsn:
            raise InvalidError(
                f"The log was restored from the backup {self._context.restored}, which has the changes up to "
                f"{lsn_text(at.lsn)}; the slot {self._slot!r} has been confirmed up to {lsn_text(slot.confirmed_lsn)} since, so "
                f"PostgreSQL no longer sends the changes between the two. {self._begin_again()}"
            )
        return at

    def _waits_for_transactions(self, wait_s: float) -> bool:
        self._context.report({"phase": "waiting for open transactions", "slot": self._slot})
        return self._context.wait(wait_s)

    def _outwait_transactions(self, at: PgPosition) -> Iterator[Chunk]:
        """Let every transaction end that is open now, before a table is read that was published just now.

        What such a one did to the table before is in no snapshot yet, and not in the stream either: PostgreSQL sends
        what was published when it was done. Creating a slot waits for them by itself.
        """
        last = self._database.next_transaction()
        while self._database.oldest_transaction() < last:
            yield Chunk((), at.to_json())
            if self._waits_for_transactions(IDLE_S):
                return

    def _check_tables(self) -> None:
        """InvalidError if a table is not the one any more that is followed: nothing would come of it, without a word."""
        for table in self._tables.values():
            oid = self._database.oid_of(table.quoted)
            if oid is None:
                raise InvalidError(
                    f"{table.quoted} is gone: it was dropped or renamed. Take it out of the source's config, or put the "
                    f"new name there."
                )
            if oid != table.oid:
                raise self._created_anew(table.quoted)
            if self._database.published(table, self._publication) is None:
                raise self._unpublished(table.quoted)

    def _created_anew(self, table: str) -> InvalidError:
        return InvalidError(
            f"{table} was dropped and created again since it was read: it is another table, and its topic has the rows "
            f"of the old one. {self._begin_again()}"
        )

    def _unpublished(self, table: str) -> InvalidError:
        return InvalidError(
            f"{table} is no longer in the publication {self._publication!r}, so its changes since then are missing. "
            f"Add it again (ALTER PUBLICATION … ADD TABLE {table}; `create: true` does so). {self._begin_again()}"
        )

    def _begin_again(self) -> str:
        source = self._context.source
        return (
            f"`lastword connect pause {source}`, `reset {source}` and `resume {source}` let the source begin again with a "
            f"new snapshot."
        )

    def _with_a_new_slot(self) -> str:
        """What PostgreSQL has kept can't be read any more: only what comes from now on."""
        source = self._context.source
        return (
            f"`lastword connect pause {source}`, `SELECT pg_drop_replication_slot('{self._slot}')` in the database, and "
            f"`reset {source}` and `resume {source}` let the source begin again with a new snapshot."
        )

    def _lost(self) -> str:
        return (
            f"The slot {self._slot!r} is lost: PostgreSQL has removed WAL that it needed (max_slot_wal_keep_size). "
            f"Drop it, and let the source begin again with `lastword connect reset {self._context.source}`."
        )

    def _topic(self, table: Table) -> str:
        def legal(name: str) -> str:
            return _NOT_IN_TOPICS.sub("_", name)

        return self._pattern.replace("{schema}", legal(table.schema)).replace("{table}", legal(table.name))

    def _shape(self, table: Table, columns: Sequence[tuple[str, int]], key: Sequence[str]) -> Shape:
        return Shape.make(
            table=table.quoted,
            schema=table.schema,
            name=table.name,
            topic=self._topic(table),
            columns=columns,
            key=key,
            types=self._database.type,
            is_integer=is_integer,
        )

    # -------------------------------------------------------------------------------------------------- rows

    def _read_rows(self, tables: Sequence[Table], at: PgPosition) -> Iterator[Chunk]:
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
            # One that began at the same keys has read nothing.
            if waiting:
                at.epochs = [*(each for each in at.epochs if dict(each.after) != after), epoch]
            time_ms = self._context.clock.now_ms()
            for table in waiting:
                progress = at.tables[table.quoted]
                shape = self._shape(table, table.columns, table.key)
                for lines in reader.read(table, progress.after):
                    if not lines:
                        yield Chunk((), at.to_json())
                        continue
                    records = [self._read_record(shape, row_of(line), time_ms) for line in lines]
                    progress.rows += len(lines)
                    progress.after = shape.order_key_texts(row_of(lines[-1]))
                    self._monitor("snapshot", at)
                    yield Chunk(records, at.to_json())
                progress.done, progress.after = True, None
                logger.info(
                    "source %s: read %d rows of %s", self._context.source, progress.rows, table.quoted
                )
                self._monitor("snapshot", at, now=True)
            for table in swept:
                yield from self._sweep(reader, table, at)
                at.tables[table.quoted].sweep = False
                yield Chunk((), at.to_json())
        finally:
            reader.close()

    def _sweep(self, reader: SnapshotReader, table: Table, at: PgPosition) -> Iterator[Chunk]:
        """Tombstones for the rows that the topic has and the table has not."""
        self._monitor("sweep", at, now=True)
        shape = self._shape(table, table.columns, table.key)
        gone = 0
        for keys in keys_without_rows(reader, table, shape, self.live_keys(shape.topic)):
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

    def _look_into_partitions(self, tables: Sequence[Table], at: PgPosition) -> Iterator[Chunk]:
        """Follow partitions that were attached, detached, dropped or truncated; the stream is behind that."""
        for table in tables:
            reader = SnapshotReader(self._database, [table])
            try:
                marks = marks_of(reader.rows, table)
                if not self._watch.has_seen(table, marks):
                    # The stream may have changes of one that is gone since: that is another thing to wait for.
                    continue
                progress = at.tables[table.quoted]
                found = difference(progress.partitions, marks)
                shape = self._shape(table, table.columns, table.key)
                time_ms = self._context.clock.now_ms()
                for partition in found.new:
                    self._monitor("reading a new partition", at, now=True)
                    for lines in reader.read(table, None, partition=partition):
                        records = [self._read_record(shape, row_of(line), time_ms) for line in lines]
                        yield Chunk(records, at.to_json())
                if found.some_are_gone and self._truncates:
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

    # ----------------------------------------------------------------------------------------------- changes

    def _follow(self, at: PgPosition) -> Generator[Chunk, None, list[Table]]:
        """Follow the stream until it is behind a change of partitions; the tables whose they are.

        What they need takes its time, in which PostgreSQL would hear nothing and end the stream.
        """
        yield from self._outwait_slot(at)
        stream = self._stream = ReplicationStream(
            self._database.dsn, slot=self._slot, publication=self._publication, start_lsn=at.lsn
        )
        try:
            return (yield from self._changes(stream, at))
        finally:
            stream.close()
            self._stream = None

    def _outwait_slot(self, at: PgPosition) -> Iterator[Chunk]:
        """Let PostgreSQL notice that the stream was closed. Somebody else's use of the slot is told by the stream."""
        until_s = monotonic_s() + IDLE_S
        while self._followed and monotonic_s() < until_s:
            slot = self._database.slot(self._slot)
            if slot is None or not slot.active:
                break
            yield Chunk((), at.to_json())
            self._context.wait(LINGER_S)
        self._followed = True

    def _changes(self, stream: ReplicationStream, at: PgPosition) -> Generator[Chunk, None, list[Table]]:
        changes = Changes(at, self)
        self._monitor("stream", at, now=True)
        passed = 0
        while True:
            data = stream.read()
            if data is None:
                if changes.in_transaction and not changes.is_empty:
                    stream.wait(LINGER_S)
                    data = stream.read()
                if data is None:
                    if not changes.is_empty:
                        yield changes.take()
                        continue
                    if not changes.in_transaction:
                        # Nothing of ours is between: PostgreSQL may let go of the WAL of others.
                        at.lsn = max(at.lsn, stream.sent_lsn)
                    yield Chunk((), at.to_json())
                    self._monitor("stream", at)
                    if not changes.in_transaction and (changed := self._watch.passed(at.lsn)):
                        return changed
                    stream.wait(IDLE_S)
                    continue
            message = pgoutput.parse(data)
            if isinstance(message, Truncate):
                yield from changes.truncate(message, self._truncates)
            elif message is not None:
                changes.add(message)
            passed += 1
            if not changes.in_transaction and (changed := self._watch.passed(at.lsn)):
                yield changes.take()
                return changed
            if changes.is_full:
                self._monitor("stream", at)
                yield changes.take()
            elif passed % MAX_PASSED == 0 and changes.is_empty:
                # Changes that are in the log already, or are of no interest.
                yield Chunk((), at.to_json())

    def shape_of(self, relation: Relation) -> Shape | None:
        """How rows of a relation become records; None if it is none of this source's tables."""
        table = self._tables.get(relation.oid)
        if table is None:
            if any(
                (each.schema, each.name) == (relation.schema, relation.name) for each in self._tables.values()
            ):
                # Of one that came before ours, or that has taken its place.
                self._check_tables()
            elif self._watch.is_partition(relation.oid):
                # Is it one of a table that is not published as a whole any more?
                self._check_tables()
            return None
        if table.is_partitioned:
            # It is described anew when its partitions change, and at other times.
            self._next_look_s = 0.0
        columns = [(each.name, each.type_oid) for each in relation.columns]
        if self._key:
            key: Sequence[str] = self._key
        elif relation.identity == "f":
            names = {name for name, _ in columns}
            if not set(table.key) <= names:
                table = self._tables[relation.oid] = self._database.table(table.quoted)
            key = table.key
        else:
            key = [each.name for each in relation.columns if each.is_key]
        if not key:
            raise InvalidError(
                f"{table.quoted} was changed while it had no key, so it can't be told which rows. Give it one again. "
                f"{self._with_a_new_slot()}"
            )
        return self._shape(table, columns, key)

    def complete(self, records: list[SourceRecord], incomplete: dict[int, Incomplete]) -> None:
        assert self._filler is not None
        self._filler.complete(records, incomplete)

    def live_keys(self, topic: str) -> Iterator[bytes]:
        return self._context.topics.live_keys(topic)

    @property
    def envelope(self) -> Envelope | None:
        return self._envelope

    @property
    def fills(self) -> bool:
        return self._fills

    def _fetch(self, shape: Shape, values: Sequence[Value], names: Sequence[str]) -> dict[str, bytes]:
        """The values of columns as the database has them now."""
        database = self._database

        def quoted(name: str) -> str:
            # The query has arguments, so a % in a name is doubled.
            return database.quote(name).replace("%", "%%")

        columns = ", ".join(f"format('%%s', {quoted(name)}), {quoted(name)} IS NULL" for name in names)
        condition = " AND ".join(f"{quoted(shape.names[index])} = %s" for index in shape.key_indexes)
        try:
            row = database.one(
                f"SELECT {columns} FROM {shape.table.replace('%', '%%')} WHERE {condition}",
                shape.order_key_texts(values),
            )
        except InvalidError:
            # The table has other columns by now; what it had is not to be known any more.
            row = None
        if row is None:
            return {}
        found: dict[str, bytes] = {}
        for index, name in enumerate(names):
            text, is_null = row[2 * index], row[2 * index + 1]
            to_json = shape.converters[shape.names.index(name)]
            found[name] = b"null" if is_null else to_json(text.encode())
        return found

    # ------------------------------------------------------------------------------------------------ status

    def _monitor(self, phase: str, at: PgPosition, *, now: bool = False) -> None:
        """Say how far it is, and how much WAL PostgreSQL keeps for it; warn before a disk fills."""
        if not now and monotonic_s() < self._next_look_s:
            return
        self._next_look_s = monotonic_s() + MONITOR_S
        facts: dict[str, Any] = {
            "phase": phase,
            "database": where(self._database.dsn),
            "slot": self._slot,
            "tables": {
                table.quoted: {
                    "rows": at.tables[table.quoted].rows,
                    "estimated_rows": table.estimated_rows,
                    "done": at.tables[table.quoted].done,
                }
                for table in self._tables.values()
            },
        }
        if phase == "stream":
            self._check_tables()
            self._watch.look(self._database.rows, at)
        slot = self._database.slot(self._slot)
        if slot is not None:
            if slot.wal_status == "lost":
                raise InvalidError(self._lost())
            facts |= self._slot_facts(slot)
        self._context.report(facts)

    def look(self) -> None:
        """The slot keeps WAL also while nobody reads it."""
        slot = self._database.slot(self._slot)
        if slot is not None:
            self._context.report(self._slot_facts(slot))

    def _slot_facts(self, slot: Slot) -> dict[str, Any]:
        short = slot.safe_bytes is not None and slot.safe_bytes < self._lag_warn_bytes
        is_long = slot.lag_bytes >= self._lag_warn_bytes or slot.wal_status == "unreserved" or short
        warning = None
        if is_long:
            warning = f"PostgreSQL keeps {slot.lag_bytes >> 20} MiB of WAL for the slot {self._slot}" + (
                f", which is lost after {slot.safe_bytes >> 20} MiB more"
                if slot.safe_bytes is not None
                else ""
            )
            if not self._warned:
                logger.warning("source %s: %s", self._context.source, warning)
        self._warned = is_long
        return {"slot_lag_bytes": slot.lag_bytes, "wal_status": slot.wal_status, "warning": warning}


@contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except InvalidError as error:
        problems.append(str(error))


def _tables(options: Options) -> list[str]:
    one, several = options.text("table"), options.texts("tables")
    if (one is None) == (several is None):
        what = "both are given" if one is not None else "neither is given"
        raise InvalidConfigError(f"{options.where}: {options.path}: give table or tables; {what}")
    return _names(several) or [one or ""]


def _names(given: Sequence[str] | None) -> list[str]:
    """Names, also as one text with commas; not within double quotes."""
    if given is None:
        return []
    return [each.strip() for text in given for each in re.split(r',(?=(?:[^"]*"[^"]*")*[^"]*$)', text)]


def _pattern(options: Options, context: Context, tables: int) -> str:
    if context.topic is None:
        raise InvalidConfigError(f"{options.where}: sources.{context.source}.topic is missing")
    for found in _PLACEHOLDER.findall(context.topic):
        if found not in ("schema", "table"):
            raise InvalidConfigError(
                f"{options.where}: sources.{context.source}.topic is {context.topic!r}; {{schema}} and {{table}} are "
                f"what can stand in braces"
            )
    if tables > 1 and "{table}" not in context.topic:
        raise InvalidConfigError(
            f"{options.where}: sources.{context.source}.topic is {context.topic!r}; with several tables each has a "
            f"topic of its own: put {{table}} into the name, such as db.{{table}}"
        )
    return context.topic
