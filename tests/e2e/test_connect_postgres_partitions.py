"""Partitions that come, go and are emptied, and rows that went before a reset: the topic ends with what the table has."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.postgres import Cluster
from tests.support.sources import Sources, postgres_source, running

import lastword
from lastword.connect import states
from lastword.folder import steps
from lastword.log import Log

NUMBERS = itertools.count(1)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with lastword.open(tmp_path / "data") as opened:
        yield opened


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog is looked at all the time, not every few seconds."""
    monkeypatch.setattr("lastword.connect.postgres.monitor.MONITOR_S", 0.1)


@pytest.fixture
def parted(cluster: Cluster) -> str:
    """A table of three partitions, one of them with a partition of its own: a_1 below 10, a_2 below 20, b_1 below 30."""
    name = f"parted_{next(NUMBERS)}"
    cluster.run(
        f"CREATE TABLE {name} (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
        f"CREATE TABLE {name}_a_1 PARTITION OF {name} FOR VALUES FROM (0) TO (10)",
        f"CREATE TABLE {name}_a_2 PARTITION OF {name} FOR VALUES FROM (10) TO (20)",
        f"CREATE TABLE {name}_b PARTITION OF {name} FOR VALUES FROM (20) TO (30) PARTITION BY RANGE (id)",
        f"CREATE TABLE {name}_b_1 PARTITION OF {name}_b FOR VALUES FROM (20) TO (30)",
        f"INSERT INTO {name} VALUES (1, 1), (2, 1), (11, 1), (12, 1), (21, 1), (22, 1)",
    )
    return name


def source(cluster: Cluster, table: str, **config: Any) -> dict[str, Any]:
    return {table: postgres_source(cluster, f"db.{table}", table=table, **config)}


def state(sources: Sources, table: str) -> dict[int, int]:
    """The value of each key, by the topic."""
    newest = {key["id"]: value for key, value in sources.records(f"db.{table}")}
    return {key: value["v"] for key, value in newest.items() if value is not None}


def rows(cluster: Cluster, table: str) -> dict[int, int]:
    return dict(cluster.run(f"SELECT id, v FROM {table}"))


def same(cluster: Cluster, sources: Sources, table: str) -> None:
    """Wait until the topic has what the table has."""
    sources.wait(lambda: state(sources, table) == rows(cluster, table))
    assert sources.status()["error"] is None


CHANGES = {
    "truncated": ["TRUNCATE {t}_a_1"],
    "truncated_and_filled": ["BEGIN; TRUNCATE {t}_a_1; INSERT INTO {t} VALUES (2, 2), (3, 2); COMMIT"],
    "sub_root_truncated": ["TRUNCATE {t}_b"],
    "dropped": ["UPDATE {t} SET v = 5 WHERE id = 2", "DROP TABLE {t}_a_1"],
    "detached": ["ALTER TABLE {t} DETACH PARTITION {t}_a_1", "INSERT INTO {t}_a_1 VALUES (5, 5)"],
    "detached_concurrently": ["ALTER TABLE {t} DETACH PARTITION {t}_a_1 CONCURRENTLY"],
    "sub_root_detached": ["ALTER TABLE {t} DETACH PARTITION {t}_b"],
    "attached": [
        "CREATE TABLE {t}_c (id int PRIMARY KEY, v int)",
        "INSERT INTO {t}_c SELECT i, 7 FROM generate_series(30, 39) i",
        "ALTER TABLE {t} ATTACH PARTITION {t}_c FOR VALUES FROM (30) TO (40)",
        "UPDATE {t} SET v = 8 WHERE id = 31",
        "DELETE FROM {t} WHERE id = 32",
    ],
    "created": ["CREATE TABLE {t}_d PARTITION OF {t} DEFAULT", "INSERT INTO {t} VALUES (99, 1)"],
    "away_and_back": [
        "ALTER TABLE {t} DETACH PARTITION {t}_a_1",
        "UPDATE {t}_a_1 SET v = 9 WHERE id = 1",
        "DELETE FROM {t}_a_1 WHERE id = 2",
        "ALTER TABLE {t} ATTACH PARTITION {t}_a_1 FOR VALUES FROM (0) TO (10)",
    ],
    "swapped": [
        "CREATE TABLE {t}_n (id int PRIMARY KEY, v int)",
        "INSERT INTO {t}_n VALUES (2, 20), (3, 30)",
        "ALTER TABLE {t} DETACH PARTITION {t}_a_1",
        "ALTER TABLE {t} ATTACH PARTITION {t}_n FOR VALUES FROM (0) TO (10)",
    ],
    "rewritten": ["VACUUM FULL {t}_a_1"],
    "all_truncated": ["TRUNCATE {t}", "INSERT INTO {t} VALUES (4, 4)"],
}


