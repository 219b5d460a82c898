"""The progress of a source, and the WAL that PostgreSQL keeps for it: looked at every few seconds, and reported."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

from lastword.clock import monotonic_s
from lastword.connect.postgres.config import PgConfig
from lastword.connect.postgres.database import Database, Slot, Table, where
from lastword.connect.postgres.partitions import PartitionWatch
from lastword.connect.postgres.position import PgPosition
from lastword.connect.postgres.preparation import Preparation
from lastword.connect.protocol import Context
from lastword.errors import InvalidError

logger = logging.getLogger(__name__)

MONITOR_S: Final = 10.0


class Monitor:
    """Reports on a source. Its looks at the catalog also notice tables and partitions that have changed."""

    def __init__(
        self, database: Database, config: PgConfig, context: Context, preparation: Preparation
    ) -> None:
        self._database = database
        self._config = config
        self._context = context
        self._preparation = preparation
        self._tables: Mapping[int, Table] = {}
        self._watch = PartitionWatch(())
        self._next_check_s = 0.0
        self._warned = False

    def begin(self, tables: Mapping[int, Table], watch: PartitionWatch) -> None:
        """Report on these tables from now on."""
        self._tables = tables
        self._watch = watch

    def check_soon(self) -> None:
        """Look at the next report, however soon that is."""
        self._next_check_s = 0.0

    def report(self, phase: str, at: PgPosition, *, now: bool = False) -> None:
        """Report the progress, and the WAL that PostgreSQL keeps for the source; warn before a disk fills."""
        if not now and monotonic_s() < self._next_check_s:
            return
        self._next_check_s = monotonic_s() + MONITOR_S
        facts: dict[str, Any] = {
            "phase": phase,
            "database": where(self._database.dsn),
            "slot": self._config.slot,
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
            self._preparation.check_tables(self._tables.values())
            self._watch.check(self._database.rows, at)
        slot = self._database.slot(self._config.slot)
        if slot is not None:
            if slot.wal_status == "lost":
                raise InvalidError(self._preparation.lost())
            facts |= self._slot_facts(slot)
        self._context.report(facts)

    def look(self) -> None:
        """Report the WAL of the slot, which PostgreSQL keeps even while nothing reads it."""
        slot = self._database.slot(self._config.slot)
        if slot is not None:
            self._context.report(self._slot_facts(slot))

    def _slot_facts(self, slot: Slot) -> dict[str, Any]:
        short = slot.safe_bytes is not None and slot.safe_bytes < self._config.lag_warn_bytes
        is_long = slot.lag_bytes >= self._config.lag_warn_bytes or slot.wal_status == "unreserved" or short
        warning = None
        if is_long:
            warning = (
                f"PostgreSQL keeps {slot.lag_bytes >> 20} MiB of WAL for the slot {self._config.slot}"
                + (
                    f", which is lost after {slot.safe_bytes >> 20} MiB more"
                    if slot.safe_bytes is not None
                    else ""
                )
            )
            if not self._warned:
                logger.warning("source %s: %s", self._context.source, warning)
        self._warned = is_long
        return {"slot_lag_bytes": slot.lag_bytes, "wal_status": slot.wal_status, "warning": warning}
