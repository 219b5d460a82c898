"""The messages of a slot, over a connection in replication mode.

psycopg2 returns each message as it comes and reads no further than it is asked to, so that a transaction of any size
passes through in bounded memory: PostgreSQL waits. The appended position is sent back as the flushed position, at least
every few seconds, and only that lets PostgreSQL release its WAL.
"""

from __future__ import annotations

import select
from typing import Any, Final

import psycopg2
import psycopg2.extras

from lastword.clock import monotonic_s
from lastword.connect.postgres.database import connect, errors_of
from lastword.errors import UnavailableError

FEEDBACK_S: Final = 2.0


def check_replication(dsn: str) -> None:
    """Open a connection in replication mode, and close it. Raise an error if that is not allowed."""
    connect(dsn, connection_factory=psycopg2.extras.LogicalReplicationConnection).close()


class ReplicationStream:
    """An open stream. It holds the slot until it is closed."""

    def __init__(self, dsn: str, *, slot: str, publication: str, start_lsn: int) -> None:
        self._dsn = dsn
        self._connection = connect(dsn, connection_factory=psycopg2.extras.LogicalReplicationConnection)
        self._cursor: Any = self._connection.cursor()
        self._fed_back_s = 0.0
        self._flushed_lsn = 0
        try:
            with errors_of(dsn):
                self._cursor.start_replication(
                    slot_name=slot,
                    start_lsn=start_lsn,
                    decode=False,
                    status_interval=FEEDBACK_S,
                    options={
                        "proto_version": "1",
                        "publication_names": '"' + publication.replace('"', '""') + '"',
                    },
                )
        except BaseException:
            self.close()
            raise

    def read(self) -> bytes | None:
        """Return the next message; None if it is not there yet."""
        try:
            message = self._cursor.read_message()
        except psycopg2.Error:
            # Called for every message: a context manager around each call would cost more than the call.
            with errors_of(self._dsn):
                raise
        return None if message is None else message.payload

    def wait(self, wait_s: float) -> None:
        """Wait until there is something to read, or the time is over."""
        with errors_of(self._dsn):
            try:
                select.select([self._cursor], [], [], wait_s)
            except ValueError as error:
                raise UnavailableError("The connection to PostgreSQL was closed.") from error

    @property
    def sent_lsn(self) -> int:
        """The position up to which PostgreSQL has sent everything for this slot."""
        return int(self._cursor.wal_end)

    def flushed(self, lsn: int) -> None:
        """Tell PostgreSQL that everything before a position is durable here."""
        self._flushed_lsn = max(self._flushed_lsn, lsn)
        now_s = monotonic_s()
        due = now_s - self._fed_back_s >= FEEDBACK_S
        with errors_of(self._dsn):
            self._cursor.send_feedback(flush_lsn=self._flushed_lsn, force=due)
        if due:
            self._fed_back_s = now_s

    def close(self) -> None:
        try:
            if self._flushed_lsn and not self._connection.closed:
                self._cursor.send_feedback(flush_lsn=self._flushed_lsn, force=True)
        except psycopg2.Error:
            # It is sent again at the next start.
            pass
        finally:
            self._connection.close()