@pytest.mark.parametrize("name", CHANGES)
def test_partitions_are_followed(cluster: Cluster, log: Log, parted: str, often: None, name: str) -> None:
    statements = [each.format(t=parted) for each in CHANGES[name]]
    with running(log, source(cluster, parted)) as sources:
        sources.wait_for_phase("stream")
        cluster.run(*statements)
        same(cluster, sources, parted)
        # It goes on afterwards, with what comes and goes next.
        cluster.run(f"INSERT INTO {parted} VALUES (15, 3)", f"TRUNCATE {parted}_a_2")
        same(cluster, sources, parted)
        cluster.run(f"INSERT INTO {parted} VALUES (15, 4)")
        same(cluster, sources, parted)


@pytest.mark.parametrize("name", ["truncated", "dropped", "attached", "swapped"])
def test_partitions_are_followed_that_changed_while_nobody_read(
    cluster: Cluster, log: Log, parted: str, name: str
) -> None:
    with running(log, source(cluster, parted)) as sources:
        sources.wait_for_phase("stream")
    cluster.run(f"UPDATE {parted} SET v = 2", *(each.format(t=parted) for each in CHANGES[name]))
    with running(log, source(cluster, parted)) as sources:
        same(cluster, sources, parted)


def test_what_is_cut_short_is_done_again(cluster: Cluster, log: Log, parted: str, often: None) -> None:
    failed: list[str] = []

    def fail_some(step: str) -> None:
        if step in ("connect.staged", "connect.journaled", "connect.appended") and failed.count(step) < 3:
            failed.append(step)
            raise RuntimeError(step)

    with running(log, source(cluster, parted)) as sources:
        sources.wait_for_phase("stream")
        steps.install(fail_some)
        try:
            cluster.run(*(each.format(t=parted) for each in CHANGES["swapped"]))
            sources.wait(lambda: len(failed) == 9)
            same(cluster, sources, parted)
        finally:
            steps.install(None)


