"""The prerequisites of a source: tables, rights, topics, the publication and the slot.

They are looked up, and created where `create` allows it. Errors name the problem and its solution.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from lastword.connect.postgres.config import PgConfig
from lastword.connect.postgres.database import Database, Slot, Table
from lastword.connect.postgres.partitions import marks_of
from lastword.connect.postgres.position import PgPosition, TableProgress, lsn_text
from lastword.connect.postgres.rights import Need, missing_rights
from lastword.connect.protocol import Context, Position
from lastword.errors import InvalidError, UnavailableError

logger = logging.getLogger(__name__)


class Preparation:
    """Prepares one source."""

    def __init__(self, database: Database, config: PgConfig, context: Context) -> None:
        self._database = database
        self._config = config
        self._context = context
        self.made_slot = False

    def problems(self) -> list[str]:
        """Return all problems, not only the first."""
        database = self._database
        database.check_server()
        problems: list[str] = []
        tables: list[Table] = []
        for name in self._config.tables:
            with _noted(problems):
                tables.append(database.table(name, key=self._config.key))
        with _noted(problems):
            self._check_topics(tables)
        for table in tables:
            with _noted(problems):
                self._context.needs_topic(self._config.topic(table), None)
            with _noted(problems):
                marks_of(database.rows, table)
        problems += missing_rights(database, self._need(tables))
        with _noted(problems):
            database.check_publication(self._config.publication, truncates=self._config.truncates)
        for table in tables:
            with _noted(problems):
                self._check_published(table)
        with _noted(problems):
            self._check_slot(database.slot(self._config.slot))
        return problems

    def tables(self, followed: Mapping[str, TableProgress]) -> list[Table]:
        """Return the tables as published; make sure that their topics exist. `followed` are those of the position."""
        database, name = self._database, self._config.publication
        tables = [database.table(name, key=self._config.key) for name in self._config.tables]
        self._check_topics(tables)
        for table in tables:
            known = followed.get(table.quoted)
            if known is not None and known.oid not in (0, table.oid):
                raise self._created_anew(table.quoted)
        if not database.publication_exists(name):
            if followed:
                raise InvalidError(
                    f"The publication {name!r} is gone, and with it the changes since then. {self.with_a_new_slot()}"
                )
            if not self._config.creates:
                raise InvalidError(
                    f"There is no publication {name!r}; `create: true` in the source's config creates it."
                )
        for table in tables:
            if table.quoted in followed:
                self._check_membership(table, followed[table.quoted].membership)
        if missing := missing_rights(database, self._need(tables)):
            raise InvalidError("; ".join(missing))
        if not database.publication_exists(name):
            database.create_publication(name, tables)
            logger.info("source %s: created the publication %s", self._config.source, name)
        database.check_publication(name, truncates=self._config.truncates)
        published = []
        for table in tables:
            found = database.published(table, name)
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
            self._context.needs_topic(self._config.topic(table), None)
        return published

    def slot(self, position: Position | None) -> PgPosition | None:
        """Return the position to begin at; None if the source must stop."""
        slot = self._database.slot(self._config.slot)
        if slot is None:
            if position is not None:
                raise InvalidError(
                    f"The slot {self._config.slot!r} is gone, and with it the changes since the last position. "
                    f"`lastword connect reset {self._config.source}` lets the source start over with a new snapshot."
                )
            self._check_slot(slot)
            if not self._database.create_slot(self._config.slot, self.waits_for_transactions):
                return None
            self.made_slot = True
            logger.info("source %s: created the slot %s", self._config.source, self._config.slot)
            slot = self._database.slot(self._config.slot)
            assert slot is not None
        self._check_slot(slot)
        if position is None:
            if slot.active:
                raise UnavailableError(
                    f"The slot {self._config.slot!r} is in use by another client, maybe a source of the same name; each of "
                    f"the two would miss the changes that the other has confirmed. Name another slot."
                )
            return PgPosition(lsn=slot.confirmed_lsn)
        at = PgPosition.from_json(position)
        self._database.check_reaches(at.commit_lsn)
        if self._context.restored is not None and slot.confirmed_lsn > at.lsn:
            raise InvalidError(
                f"The log was restored from the backup {self._context.restored}, which has the changes up to "
                f"{lsn_text(at.lsn)}; the slot {self._config.slot!r} has been confirmed up to {lsn_text(slot.confirmed_lsn)} since, so "
                f"PostgreSQL no longer sends the changes between the two. {self._begin_again()}"
            )
        return at

    def waits_for_transactions(self, wait_s: float) -> bool:
        self._context.report({"phase": "waiting for open transactions", "slot": self._config.slot})
        return self._context.wait(wait_s)

    def check_tables(self, tables: Iterable[Table]) -> None:
        """Raise InvalidError if a table is no longer the one that is followed: its changes would silently be missing."""
        for table in tables:
            oid = self._database.oid_of(table.quoted)
            if oid is None:
                raise InvalidError(
                    f"{table.quoted} is gone: it was dropped or renamed. Remove it from the source's config, or put the "
                    f"new name there."
                )
            if oid != table.oid:
                raise self._created_anew(table.quoted)
            self._check_membership(table, table.membership)

    def _check_membership(self, table: Table, known: str) -> None:
        """Raise InvalidError if a table is not in the publication any more, or was added again: it lacks changes."""
        found = self._database.published(table, self._config.publication)
        if found is None:
            raise self._unpublished(table.quoted)
        if known not in ("", found.membership):
            raise InvalidError(
                f"{table.quoted} was removed from the publication {self._config.publication!r} and added again, so the "
                f"changes in between are missing. {self._begin_again()}"
            )

    def _created_anew(self, table: str) -> InvalidError:
        return InvalidError(
            f"{table} was dropped and recreated since it was read: it is another table, and its topic has the rows of "
            f"the old one. {self._begin_again()}"
        )

    def _unpublished(self, table: str) -> InvalidError:
        return InvalidError(
            f"{table} is no longer in the publication {self._config.publication!r}, so its changes since then are missing. "
            f"Add it again (ALTER PUBLICATION … ADD TABLE {table}; `create: true` does so). {self._begin_again()}"
        )

    def _begin_again(self) -> str:
        source = self._config.source
        return (
            f"`lastword connect pause {source}`, `reset {source}` and `resume {source}` let the source start over with a "
            f"new snapshot."
        )

    def with_a_new_slot(self) -> str:
        """Return the way out if the changes that PostgreSQL has kept can't be read, only those from now on."""
        source = self._config.source
        return (
            f"`lastword connect pause {source}`, `SELECT pg_drop_replication_slot('{self._config.slot}')` in the database, and "
            f"`reset {source}` and `resume {source}` let the source start over with a new snapshot."
        )

    def lost(self) -> str:
        return (
            f"The slot {self._config.slot!r} is lost: PostgreSQL has removed WAL that it needed (max_slot_wal_keep_size). "
            f"Drop it, and let the source start over with `lastword connect reset {self._config.source}`."
        )

    def _need(self, tables: Sequence[Table]) -> Need:
        return Need(
            tables=tables,
            publication=self._config.publication,
            slot=self._config.slot,
            creates=self._config.creates,
        )

    def _check_published(self, table: Table) -> None:
        """Raise InvalidError if a table is not in the publication, and can't be added."""
        if self._database.published(table, self._config.publication) is not None:
            return
        self._database.check_partitions(table, self._config.publication)
        if not self._config.creates:
            raise InvalidError(
                f"{table.quoted} is not in the publication {self._config.publication!r}; add it with `create: true` in the "
                f"source's config, or with ALTER PUBLICATION … ADD TABLE."
            )

    def _check_topics(self, tables: Sequence[Table]) -> None:
        topics = [self._config.topic(table) for table in tables]
        for topic in topics:
            if topics.count(topic) > 1:
                raise InvalidError(
                    f"Two tables would have the topic {topic!r}; use {{schema}} in its name, too."
                )

    def _check_slot(self, slot: Slot | None) -> None:
        """Raise InvalidError if there is no slot and it may not be created, or if it can't be used."""
        if slot is None:
            if not self._config.creates:
                raise InvalidError(
                    f"There is no slot {self._config.slot!r}; `create: true` in the source's config creates it."
                )
            return
        if slot.plugin != "pgoutput" or not slot.is_of_this_database:
            raise InvalidError(
                f"The slot {self._config.slot!r} uses the plugin {slot.plugin!r}"
                f"{'' if slot.is_of_this_database else ' and belongs to another database'}; "
                f"it must use 'pgoutput' and belong to this database. Name another slot."
            )
        if slot.wal_status == "lost":
            raise InvalidError(self.lost())


@contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except InvalidError as error:
        problems.append(str(error))
