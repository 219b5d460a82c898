"""The position of a source: which rows were read from which snapshot, and the place in the stream of changes.

Rows are read from plain snapshots of the database, taken after the slot was created. Each start of reading, the first
or one after a crash, begins an *epoch*: it has its own snapshot, and for each table the key after which it continued. A
change in the stream is left out if the snapshot that the row was read from has seen its transaction already. That makes
the switch to the stream exact, and lets an interrupted snapshot resume without reading anything again: each key has
been read in exactly one epoch, the last one that began before it.

Keys are compared here in PostgreSQL's order: integers as numbers, everything else by the bytes of its text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

OrderKey = tuple[int | bytes, ...]


def parse_lsn(text: str) -> int:
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The transactions that a snapshot has seen, as given by pg_current_snapshot()."""

    xmin: int
    xmax: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(each) for each in running.split(",") if each))

    def has_seen(self, xid: int) -> bool:
        """Return whether it sees a committed transaction. `xid` has 32 bits, those of the snapshot 64."""
        full = xid + (self.xmax & ~0xFFFFFFFF)
        if full - self.xmax >= 1 << 31:
            full -= 1 << 32
        elif self.xmax - full > 1 << 31:
            full += 1 << 32
        return full < self.xmin or (full < self.xmax and full not in self.running)


@dataclass(frozen=True, slots=True)
class Epoch:
    """One run of reading rows."""

    snapshot: str
    until_lsn: int
    """No transaction that commits from here on is part of the snapshot."""
    after: Mapping[str, list[str] | None]
    """For each table that it read, the key after which it began. None is the whole table."""


@dataclass(slots=True)
class TableProgress:
    oid: int = 0
    """The identity of the table: one that is dropped and recreated is another one."""
    rows: int = 0
    after: list[str] | None = None
    done: bool = False
    sweep: bool = False
    """Whether the topic may have rows that the table does not, and must be searched for them."""
    partitions: dict[str, str] | None = None
    """The marks of its partitions, see partitions.py."""
    membership: str = ""
    """The table's membership in the publication, see database.Table."""

    def to_json(self) -> dict[str, Any]:
        saved: dict[str, Any] = {"oid": self.oid, "rows": self.rows, "after": self.after, "done": self.done}
        if self.sweep:
            saved["sweep"] = True
        if self.partitions is not None:
            saved["partitions"] = dict(self.partitions)
        if self.membership:
            saved["membership"] = self.membership
        return saved


@dataclass(slots=True)
class PgPosition:
    """A position, converted to and from JSON."""

    lsn: int = 0
    """The end of the last transaction that is completely in the log."""
    commit_lsn: int = 0
    open_lsn: int = 0
    """The commit of the transaction that is partly in the log; `open_index` is the number of its changes there."""
    open_index: int = 0
    tables: dict[str, TableProgress] = field(default_factory=dict)
    epochs: list[Epoch] = field(default_factory=list)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> PgPosition:
        partial = saved.get("open", {})
        return cls(
            lsn=parse_lsn(saved["lsn"]),
            commit_lsn=parse_lsn(saved["commit"]),
            open_lsn=parse_lsn(partial.get("commit", "0/0")),
            open_index=partial.get("index", 0),
            tables={name: TableProgress(**each) for name, each in saved["tables"].items()},
            epochs=[
                Epoch(each["snapshot"], parse_lsn(each["until"]), each["after"])
                for each in saved.get("epochs", ())
            ],
        )

    def to_json(self) -> dict[str, Any]:
        saved: dict[str, Any] = {
            "lsn": lsn_text(self.lsn),
            "commit": lsn_text(self.commit_lsn),
            "tables": {name: each.to_json() for name, each in self.tables.items()},
        }
        if self.open_index:
            saved["open"] = {"commit": lsn_text(self.open_lsn), "index": self.open_index}
        if self.epochs:
            saved["epochs"] = [
                {"snapshot": each.snapshot, "until": lsn_text(each.until_lsn), "after": dict(each.after)}
                for each in self.epochs
            ]
        return saved


class Filter:
    """Finds the changes that are already in the rows that were read."""

    def __init__(self, epochs: Sequence[Epoch]) -> None:
        self._epochs = [(each, Snapshot.parse(each.snapshot)) for each in reversed(epochs)]

    def has_seen(self, xid: int, table: str, key: OrderKey, is_integer: Sequence[bool]) -> bool:
        """Return whether the row of a key was read from a snapshot that has seen a transaction."""
        for epoch, snapshot in self._epochs:
            if table not in epoch.after:
                continue
            after = epoch.after[table]
            if after is None or key > order_key(after, is_integer):
                return snapshot.has_seen(xid)
        return False


def order_key(texts: Sequence[str], is_integer: Sequence[bool]) -> OrderKey:
    return tuple(
        int(each) if integer else each.encode() for each, integer in zip(texts, is_integer, strict=True)
    )