def test_partitions_that_change_between_two_parts_of_a_snapshot(
    cluster: Cluster, log: Log, parted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lastword.connect.postgres.snapshot.ROWS", 2)
    seen: list[str] = []

    def pause_in_the_middle(step: str) -> None:
        seen.append(step)
        if step == "connect.appended" and seen.count(step) == 2:
            states.pause(log.path, parted)

    steps.install(pause_in_the_middle)
    try:
        with running(log, source(cluster, parted)) as sources:
            sources.wait(lambda: sources.status()["state"] == "paused")
            assert sources.status()["records"] == 4
            cluster.run(*(each.format(t=parted) for each in CHANGES["swapped"]))
            states.resume(log.path, parted)
            same(cluster, sources, parted)
    finally:
        steps.install(None)


def test_rows_of_partitions_that_went_stay_if_truncates_are_ignored(
    cluster: Cluster, log: Log, parted: str
) -> None:
    with running(log, source(cluster, parted, truncate="ignore")) as sources:
        sources.wait_for_phase("stream")
    cluster.run(f"TRUNCATE {parted}_a_1", f"DROP TABLE {parted}_a_2")
    cluster.run(*(each.format(t=parted) for each in CHANGES["attached"]))
    kept = dict.fromkeys((1, 2, 11, 12), 1)
    with running(log, source(cluster, parted, truncate="ignore")) as sources:
        sources.wait(lambda: state(sources, parted) == rows(cluster, parted) | kept)


def test_a_partition_whose_changes_are_not_written_is_an_error(
    cluster: Cluster, log: Log, parted: str, often: None
) -> None:
    with running(log, source(cluster, parted)) as sources:
        sources.wait_for_phase("stream")
        cluster.run(f"CREATE UNLOGGED TABLE {parted}_u PARTITION OF {parted} DEFAULT")
        error = sources.wait_for_error(f"public.{parted}_u, a partition of public.{parted}, is unlogged")
        assert f"ALTER TABLE public.{parted}_u SET LOGGED" in error
        cluster.run(f"ALTER TABLE {parted}_u SET LOGGED", f"INSERT INTO {parted} VALUES (99, 1)")
        sources.wait(lambda: state(sources, parted) == rows(cluster, parted))


def test_a_partition_whose_changes_name_rows_by_other_columns_is_an_error(
    cluster: Cluster, log: Log, parted: str, often: None
) -> None:
    cluster.run(
        f"ALTER TABLE {parted} ALTER v SET NOT NULL",
        f"CREATE UNIQUE INDEX {parted}_v ON {parted}_b_1 (v, id)",
        f"DELETE FROM {parted} WHERE id > 21",
    )
    cluster.run(f"CREATE UNIQUE INDEX {parted}_v_alone ON {parted}_b_1 (v)")
    with running(log, source(cluster, parted)) as sources:
        sources.wait_for_phase("stream")
        # With more columns than the key has it goes.
        cluster.run(f"ALTER TABLE {parted}_b_1 REPLICA IDENTITY USING INDEX {parted}_v")
        cluster.run(f"DELETE FROM {parted} WHERE id = 21")
        same(cluster, sources, parted)
        cluster.run(f"ALTER TABLE {parted}_b_1 REPLICA IDENTITY USING INDEX {parted}_v_alone")
        error = sources.wait_for_error(f"The changes of public.{parted}_b_1, a partition of")
        assert "REPLICA IDENTITY FULL" in error
        cluster.run(f"ALTER TABLE {parted}_b_1 REPLICA IDENTITY DEFAULT")
        sources.wait(lambda: sources.status()["error"] is None)
        # At once, before anybody looks: the change itself tells.
        cluster.run(
            f"INSERT INTO {parted} VALUES (23, 3)",
            f"BEGIN; ALTER TABLE {parted}_b_1 REPLICA IDENTITY USING INDEX {parted}_v_alone; "
            f"DELETE FROM {parted} WHERE id = 23; ALTER TABLE {parted}_b_1 REPLICA IDENTITY DEFAULT; COMMIT",
        )
        sources.wait_for_error("a change came without the key column 'id'")


def test_a_publication_that_sends_partitions_as_tables_is_an_error(
    cluster: Cluster, log: Log, parted: str
) -> None:
    with running(log, source(cluster, parted)) as sources:
        sources.wait_for_phase("stream")
        cluster.run(
            f"ALTER PUBLICATION lastword_{parted} SET (publish_via_partition_root = false)",
            f"INSERT INTO {parted} VALUES (3, 1)",
        )
        sources.wait_for_error(f"public.{parted} is no longer in the publication")
        # What came meanwhile is not left out, although all is well again.
        cluster.run(f"ALTER PUBLICATION lastword_{parted} SET (publish_via_partition_root = true)")
        error = sources.wait_for_error("came as those of a separate table")
        assert f"pg_drop_replication_slot('lastword_{parted}')" in error
        reset(cluster, log, sources, parted, new_slot=True)
        sources.wait(lambda: state(sources, parted) == rows(cluster, parted))


# ------------------------------------------------------------------------------------------------------ reset


def reset(cluster: Cluster, log: Log, sources: Sources, name: str, *, new_slot: bool) -> None:
    states.pause(log.path, name)
    sources.wait(lambda: sources.status()["state"] == "paused")
    if new_slot:
        cluster.drop_slot(f"lastword_{name}")
    cluster.run(
        f"DELETE FROM {name} WHERE id % 3 = 0", f"INSERT INTO {name} VALUES (29, 1) ON CONFLICT DO NOTHING"
    )
    states.reset(log.path, name)
    states.resume(log.path, name)


@pytest.mark.parametrize("new_slot", [False, True])
def test_a_reset_ends_with_what_the_table_has(
    cluster: Cluster, log: Log, monkeypatch: pytest.MonkeyPatch, new_slot: bool
) -> None:
    monkeypatch.setattr("lastword.connect.postgres.sweep.KEYS", 10)
    name = f"anew_{next(NUMBERS)}"
    cluster.run(
        f"CREATE TABLE {name} (id int PRIMARY KEY, v int)",
        f"INSERT INTO {name} SELECT i, 1 FROM generate_series(1, 100) i",
    )
    log.create_topic(f"db.{name}", partitions=3)
    failed: list[str] = []

    def fail_in_the_sweep(step: str) -> None:
        if step == "connect.journaled" and sources.status()["details"].get("phase") == "sweep" and not failed:
            failed.append(step)
            raise RuntimeError(step)

    with running(log, source(cluster, name)) as sources:
        sources.wait_for_phase("stream")
        steps.install(fail_in_the_sweep)
        try:
            reset(cluster, log, sources, name, new_slot=new_slot)
            sources.wait(lambda: bool(failed))
            sources.wait(lambda: state(sources, name) == rows(cluster, name))
        finally:
            steps.install(None)
        cluster.run(f"UPDATE {name} SET v = 2", f"DELETE FROM {name} WHERE id = 29")
        same(cluster, sources, name)
    saved = json.loads((log.path / "connect" / name / "unit.json").read_bytes())
    assert "sweep" not in saved["position"]["tables"][f"public.{name}"]


def test_a_first_start_leaves_keys_of_others_alone(cluster: Cluster, log: Log) -> None:
    name = f"first_{next(NUMBERS)}"
    cluster.run(f"CREATE TABLE {name} (id int PRIMARY KEY, v int)", f"INSERT INTO {name} VALUES (1, 1)")
    log.create_topic(f"db.{name}", partitions=1)
    log.topic(f"db.{name}").append(b'{"id":7}', b'{"id":7,"v":7}')
    with running(log, source(cluster, name)) as sources:
        sources.wait_for_phase("stream")
        assert state(sources, name) == {1: 1, 7: 7}


KEYS = [
    ("smallint", "1", "2"),
    ("text", "E'a\\\\b \"q\" é'", "'gone'"),
    ("char(3)", "'a'", "'b'"),
    ("varchar(5)", "'%s'", "'%'"),
    ("bytea", r"'\\x00ff'", r"'\\x00fe'"),
    ("boolean", "true", "false"),
    ("numeric", "1.0", "1.00001"),
    ("float8", "1e20", "'NaN'"),
    ("real", "0.1", "0.2"),
    ("timestamp", "'2026-02-28 12:34:56.789'", "'infinity'"),
    ("timestamptz", "'2026-02-28 12:34:56+02'", "'0044-03-15 00:00:00+00 BC'"),
    ("date", "'2026-02-28'", "'2026-03-01'"),
    ("interval", "'1 day 2 hours'", "'1 month'"),
    ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "'00000000-0000-0000-0000-000000000000'"),
    ("jsonb", "'{\"a\": 1.10}'", "'[1, 2]'"),
    ("text[]", "ARRAY['a b', 'NULL', '']", "ARRAY['x']"),
    ("int[]", "'[0:1]={1,2}'", "'{3}'"),
    ("inet", "'10.0.0.1/8'", "'::1'"),
    ("mood", "'sad'", "'happy'"),
    ("positive", "5", "6"),
]


