"""Roles that may not do what a source needs: the check names each right, and what it says is enough."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.postgres import Cluster
from tests.support.sources import SETTINGS, postgres_source, running

import lastword
from lastword.connect import ConnectConfig
from lastword.connect.destination import OwnDestination
from lastword.connect.runner import check
from lastword.log import Log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with lastword.open(tmp_path / "data") as opened:
        yield opened


def problems(log: Log, sources: dict[str, Any]) -> list[str]:
    config = ConnectConfig.from_mapping({"sources": sources, "settings": SETTINGS})
    (found,) = check(config, OwnDestination(log)).values()
    return found


def source(cluster: Cluster, role: str, name: str, **config: Any) -> dict[str, Any]:
    dsn = f"host={cluster.folder} dbname=postgres user='{role}'"
    return {name: postgres_source(cluster, "db.{table}", dsn=dsn, **config)}


def test_every_right_that_is_missing_is_named_with_what_gives_it(cluster: Cluster, log: Log) -> None:
    cluster.run(
        'CREATE ROLE "the reader" LOGIN',
        "CREATE SCHEMA hidden",
        "CREATE TABLE hidden.orders (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE hidden.orders_1 PARTITION OF hidden.orders DEFAULT",
        "CREATE TABLE people (id int PRIMARY KEY, secret text)",
        'GRANT SELECT (id) ON people TO "the reader"',
        "ALTER TABLE people ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY few ON people USING (id > 1)",
        "INSERT INTO people VALUES (1), (2)",
        "INSERT INTO hidden.orders VALUES (1)",
    )
    named = source(cluster, "the reader", "named", tables=["hidden.orders", "people"])
    found = problems(log, named)
    for text in (
        'GRANT USAGE ON SCHEMA hidden TO "the reader"',
        'ALTER ROLE "the reader" REPLICATION',
        'GRANT SELECT ON public.people TO "the reader"',
        'ALTER ROLE "the reader" BYPASSRLS',
        "CREATE PUBLICATION",
    ):
        assert len([each for each in found if f"`{text}" in each]) == 1, found
    # The source itself says the same, before it has touched anything.
    with running(log, named) as sources:
        sources.wait_for_error("GRANT USAGE ON SCHEMA hidden")
    done: list[str] = []
    while found := problems(log, named):
        statement = re.findall("`(.*?)`", found[0])[0]
        assert statement not in done, found
        done.append(statement)
        cluster.run(statement)
    assert 'GRANT SELECT ON hidden.orders TO "the reader"' in done
    with running(log, named) as sources:
        sources.wait_for_phase("stream")
        cluster.run("INSERT INTO people VALUES (3)", "INSERT INTO hidden.orders VALUES (2)")
        assert len(sources.wait_for_records("db.people", 3)) == 3
        assert len(sources.wait_for_records("db.orders", 2)) == 2
        cluster.run("TRUNCATE hidden.orders_1")


def test_a_role_that_creates_the_publication_needs_more(cluster: Cluster, log: Log) -> None:
    cluster.run("CREATE ROLE maker LOGIN REPLICATION", "CREATE TABLE made (id int PRIMARY KEY)")
    cluster.run("GRANT SELECT ON made TO maker", "CREATE TABLE more (id int PRIMARY KEY)")
    named = source(cluster, "maker", "maker", tables="made")
    (problem,) = problems(log, named)
    assert 'may not create the publication "lastword_maker"' in problem
    _, *statements = re.findall("`(.*?)`", problem)
    assert statements == [
        "GRANT CREATE ON DATABASE postgres TO maker",
        "ALTER TABLE public.made OWNER TO maker",
    ]
    cluster.run(*statements)
    assert problems(log, named) == []
    with running(log, named) as sources:
        sources.wait_for_phase("stream")
    # One that is added later, and a publication of somebody else.
    both = source(cluster, "maker", "maker", tables=["made", "more"])
    cluster.run("ALTER TABLE more OWNER TO maker", "ALTER PUBLICATION lastword_maker OWNER TO postgres")
    (problem,) = problems(log, both)
    assert 'may not add public.more to the publication "lastword_maker"' in problem
    cluster.run(re.findall("`(.*?)`", problem)[0])
    assert problems(log, both) == []


def test_whatever_else_is_in_the_way_is_told_together(cluster: Cluster, log: Log) -> None:
    cluster.run(
        "CREATE TABLE one (id int PRIMARY KEY)",
        "CREATE TABLE keyless (id int)",
        "CREATE PUBLICATION partly FOR TABLE one WITH (publish = 'insert')",
        "SELECT pg_create_logical_replication_slot('decoding', 'test_decoding')",
    )
    found = problems(
        log,
        source(
            cluster,
            "postgres",
            "several",
            tables=["one", "keyless", "nowhere"],
            publication="partly",
            slot="decoding",
            create="false",
        ),
    )
    cluster.drop_slot("decoding")
    for text in (
        "public.keyless has no primary key",
        "there is no table nowhere",
        "does not publish every insert",
        "uses the plugin 'test_decoding'",
    ):
        assert any(text in each for each in found), found
    slots = cluster.run("SELECT 40 - count(*) FROM pg_replication_slots")[0][0]
    cluster.run(
        f"SELECT pg_create_physical_replication_slot('taken_' || i) FROM generate_series(1, {slots}) i"
    )
    try:
        found = problems(log, source(cluster, "postgres", "full", tables="one"))
        assert any("`ALTER SYSTEM SET max_replication_slots = 41`" in each for each in found), found
    finally:
        cluster.run(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name LIKE 'taken%'"
        )


def test_a_role_that_may_not_connect_is_told_so(cluster: Cluster, log: Log) -> None:
    cluster.run("CREATE ROLE outsider LOGIN", "CREATE DATABASE closed")
    cluster.run("REVOKE CONNECT ON DATABASE closed FROM PUBLIC")
    dsn = f"host={cluster.folder} dbname=closed user=outsider"
    (problem,) = problems(log, {"closed": postgres_source(cluster, "db.x", table="x", dsn=dsn)})
    assert "GRANT CONNECT ON DATABASE closed TO outsider" in problem
