"""`postgres-cdc` as a whole: checks its prerequisites, reads rows, then follows changes.

The steps:
1. look up the tables, the publication and the slot; create the latter two where `create` allows it;
2. save the first position: from now on the slot holds every change until it is in the log;
3. read the tables that have not been read yet, from one snapshot, in the order of their keys;
4. after a reset, append tombstones for rows that the topics have and the tables don't;
5. follow the slot's stream from its last position on;
6. when the partitions of a table have changed, leave the stream and handle them (partitions.py).

Killed in 1 or 2: a slot may exist without a position. It is used as it is, because changes that a snapshot has seen are
left out of the stream anyway (position.py). Killed in 3: reading resumes after the last key in the log, from a new
snapshot. Killed in 4 or 6: the step is repeated. Killed in 5: PostgreSQL sends unconfirmed changes again, and those that
are in the log are skipped.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from functools import partial
from typing import Final

from lastword.clock import monotonic_s
from lastword.connect.options import Options
from lastword.connect.postgres import pgoutput
from lastword.connect.postgres.changes import Changes
from lastword.connect.postgres.config import PgConfig
from lastword.connect.postgres.database import Database, Table
from lastword.connect.postgres.monitor import Monitor
from lastword.connect.postgres.partitions import PartitionWatch
from lastword.connect.postgres.pgoutput import Relation, Truncate
from lastword.connect.postgres.position import PgPosition, TableProgress, parse_lsn
from lastword.connect.postgres.preparation import Preparation
from lastword.connect.postgres.rows import Envelope, Shape
from lastword.connect.postgres.stream import ReplicationStream
from lastword.connect.postgres.tables import TableReader
from lastword.connect.postgres.toast import Filler, Incomplete, current_values
from lastword.connect.protocol import Chunk, Context, Position, SourceRecord
from lastword.errors import InvalidError

IDLE_S: Final = 0.5
LINGER_S: Final = 0.05
"""How long to wait for the rest of a transaction before its changes so far are appended."""
MAX_PASSED: Final = 20_000
"""After this many messages an empty chunk is yielded, if there was nothing in them."""


class PostgresConnector:
    """Reads tables of one database through one slot."""

    def __init__(self, options: Options, context: Context) -> None:
        self._context = context
        self._config = PgConfig.parse(options, context)
        self._database = Database(self._config.dsn)
        self._preparation = Preparation(self._database, self._config, context)
        self._envelope: Envelope | None = None
        self._filler: Filler | None = None
        self._rows: TableReader
        self._stream: ReplicationStream | None = None
        self._followed = False
        self._tables: dict[int, Table] = {}
        self._watch = PartitionWatch(())
        self._monitor = Monitor(self._database, self._config, context, self._preparation)

    # ---------------------------------------------------------------------------------------------- protocol

    def check(self) -> list[str]:
        return self._preparation.problems()

    def read(self, position: Position | None) -> Iterator[Chunk]:
        database = self._database
        database.check_server()
        followed = {} if position is None else PgPosition.from_json(position).tables
        tables = self._preparation.tables(followed)
        at = self._preparation.slot(position)
        if at is None:
            return
        for table in tables:
            if table.quoted not in at.tables:
                again = position is None and self._context.was_reset
                at.tables[table.quoted] = TableProgress(done=not self._config.reads_rows, sweep=again)
            at.tables[table.quoted].oid = table.oid
            at.tables[table.quoted].membership = table.membership
        self._tables = {table.oid: table for table in tables}
        self._watch = PartitionWatch(tables)
        if self._config.is_envelope:
            found = database.one("SELECT current_database()")
            self._envelope = Envelope(source=self._context.source, database=found[0] if found else "")
        self._filler = Filler(
            self._context.topics, partial(current_values, database), is_envelope=self._config.is_envelope
        )
        self._monitor.begin(self._tables, self._watch)
        self._rows = TableReader(
            database,
            self._config,
            self._context,
            monitor=self._monitor,
            watch=self._watch,
            envelope=self._envelope,
        )
        yield Chunk((), at.to_json())
        waiting = [progress for table in tables if not (progress := at.tables[table.quoted]).done]
        if not self._preparation.made_slot and any(progress.after is None for progress in waiting):
            yield from self._outwait_transactions(at)
        if waiting or any(at.tables[table.quoted].sweep for table in tables):
            yield from self._rows.read(tables, at)
        while True:
            changed = yield from self._follow(at)
            yield from self._rows.look_into_partitions(changed, at)

    def appended(self, position: Position | None) -> None:
        if self._stream is not None and position is not None:
            self._stream.flushed(parse_lsn(position["lsn"]))

    def look(self) -> None:
        self._monitor.look()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._database.close()

    # ------------------------------------------------------------------------------------------- preparation

    def _outwait_transactions(self, at: PgPosition) -> Iterator[Chunk]:
        """Wait for all transactions that are open now to end, before a table that was just published is read.

        Earlier changes of such a transaction to the table are in no snapshot yet, and not in the stream either:
        PostgreSQL sends a change only if the table was published when it was made. Creating a slot waits by itself.
        """
        last = self._database.next_transaction()
        while self._database.oldest_transaction() < last:
            yield Chunk((), at.to_json())
            if self._preparation.waits_for_transactions(IDLE_S):
                return

    # ----------------------------------------------------------------------------------------------- changes

    def _follow(self, at: PgPosition) -> Generator[Chunk, None, list[Table]]:
        """Follow the stream until it is past a change of partitions; return the tables that they belong to.

        Handling them takes time, during which PostgreSQL would hear nothing and end the stream.
        """
        yield from self._outwait_slot(at)
        stream = self._stream = ReplicationStream(
            self._database.dsn, slot=self._config.slot, publication=self._config.publication, start_lsn=at.lsn
        )
        try:
            return (yield from self._changes(stream, at))
        finally:
            stream.close()
            self._stream = None

    def _outwait_slot(self, at: PgPosition) -> Iterator[Chunk]:
        """Let PostgreSQL notice that the stream was closed. The stream reports another client's use of the slot."""
        until_s = monotonic_s() + IDLE_S
        while self._followed and monotonic_s() < until_s:
            slot = self._database.slot(self._config.slot)
            if slot is None or not slot.active:
                break
            yield Chunk((), at.to_json())
            self._context.wait(LINGER_S)
        self._followed = True

    def _changes(self, stream: ReplicationStream, at: PgPosition) -> Generator[Chunk, None, list[Table]]:
        changes = Changes(at, self)
        self._monitor.report("stream", at, now=True)
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
                        # Nothing of ours is in between: PostgreSQL may release the WAL of other changes.
                        at.lsn = max(at.lsn, stream.sent_lsn)
                    yield Chunk((), at.to_json())
                    self._monitor.report("stream", at)
                    if not changes.in_transaction and (changed := self._watch.passed(at.lsn)):
                        return changed
                    stream.wait(IDLE_S)
                    continue
            message = pgoutput.parse(data)
            if isinstance(message, Truncate):
                yield from changes.truncate(message, self._config.truncates)
            elif message is not None:
                changes.add(message)
            passed += 1
            if not changes.in_transaction and (changed := self._watch.passed(at.lsn)):
                yield changes.take()
                return changed
            if changes.is_full:
                self._monitor.report("stream", at)
                yield changes.take()
            elif passed % MAX_PASSED == 0 and changes.is_empty:
                # The changes are in the log already, or of no interest.
                yield Chunk((), at.to_json())

    def shape_of(self, relation: Relation) -> Shape | None:
        """Return the shape of a relation's rows as records; None if it is not one of this source's tables."""
        table = self._tables.get(relation.oid)
        if table is None:
            if any(
                (each.schema, each.name) == (relation.schema, relation.name) for each in self._tables.values()
            ):
                # A table that came before ours, or that has taken its place.
                self._preparation.check_tables(self._tables.values())
            return None
        if table.is_partitioned:
            # The stream describes it again when its partitions change, and at other times.
            self._monitor.check_soon()
        columns = [(each.name, each.type_oid) for each in relation.columns]
        if self._config.key:
            key: Sequence[str] = self._config.key
        elif relation.identity == "f":
            names = {name for name, _ in columns}
            if not set(table.key) <= names:
                table = self._tables[relation.oid] = self._database.table(table.quoted)
            key = table.key
        else:
            key = [each.name for each in relation.columns if each.is_key]
        if not key:
            raise InvalidError(
                f"{table.quoted} was changed while it had no key, so the changed rows are unknown. Give it a key. "
                f"{self._preparation.with_a_new_slot()}"
            )
        return self._rows.shape(table, columns, key)

    def pass_over(self, relation: int) -> None:
        """Raise InvalidError if a change is of a partition as a separate table; other tables don't matter."""
        if not self._watch.is_partition(relation):
            return
        self._preparation.check_tables(self._tables.values())
        raise InvalidError(
            f"Changes of a partition (oid {relation}) came as those of a separate table: the publication "
            f"{self._config.publication!r} was without publish_via_partition_root for a while. "
            f"{self._preparation.with_a_new_slot()}"
        )

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
        return self._config.fills
