"""What others do in the database at the wrong moment: nothing is lost by it, or an error says so."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2.errors
import pytest
from tests.support.postgres import Cluster
from tests.support.sources import Sources, postgres_source, running
from tests.support.waiting import wait_until

import lastword
from lastword.connect import states
from lastword.connect.metrics import SLOT_LAG
from lastword.connect.postgres.database import Database
from lastword.connect.postgres.snapshot import SnapshotReader
from lastword.errors import UnavailableError
from lastword.folder import steps
from lastword.log import Log

LARGE = "repeat('x', 10000)"
WAITING = "waiting for open transactions"


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with lastword.open(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def transaction(cluster: Cluster) -> Iterator[Any]:
    """A connection of another client, in a transaction."""
    connection = cluster.connect()
    connection.autocommit = False
    yield connection
    connection.close()


def test_a_table_is_not_rewritten_between_the_snapshot_and_its_reading(cluster: Cluster) -> None:
    cluster.run(
        "CREATE TABLE rewritten (id int PRIMARY KEY, n int)",
        "INSERT INTO rewritten SELECT i, i FROM generate_series(1, 100) i",
    )
    database = Database(cluster.dsn)
    table = database.table("rewritten")
    reader = SnapshotReader(database, [table])
    try:
        # It would look empty to the snapshot, and no change would say what was in it.
        with pytest.raises(psycopg2.errors.LockNotAvailable):
            cluster.run("SET lock_timeout = 200", "ALTER TABLE rewritten ALTER n TYPE bigint")
        assert sum(len(lines) for lines in reader.read(table, None)) == 100
    finally:
        reader.close()
        database.close()


def test_a_table_that_somebody_changes_is_read_later(
    cluster: Cluster, transaction: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lastword.connect.postgres.snapshot.LOCK_WAIT_MS", 100)
    cluster.run("CREATE TABLE changing (id int PRIMARY KEY)")
    database = Database(cluster.dsn)
    table = database.table("changing")
    transaction.cursor().execute("LOCK TABLE changing IN ACCESS EXCLUSIVE MODE")
    with pytest.raises(UnavailableError, match="lock timeout"):
        SnapshotReader(database, [table])
    database.close()


def test_what_is_under_way_when_a_table_is_added_is_not_lost(
    cluster: Cluster, log: Log, transaction: Any
) -> None:
    cluster.run("CREATE TABLE old (id int PRIMARY KEY)", "CREATE TABLE young (id int PRIMARY KEY)")
    with running(log, {"added": postgres_source(cluster, "added.{table}", tables=["old"])}) as sources:
        sources.wait_for_phase("stream")
    transaction.cursor().execute("INSERT INTO young VALUES (1)")
    both = {"added": postgres_source(cluster, "added.{table}", tables=["old", "young"])}
    with running(log, both) as sources:
        sources.wait_for_phase(WAITING)
        transaction.commit()
        sources.wait_for_phase("stream")
        cluster.run("INSERT INTO young VALUES (2)")
        found = sources.wait_for_records("added.young", 2)
    assert found == [({"id": 1}, {"id": 1}), ({"id": 2}, {"id": 2})]


def test_a_source_that_waits_for_its_slot_says_so_and_can_be_stopped(
    cluster: Cluster, log: Log, transaction: Any
) -> None:
    cluster.run("CREATE TABLE held (id int PRIMARY KEY)")
    transaction.cursor().execute("INSERT INTO held VALUES (1)")
    source = {"held": postgres_source(cluster, "db.held", table="held")}
    with running(log, source) as sources:
        sources.wait_for_phase(WAITING)
        assert sources.connectors.stop(10) == []
    assert cluster.run("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'lastword_held'") == []
    with running(log, source) as sources:
        sources.wait_for_phase(WAITING)
        transaction.commit()
        assert sources.wait_for_records("db.held", 1) == [({"id": 1}, {"id": 1})]


def test_spaces_around_json_do_not_matter(cluster: Cluster, log: Log) -> None:
    cluster.run(
        "CREATE TABLE spaced (id int PRIMARY KEY, document json, large text, n int)",
        "ALTER TABLE spaced ALTER large SET STORAGE EXTERNAL",
        f"INSERT INTO spaced VALUES (1, E' {{\"a\": 1}}\\n', {LARGE}, 1)",
    )
    with running(log, {"spaced": postgres_source(cluster, "db.spaced", table="spaced")}) as sources:
        sources.wait_for_phase("stream")
        cluster.run("UPDATE spaced SET n = 2")
        _, value = sources.wait_for_records("db.spaced", 2)[-1]
        assert value == {"id": 1, "document": {"a": 1}, "large": "x" * 10000, "n": 2}


def test_envelopes_of_a_row_that_got_another_key_are_filled_from_the_log(cluster: Cluster, log: Log) -> None:
    cluster.run(
        "CREATE TABLE moved (id int PRIMARY KEY, large text)",
        "ALTER TABLE moved ALTER large SET STORAGE EXTERNAL",
        f"INSERT INTO moved VALUES (1, {LARGE})",
    )
    source = postgres_source(cluster, "db.moved", table="moved", format="debezium")
    with running(log, {"moved": source}) as sources:
        sources.wait_for_phase("stream")
        cluster.run("BEGIN; UPDATE moved SET id = 2; DELETE FROM moved; COMMIT")
        found = sources.wait_for_records("db.moved", 6)
    assert found[3][1]["after"] == {"id": 2, "large": "x" * 10000}


def test_large_values_that_are_filled_go_in_small_chunks(
    cluster: Cluster, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lastword.connect.postgres.changes.FILL_BYTES", 100_000)
    sizes: list[int] = []
    complete = "lastword.connect.postgres.toast.Filler.complete"
    from lastword.connect.postgres.toast import Filler

    original = Filler.complete

    def counted(self: Filler, records: list[Any], incomplete: dict[int, Any]) -> None:
        sizes.append(len(incomplete))
        original(self, records, incomplete)

    monkeypatch.setattr(complete, counted)
    cluster.run(
        "CREATE TABLE bulky (id int PRIMARY KEY, large text, n int)",
        "ALTER TABLE bulky ALTER large SET STORAGE EXTERNAL",
        f"INSERT INTO bulky SELECT i, {LARGE}, 1 FROM generate_series(1, 300) i",
    )
    with running(log, {"bulky": postgres_source(cluster, "db.bulky", table="bulky")}) as sources:
        sources.wait_for_phase("stream")
        cluster.run("UPDATE bulky SET n = 2")
        found = sources.wait_for_records("db.bulky", 600)
    assert all(value["large"] == "x" * 10000 for _, value in found)
    assert sum(sizes) == 300
    assert max(sizes) <= 64 and max(sizes[1:]) <= 16


def test_a_truncate_takes_keys_of_others_with_it(cluster: Cluster, log: Log) -> None:
    cluster.run("CREATE TABLE shared (id int PRIMARY KEY)", "INSERT INTO shared VALUES (1)")
    log.create_topic("db.shared", partitions=1)
    log.topic("db.shared").append(b"alice", b"{}")
    with running(log, {"shared": postgres_source(cluster, "db.shared", table="shared")}) as sources:
        sources.wait_for_phase("stream")
        cluster.run("TRUNCATE shared")
        sources.wait(lambda: len(list(log.topic("db.shared").read())) == 4)
    assert not [key for key, value in _newest(log, "db.shared").items() if value is not None]


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("int", "i"),
        ("bytea", "decode(lpad(to_hex(i * 7), 4, '0'), 'hex')"),
        ("timestamp", "timestamp '2026-01-01' + (i % 4) * interval '1 day' + (i / 4) * interval '1 minute'"),
        ("timestamptz", "timestamptz '2026-01-01' + i * interval '7 hours'"),
        ("float8", "(i - 20) * 1e14"),
        ("boolean, also int", "i % 2 = 0, i"),
    ],
)
def test_a_truncate_between_two_parts_of_a_snapshot_ends_the_rows_of_the_first(
    cluster: Cluster, log: Log, monkeypatch: pytest.MonkeyPatch, kind: str, key: str
) -> None:
    monkeypatch.setattr("lastword.connect.postgres.snapshot.ROWS", 10)
    cluster.run(
        "DROP TABLE IF EXISTS cut",
        f"CREATE TABLE cut (k {kind}, v int)",
        f"ALTER TABLE cut ADD PRIMARY KEY (k{', also' if 'also' in kind else ''})",
        f"INSERT INTO cut SELECT {key}, 1 FROM generate_series(1, 40) i",
    )
    seen: list[str] = []

    def pause_in_the_middle(step: str) -> None:
        seen.append(step)
        if step == "connect.appended" and seen.count(step) == 2:
            states.pause(log.path, "cut")

    steps.install(pause_in_the_middle)
    try:
        with running(log, {"cut": postgres_source(cluster, "db.cut", table="cut", slot="cut")}) as sources:
            sources.wait(lambda: sources.status()["state"] == "paused")
            assert sources.status()["records"] == 20
            cluster.run("TRUNCATE cut", f"INSERT INTO cut SELECT {key}, 2 FROM generate_series(3, 38) i")
            states.resume(log.path, "cut")
            sources.wait_for_phase("stream")
            cluster.run(f"INSERT INTO cut SELECT {key}, 3 FROM generate_series(40, 40) i")
            sources.wait(lambda: 3 in [value["v"] for _, value in sources.records("db.cut") if value])
    finally:
        steps.install(None)
        # The server gives a slot back a moment after its client has gone.
        wait_until(
            lambda: cluster.run("SELECT 1 FROM pg_replication_slots WHERE slot_name = 'cut' AND active") == []
        )
        cluster.drop_slot("cut")
        cluster.run("DROP PUBLICATION lastword_cut")
    state = [value for value in _newest(log, "db.cut").values() if value is not None]
    assert sorted(json.loads(each)["v"] for each in state) == [2] * 36 + [3]


def test_a_publication_that_is_gone_is_not_quietly_made_again(cluster: Cluster, log: Log) -> None:
    cluster.run("CREATE TABLE listed (id int PRIMARY KEY)")
    source = {"listed": postgres_source(cluster, "db.listed", table="listed")}
    with running(log, source) as sources:
        sources.wait_for_phase("stream")
    cluster.run("DROP PUBLICATION lastword_listed", "INSERT INTO listed VALUES (1)")
    with running(log, source) as sources:
        sources.wait_for_error("The publication 'lastword_listed' is gone")
        _begin_with_a_new_slot(cluster, log, sources, "listed")
        assert sources.wait_for_records("db.listed", 1) == [({"id": 1}, {"id": 1})]


def test_changes_of_a_time_without_a_key_are_told_and_stay_told(cluster: Cluster, log: Log) -> None:
    cluster.run("CREATE TABLE keyless (id int PRIMARY KEY)")
    source = {"keyless": postgres_source(cluster, "db.keyless", table="keyless")}
    with running(log, source) as sources:
        sources.wait_for_phase("stream")
    cluster.run(
        "ALTER TABLE keyless DROP CONSTRAINT keyless_pkey",
        "INSERT INTO keyless VALUES (1)",
        "ALTER TABLE keyless ADD PRIMARY KEY (id)",
    )
    with running(log, source) as sources:
        sources.wait_for_error("was changed while it had no key")
        errors = sources.status()["errors"]
        until_s = time.monotonic() + 60
        while sources.status()["errors"] < errors + 3:
            # It is tried again and again, and never said to be well.
            assert sources.status()["error"] is not None and sources.status()["state"] == "failing"
            assert time.monotonic() < until_s
        _begin_with_a_new_slot(cluster, log, sources, "keyless")
        assert sources.wait_for_records("db.keyless", 1) == [({"id": 1}, {"id": 1})]


def test_what_would_be_missing_is_told_before_anything_is_read(cluster: Cluster, log: Log) -> None:
    cluster.run(
        "CREATE TABLE untruncated (id int PRIMARY KEY)",
        "CREATE PUBLICATION partly FOR TABLE untruncated WITH (publish = 'insert, update, delete')",
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100)",
        "CREATE PUBLICATION leaves FOR TABLE parts",
        "CREATE TABLE twice (n int, id int GENERATED ALWAYS AS (n * 2) STORED PRIMARY KEY)",
    )
    for table, publication, text in [
        ("untruncated", "partly", "'partly' does not publish truncates"),
        ("parts", "leaves", "publish_via_partition_root = true"),
        ("twice", "made", "The key column 'id' of public.twice is generated"),
    ]:
        source = postgres_source(cluster, f"db.{table}", table=table, publication=publication)
        with running(log, {table: source}) as sources:
            sources.wait_for_error(text)
    ignoring = postgres_source(
        cluster, "db.untruncated", table="untruncated", publication="partly", truncate="ignore"
    )
    with running(log, {"ignoring": ignoring}) as sources:
        sources.wait_for_phase("stream")


def test_a_slot_that_somebody_else_uses_is_not_begun_with(cluster: Cluster, log: Log, tmp_path: Path) -> None:
    cluster.run("CREATE TABLE contested (id int PRIMARY KEY)", "INSERT INTO contested VALUES (1)")
    source = {"contested": postgres_source(cluster, "db.contested", table="contested")}
    with lastword.open(tmp_path / "other") as other, running(log, source) as sources:
        sources.wait_for_phase("stream")
        with running(other, source) as later:
            later.wait_for_error("The slot 'lastword_contested' is in use by another client")
        assert not list(other.topic("db.contested").read())


def test_slot_lag_is_shown_of_sources_that_are_paused_or_failing(
    cluster: Cluster, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lastword.connect.runner.WATCH_S", 0.2)
    cluster.run("CREATE TABLE resting (id int PRIMARY KEY, large text)")
    source = {
        "resting": postgres_source(cluster, "db.resting", table="resting", slot_lag_warn_bytes="100000")
    }
    with running(log, source) as sources:
        sources.wait_for_phase("stream")
        states.pause(log.path, "resting")
        sources.wait(lambda: sources.status()["state"] == "paused")
        before = SLOT_LAG.labels("resting")._value.get()
        cluster.run(f"INSERT INTO resting SELECT i, {LARGE} || i FROM generate_series(1, 2000) i")
        sources.wait(lambda: SLOT_LAG.labels("resting")._value.get() > before + 100_000)
        assert "PostgreSQL keeps" in sources.status()["details"]["warning"]
        cluster.run("DROP PUBLICATION lastword_resting")
        states.resume(log.path, "resting")
        sources.wait_for_error("is gone")
        before = SLOT_LAG.labels("resting")._value.get()
        cluster.run(f"INSERT INTO resting SELECT -i, {LARGE} || i FROM generate_series(1, 2000) i")
        sources.wait(lambda: SLOT_LAG.labels("resting")._value.get() > before + 100_000)


def _begin_with_a_new_slot(cluster: Cluster, log: Log, sources: Sources, source: str) -> None:
    """As the error says."""
    states.pause(log.path, source)
    sources.wait(lambda: sources.status()["state"] == "paused")
    cluster.drop_slot(f"lastword_{source}")
    states.reset(log.path, source)
    states.resume(log.path, source)


def _newest(log: Log, topic: str) -> dict[bytes | None, bytes | None]:
    return {each.key: each.value for each in log.topic(topic).read()}