def test_keys_of_every_type_are_found_again(cluster: Cluster, log: Log) -> None:
    cluster.run(
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE DOMAIN positive AS integer CHECK (value > 0)",
        *(
            f'CREATE TABLE kind_{n} ("K %s" {kind} PRIMARY KEY, id int)'
            for n, (kind, _, _) in enumerate(KEYS)
        ),
        *(f"INSERT INTO kind_{n} VALUES ({kept}, 1), ({gone}, 2)" for n, (_, kept, gone) in enumerate(KEYS)),
    )
    config = {
        "kinds": postgres_source(cluster, "kinds.{table}", tables=[f"kind_{n}" for n in range(len(KEYS))])
    }
    with running(log, config) as sources:
        sources.wait_for_phase("stream")
        # A key of somebody else, and one of another type than the column has now.
        log.topic("kinds.kind_0").append(b"alice", b"{}")
        log.topic("kinds.kind_0").append(b'{"K %s":"x"}', b"{}")
        log.topic("kinds.kind_5").append(b'{"K %s":"\\u0000"}', b"{}")
    cluster.run(*(f"DELETE FROM kind_{n} WHERE id = 2" for n in range(len(KEYS))))
    states.reset(log.path, "kinds")
    with running(log, config) as sources:
        sources.wait_for_phase("stream")
    for number, (kind, _, _) in enumerate(KEYS):
        newest = {each.key: each.value for each in log.topic(f"kinds.kind_{number}").read()}
        left = [json.loads(each)["id"] for each in newest.values() if each is not None]
        assert left == [1], (kind, newest)
