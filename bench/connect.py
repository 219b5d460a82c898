"""Change capture from PostgreSQL beside PostgreSQL's own tools: python -m bench.connect [--quick] [--json FILE]

The first snapshot is compared with `COPY` of the same rows into a file by psql; following changes with pg_recvlogical
writing the same stream into a file. Both only move bytes: they are ceilings. Sides take turns, round by round.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from tests.support.postgres import Cluster, running_cluster

import lastword
from bench.support import Results, console, median, timed
from lastword.connect import ConnectConfig, Connectors
from lastword.connect.postgres.position import parse_lsn

TABLE = """
CREATE TABLE people (
    id bigint PRIMARY KEY, email text, first_name text, last_name text, plan text,
    balance numeric(12,2), active boolean, updated_at timestamptz, visits int
)
"""
ROW = "'user' || i || '@example.com', 'Amalia', 'Heinrich', 'team', i * 1.01, true, now(), i % 1000"
CHANGES_IN_TRANSACTION = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = 50_000 if args.quick else 500_000
    results = Results("connect")
    folder = Path(tempfile.mkdtemp(prefix="lastword-bench-"))
    try:
        with running_cluster() as cluster:
            cluster.run(
                TABLE,
                f"INSERT INTO people SELECT i, {ROW} FROM generate_series(1, {rows}) i",
                "VACUUM ANALYZE people",
            )
            cluster.run("CREATE PUBLICATION bench FOR TABLE people")
            measure(cluster, folder, rows, args.rounds, results)
    finally:
        shutil.rmtree(folder)
    results.show("Change capture: rows or changes a second, ratio of medians")
    results.save(args.json)


def measure(cluster: Cluster, folder: Path, rows: int, rounds: int, results: Results) -> None:
    changes = rows // 2
    times: dict[str, list[float]] = {"COPY": [], "snapshot": [], "pg_recvlogical": [], "stream": []}
    for number in range(rounds):
        console.print(f"round {number + 1} of {rounds}")
        times["COPY"].append(timed(lambda: copy(cluster, folder)))
        with lastword.open(folder / f"log-{number}") as log:
            times["snapshot"].append(follow(cluster, log, rows, None))
            cluster.run("SELECT pg_create_logical_replication_slot('peer', 'pgoutput')")
            change(cluster, changes)
            end = cluster.run("SELECT pg_current_wal_insert_lsn()::text")[0][0]
            times["pg_recvlogical"].append(timed(lambda: receive(cluster, folder, end)))
            times["stream"].append(follow(cluster, log, rows + changes, end))
        shutil.rmtree(folder / f"log-{number}")
        for slot in ("peer", "lastword_people"):
            drop_slot(cluster, slot)
    for part, ceiling, count in (("snapshot", "COPY", rows), ("stream", "pg_recvlogical", changes)):
        own, peer = median(times[part]), median(times[ceiling])
        results.add(
            part=part,
            records=count,
            per_s=round(count / own),
            ceiling=ceiling,
            ceiling_per_s=round(count / peer),
            ratio=round(peer / own, 3),
            seconds=[round(each, 3) for each in times[part]],
            ceiling_seconds=[round(each, 3) for each in times[ceiling]],
        )


def copy(cluster: Cluster, folder: Path) -> None:
    query = f"\\copy (SELECT * FROM people ORDER BY id) TO '{folder / 'copy'}'"
    subprocess.run(
        [cluster.programs / "psql", "-q", "-h", str(cluster.folder), "-U", "postgres", "-c", query],
        check=True,
    )


def receive(cluster: Cluster, folder: Path, end: str) -> None:
    subprocess.run(
        [
            cluster.programs / "pg_recvlogical",
            *("-h", str(cluster.folder), "-U", "postgres", "-d", "postgres", "--slot", "peer", "--start"),
            *("-o", "proto_version=1", "-o", "publication_names=bench", "--endpos", end, "--no-loop"),
            *("-f", str(folder / "received")),
        ],
        check=True,
    )


def change(cluster: Cluster, changes: int) -> None:
    """Updates of one row each, some in a transaction."""
    connection = cluster.connect()
    connection.autocommit = False
    with connection.cursor() as cursor:
        for first in range(0, changes, CHANGES_IN_TRANSACTION):
            cursor.execute(
                "UPDATE people SET visits = visits + 1 WHERE id > %s AND id <= %s",
                [first, first + CHANGES_IN_TRANSACTION],
            )
            connection.commit()
    connection.close()


def follow(cluster: Cluster, log: lastword.Log, records: int, end: str | None) -> float:
    """Run the source until the topic has so many records, and it has come to the end; from its start, how long."""
    config = ConnectConfig.from_mapping(
        {
            "sources": {
                "people": {
                    "connector": "postgres-cdc",
                    "topic": "db.people",
                    "config": {
                        "dsn": cluster.dsn,
                        "table": "people",
                        "publication": "bench",
                        "create": "true",
                    },
                }
            },
            "settings": {"topic": {"auto_create": "true", "default_config": {"cleanup.policy": "compact"}}},
        }
    )
    started = time.perf_counter()
    with Connectors(log, config) as connectors:
        while True:
            status = connectors.status()[0]
            assert status["error"] is None, status["error"]
            if status["records"] >= records and (
                end is None or parse_lsn(status["position"]["lsn"]) >= parse_lsn(end)
            ):
                return time.perf_counter() - started
            time.sleep(0.005)


def drop_slot(cluster: Cluster, slot: str) -> None:
    while cluster.run(f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{slot}' AND active"):
        time.sleep(0.05)
    cluster.run(f"SELECT pg_drop_replication_slot('{slot}')")


if __name__ == "__main__":
    main()
