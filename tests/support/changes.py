"""Random transactions on two tables, what they did to each row in the order of their commits, and the check of topics.

Each row that is written gets a version that no other has. A transaction also writes its number into a ledger: when
PostgreSQL dies while it commits, the ledger tells whether it did.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import psycopg2
from tests.support.postgres import Cluster

from lastword.log import Log

ACCOUNTS, ORDERS = "public.accounts", '"Shop"."Orders"'
TOPICS = {ACCOUNTS: "db.accounts", ORDERS: "db.Orders"}
DEADLINE_S = 180

Key = tuple[Any, ...]
Event = int | None
"""The version that a row got; None if it was deleted."""


def create_tables(cluster: Cluster, rows: int) -> None:
    cluster.run(
        "CREATE TABLE ledger (n int PRIMARY KEY)",
        "CREATE TABLE accounts (id int PRIMARY KEY, version int NOT NULL, note text, big text)",
        "ALTER TABLE accounts ALTER big SET STORAGE EXTERNAL",
        'CREATE SCHEMA "Shop"',
        'CREATE TABLE "Shop"."Orders" ("Region" text, "no" int, version int NOT NULL, note text, '
        'PRIMARY KEY ("Region", "no"))',
        f"INSERT INTO accounts SELECT i, -i, 'first', repeat('x', 3000) || i FROM generate_series(1, {rows}) i",
        f"INSERT INTO \"Shop\".\"Orders\" SELECT 'É' || i % 7, i, -i, 'first' FROM generate_series(1, {rows}) i",
    )


class Workload:
    """Commits transactions in a thread of its own, and knows what it has done."""

    def __init__(self, cluster: Cluster, seed: int, rows: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.history: dict[str, dict[Key, list[Event]]] = {
            ACCOUNTS: defaultdict(list, {(i,): [-i] for i in range(1, rows + 1)}),
            ORDERS: defaultdict(list, {(f"É{i % 7}", i): [-i] for i in range(1, rows + 1)}),
        }
        self.must_have: dict[str, dict[Key, int]] = {}
        """From which event on each row's events must be in the log: those after the snapshot was complete."""
        self.rows = rows
        self.versions = 0
        self.transactions = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def snapshot_is_complete(self) -> None:
        with self._lock:
            self.must_have = {
                table: {key: len(events) for key, events in rows.items()}
                for table, rows in self.history.items()
            }

    def _run(self) -> None:
        connection = None
        try:
            while not self._stop.is_set():
                try:
                    connection = connection or psycopg2.connect(self.cluster.dsn)
                    self._transaction(connection)
                except psycopg2.Error:
                    connection = None
                    time.sleep(0.02)
                self._stop.wait(self.random.choice([0, 0, 0.002, 0.01]))
        except BaseException as error:  # noqa: BLE001
            self._error = error

    def _transaction(self, connection: Any) -> None:
        self.transactions += 1
        events: list[tuple[str, Key, Event]] = []
        size = self.random.choice([1, 1, 2, 5, 20, 150])
        try:
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO ledger VALUES (%s)", [self.transactions])
                for _ in range(size):
                    self._change(cursor, events)
            connection.commit()
        except psycopg2.Error:
            if not self._is_committed(self.transactions):
                return
        with self._lock:
            for table, key, event in events:
                self.history[table][key].append(event)

    def _is_committed(self, number: int) -> bool:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                return bool(self.cluster.run(f"SELECT 1 FROM ledger WHERE n = {number}"))
            except psycopg2.Error:
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def _change(self, cursor: Any, events: list[tuple[str, Key, Event]]) -> None:
        choose = self.random
        self.versions += 1
        version, number = self.versions, choose.randint(1, self.rows + 50)
        what = choose.random()
        if choose.random() < 0.5:
            if what < 0.25:
                cursor.execute(
                    "INSERT INTO accounts VALUES (%s, %s, 'new', %s) ON CONFLICT (id) DO UPDATE "
                    "SET version = excluded.version, big = excluded.big",
                    [number, version, str(version) * 900],
                )
                events.append((ACCOUNTS, (number,), version))
            elif what < 0.75:
                cursor.execute("UPDATE accounts SET version = %s WHERE id = %s", [version, number])
                events += [(ACCOUNTS, (number,), version)] * cursor.rowcount
            elif what < 0.9:
                cursor.execute("DELETE FROM accounts WHERE id = %s", [number])
                events += [(ACCOUNTS, (number,), None)] * cursor.rowcount
            else:
                other = self.rows + 1000 + version
                cursor.execute(
                    "UPDATE accounts SET id = %s, version = %s WHERE id = %s", [other, version, number]
                )
                if cursor.rowcount:
                    events += [(ACCOUNTS, (number,), None), (ACCOUNTS, (other,), version)]
            return
        region = f"É{number % 7}"
        if what < 0.7:
            cursor.execute(
                'INSERT INTO "Shop"."Orders" VALUES (%s, %s, %s, %s) ON CONFLICT ("Region", "no") DO UPDATE '
                "SET version = excluded.version",
                [region, number, version, 'tab\t"quote" back\\slash\nline'],
            )
            events.append((ORDERS, (region, number), version))
        else:
            cursor.execute('DELETE FROM "Shop"."Orders" WHERE "Region" = %s AND "no" = %s', [region, number])
            events += [(ORDERS, (region, number), None)] * cursor.rowcount

    # ------------------------------------------------------------------------------------------------ check

    def check(self, log: Log) -> None:
        """The topics have the tables' rows as their state, and each row's events in the order of their commits, once."""
        for table, topic in TOPICS.items():
            opened = log.topic(topic)
            found: dict[Key, list[Event]] = defaultdict(list)
            for record in opened.read():
                assert record.key is not None
                key = tuple(json.loads(record.key).values())
                found[key].append(None if record.value is None else json.loads(record.value)["version"])
            self._check_events(table, found)
            state = {row["key"]: json.loads(row["value"]) for row in opened.state().to_pylist()}
            rows = {
                json.dumps(row["key"], separators=(",", ":"), ensure_ascii=False).encode(): row["row"]
                for row in self._rows(table)
            }
            assert state == rows, (table, _difference(state, rows))

    def _check_events(self, table: str, found: Mapping[Key, list[Event]]) -> None:
        history = self.history[table]
        assert set(found) <= set(history)
        for key, events in history.items():
            own = found.get(key, [])
            assert own == events[len(events) - len(own) :], (
                table,
                key,
                "in another order, or twice",
                own,
                events,
            )
            assert not own or own[0] is not None, (table, key, "begins with a tombstone", own, events)
            needed = len(events) - self.must_have[table].get(key, 0)
            assert len(own) >= needed, (table, key, "changes are missing", own, events, needed)

    def _rows(self, table: str) -> list[dict[str, Any]]:
        if table == ACCOUNTS:
            found = self.cluster.run("SELECT id, version, note, big FROM accounts")
            return [
                {"key": {"id": i}, "row": {"id": i, "version": v, "note": n, "big": b}}
                for i, v, n, b in found
            ]
        found = self.cluster.run('SELECT "Region", "no", version, note FROM "Shop"."Orders"')
        return [
            {"key": {"Region": r, "no": n}, "row": {"Region": r, "no": n, "version": v, "note": t}}
            for r, n, v, t in found
        ]


def _difference(left: Mapping[bytes, Any], right: Mapping[bytes, Any]) -> Any:
    keys = [key for key in {*left, *right} if left.get(key) != right.get(key)]
    return [(key, left.get(key), right.get(key)) for key in sorted(keys)[:3]]


def config_of(cluster: Cluster) -> dict[str, Any]:
    return {
        "sources": {
            "shop": {
                "connector": "postgres-cdc",
                "topic": "db.{table}",
                "config": {"dsn": cluster.dsn, "tables": ["accounts", ORDERS], "create": "true"},
            }
        },
        "settings": {
            "topic": {
                "auto_create": "true",
                "partitions": 2,
                "default_config": {"cleanup.policy": "compact"},
            },
            "retry": {"first_ms": 20, "max_ms": 200},
        },
    }
