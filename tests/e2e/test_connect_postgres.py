"""Change capture from a real PostgreSQL: every type, every kind of change, and what goes wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.postgres import Cluster, running_cluster
from tests.support.sources import Sources, postgres_source, running

import lastword
from lastword.connect import states
from lastword.connect.metrics import SLOT_LAG
from lastword.errors import InvalidConfigError
from lastword.log import Log

TYPES = [
    ("smallint", "'-7'", -7),
    ("bigint", "'9223372036854775807'", 9223372036854775807),
    ("real", "'1.5'", 1.5),
    ("double precision", "'NaN'", "NaN"),
    ("double precision", "'1e-300'", 1e-300),
    ("numeric", "'12345678901234567890.123456789000'", "12345678901234567890.123456789000"),
    ("numeric(8,2)", "'1.5'", "1.50"),
    ("boolean", "'yes'", True),
    ("text", "E'tab\\t \"q\" back\\\\slash \\n é ☃'", 'tab\t "q" back\\slash \n é ☃'),
    ("text", "''", ""),
    ("varchar(5)", "'\\N'", "\\N"),
    ("char(4)", "'a'", "a   "),
    ("bytea", "'\\x00ff10'", "AP8Q"),
    ("uuid", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("json", "'{\"a\": [1, 2.50, null]}'", {"a": [1, 2.5, None]}),
    ("jsonb", "'\"text\"'", "text"),
    ("date", "'2026-02-28'", "2026-02-28"),
    ("time", "'12:34:56.789'", "12:34:56.789"),
    ("timestamp", "'2026-02-28 12:34:56.789'", "2026-02-28T12:34:56.789"),
    ("timestamptz", "'2026-02-28 12:34:56+02'", "2026-02-28T10:34:56Z"),
    ("timestamptz", "'infinity'", "infinity"),
    ("interval", "'1 day 2 hours'", "P1DT2H"),
    ("mood", "'happy'", "happy"),
    ("mood[]", "'{sad,happy}'", ["sad", "happy"]),
    ("positive", "'5'", 5),
    ("int4range", "'[1,10)'", "[1,10)"),
    ("pair", "'(1,x)'", "(1,x)"),
    ("inet", "'10.0.0.1/8'", "10.0.0.1/8"),
    ("integer[]", "'{1,NULL,3}'", [1, None, 3]),
    ("integer[]", "'[0:1]={1,2}'", [1, 2]),
    ("integer[]", "'{}'", []),
    ("text[]", "ARRAY[['a,b', 'NULL'], ['\"', E'\\\\']]", [["a,b", "NULL"], ['"', "\\"]]),
    ("timestamptz[]", "'{2026-01-01 00:00:00+00}'", ["2026-01-01T00:00:00Z"]),
    ("numeric[]", "'{1.10}'", ["1.10"]),
    ("money", "'12.34'", "$12.34"),
    ("bit(3)", "'101'", "101"),
    ("point", "'(1,2)'", "(1,2)"),
    ("xml", "'<a/>'", "<a/>"),
    ("tsvector", "'a b'", "'a' 'b'"),
    ("text", "NULL", None),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as started:
        started.run(
            "CREATE TYPE mood AS ENUM ('sad', 'happy')",
            "CREATE DOMAIN positive AS integer CHECK (value > 0)",
            "CREATE TYPE pair AS (a int, b text)",
        )
        yield started


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with lastword.open(tmp_path / "data") as opened:
        yield opened


def test_every_type_is_the_same_in_the_snapshot_and_in_the_stream(cluster: Cluster, log: Log) -> None:
    columns = ", ".join(f"c{index} {name}" for index, (name, _, _) in enumerate(TYPES))
    values = ", ".join(literal for _, literal, _ in TYPES)
    cluster.run(
        f"CREATE TABLE kinds (id int PRIMARY KEY, {columns})", f"INSERT INTO kinds VALUES (1, {values})"
    )
    expected = {f"c{index}": value for index, (_, _, value) in enumerate(TYPES)}
    with running(log, {"kinds": postgres_source(cluster, "db.kinds", table="kinds")}) as sources:
        sources.wait_for_phase("stream")
        cluster.run(f"INSERT INTO kinds VALUES (2, {values})")
        read, streamed = sources.wait_for_records("db.kinds", 2)
    assert read == ({"id": 1}, {"id": 1, **expected})
    assert streamed == ({"id": 2}, {"id": 2, **expected})


def test_every_kind_of_change(cluster: Cluster, log: Log) -> None:
    cluster.run("CREATE TABLE people (id int PRIMARY KEY, name text)", "INSERT INTO people VALUES (1, 'a')")
    with running(log, {"people": postgres_source(cluster, "db.people", table="people")}) as sources:
        sources.wait_for_phase("stream")
        cluster.run(
            "INSERT INTO people VALUES (2, 'b')",
            "UPDATE people SET name = 'A' WHERE id = 1",
            "UPDATE people SET id = 3 WHERE id = 2",
            "DELETE FROM people WHERE id = 1",
            "TRUNCATE people",
            "BEGIN; INSERT INTO people VALUES (9, 'never'); ROLLBACK",
            "INSERT INTO people VALUES (4, NULL)",
        )
        found = sources.wait_for_records("db.people", 8)
    assert found == [
        ({"id": 1}, {"id": 1, "name": "a"}),
        ({"id": 2}, {"id": 2, "name": "b"}),
        ({"id": 1}, {"id": 1, "name": "A"}),
        ({"id": 2}, None),
        ({"id": 3}, {"id": 3, "name": "b"}),
        ({"id": 1}, None),
        ({"id": 3}, None),
        ({"id": 4}, {"id": 4, "name": None}),
    ]


def test_columns_are_added_dropped_and_renamed(cluster: Cluster, log: Log) -> None:
    cluster.run(
        "CREATE TABLE wide (id int PRIMARY KEY, a text, b text)", "INSERT INTO wide VALUES (1, 'x', 'y')"
    )
    with running(log, {"wide": postgres_source(cluster, "db.wide", table="wide")}) as sources:
        sources.wait_for_phase("stream")
        cluster.run(
            "ALTER TABLE wide ADD c int DEFAULT 7",
            "INSERT INTO wide VALUES (2, 'x', 'y')",
            "ALTER TABLE wide DROP a",
            "UPDATE wide SET b = 'z' WHERE id = 1",
            "ALTER TABLE wide RENAME b TO d",
            "UPDATE wide SET c = 8 WHERE id = 1",
            "ALTER TABLE wide RENAME id TO number",
            "UPDATE wide SET c = 9 WHERE number = 2",
        )
        found = sources.wait_for_records("db.wide", 5)
    assert found[1:] == [
        ({"id": 2}, {"id": 2, "a": "x", "b": "y", "c": 7}),
        ({"id": 1}, {"id": 1, "b": "z", "c": 7}),
        ({"id": 1}, {"id": 1, "d": "z", "c": 8}),
        ({"number": 2}, {"number": 2, "d": "y", "c": 9}),
    ]


LARGE = "concat(repeat('large ', 3000), id)"


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_values_that_are_not_sent_are_filled(cluster: Cluster, log: Log, identity: str) -> None:
    name = f"large_{identity.lower()}"
    cluster.run(
        f"CREATE TABLE {name} (id int PRIMARY KEY, n int, body text, doc jsonb)",
        f"ALTER TABLE {name} ALTER body SET STORAGE EXTERNAL, REPLICA IDENTITY {identity}",
        f"INSERT INTO {name} SELECT id, 0, {LARGE}, '[1.10]' FROM generate_series(1, 5) id",
    )
    body = {number: "large " * 3000 + str(number) for number in range(1, 10)}
    with running(log, {"large": postgres_source(cluster, "db.large", table=name)}) as sources:
        sources.wait_for_phase("stream")
        cluster.run(
            f"UPDATE {name} SET n = 1",
            f"BEGIN; INSERT INTO {name} SELECT id, 1, {LARGE}, '[1.10]' FROM generate_series(6, 8) id; "
            f"UPDATE {name} SET n = 2 WHERE id > 5; COMMIT",
            f"UPDATE {name} SET id = 20 WHERE id = 6",
            f"ALTER TABLE {name} RENAME body TO text",
            f"UPDATE {name} SET n = 3 WHERE id = 20",
        )
        found = sources.wait_for_records("db.large", 5 + 5 + 6 + 2 + 1)
    assert found[5:10] == [({"id": i}, {"id": i, "n": 1, "body": body[i], "doc": [1.1]}) for i in range(1, 6)]
    assert found[13][1] == {"id": 6, "n": 2, "body": body[6], "doc": [1.1]}
    assert found[16:] == [
        ({"id": 6}, None),
        ({"id": 20}, {"id": 20, "n": 2, "body": body[6], "doc": [1.1]}),
        ({"id": 20}, {"id": 20, "n": 3, "text": body[6], "doc": [1.1]}),
    ]


def test_values_that_are_not_sent_are_marked(cluster: Cluster, log: Log) -> None:
    cluster.run(
        "CREATE TABLE marked (id int PRIMARY KEY, n int, body text)",
        "ALTER TABLE marked ALTER body SET STORAGE EXTERNAL",
        f"INSERT INTO marked SELECT id, 0, {LARGE} FROM generate_series(1, 1) id",
    )
    source = postgres_source(cluster, "db.marked", table="marked", toast="mark")
    with running(log, {"marked": source}) as sources:
        sources.wait_for_phase("stream")
        cluster.run("UPDATE marked SET n = 1")
        found = sources.wait_for_records("db.marked", 2)
    assert found[1][1] == {"id": 1, "n": 1, "body": "__debezium_unavailable_value"}


def test_debezium_envelope(cluster: Cluster, log: Log) -> None:
    cluster.run("CREATE TABLE wrapped (id int PRIMARY KEY, n int)", "INSERT INTO wrapped VALUES (1, 1)")
    source = postgres_source(cluster, "db.wrapped", table="wrapped", format="debezium")
    with running(log, {"wrapped": source}) as sources:
        sources.wait_for_phase("stream")
        cluster.run(
            "INSERT INTO wrapped VALUES (2, 1)",
            "UPDATE wrapped SET n = 2 WHERE id = 1",
            "ALTER TABLE wrapped REPLICA IDENTITY FULL",
            "UPDATE wrapped SET n = 3 WHERE id = 1",
            "DELETE FROM wrapped WHERE id = 1",
        )
        found = sources.wait_for_records("db.wrapped", 6)
    assert [
        None if value is None else (value["op"], value["before"], value["after"]) for _, value in found
    ] == [
        ("r", None, {"id": 1, "n": 1}),
        ("c", None, {"id": 2, "n": 1}),
        ("u", None, {"id": 1, "n": 2}),
        ("u", {"id": 1, "n": 2}, {"id": 1, "n": 3}),
        ("d", {"id": 1, "n": 3}, None),
        None,
    ]
    source_of = found[1][1]["source"]
    assert source_of["db"] == "postgres" and source_of["table"] == "wrapped" and source_of["lsn"] > 0


def test_names_and_keys_of_every_sort(cluster: Cluster, log: Log) -> None:
    cluster.run(
        'CREATE SCHEMA "My Schema"',
        'CREATE TABLE "My Schema"."Odd ""Name"" {x}" ("Key 1" text, "b" boolean, "Value" int, '
        'PRIMARY KEY ("Key 1", b))',
        'INSERT INTO "My Schema"."Odd ""Name"" {x}" VALUES (\'é"\', true, 1)',
        "CREATE TABLE plain (u uuid PRIMARY KEY)",
        "INSERT INTO plain VALUES ('00000000-0000-0000-0000-000000000001')",
    )
    odd = '"My Schema"."Odd ""Name"" {x}"'
    source = postgres_source(cluster, "{schema}.{table}", tables=[odd, "plain"])
    with running(log, {"odd": source}) as sources:
        sources.wait_for_phase("stream")
        cluster.run(f'UPDATE {odd} SET "Value" = 2', "DELETE FROM plain")
        found = sources.wait_for_records("My_Schema.Odd__Name___x_", 2)
        plain = sources.wait_for_records("public.plain", 2)
    key = {"Key 1": 'é"', "b": True}
    assert found == [(key, {**key, "Value": 1}), (key, {**key, "Value": 2})]
    assert plain[1] == ({"u": "00000000-0000-0000-0000-000000000001"}, None)


def test_a_partitioned_table_is_one_table(cluster: Cluster, log: Log) -> None:
    cluster.run(
        "CREATE TABLE parted (id int PRIMARY KEY, v int) PARTITION BY RANGE (id)",
        "CREATE TABLE parted_a PARTITION OF parted FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE parted_b PARTITION OF parted FOR VALUES FROM (10) TO (20)",
        "INSERT INTO parted VALUES (1, 1), (11, 1)",
    )
    with running(log, {"parted": postgres_source(cluster, "db.parted", table="parted")}) as sources:
        sources.wait_for_phase("stream")
        cluster.run("UPDATE parted SET v = 2")
        found = sources.wait_for_records("db.parted", 4)
    assert [key["id"] for key, _ in found] == [1, 11, 1, 11]


def test_a_large_transaction_passes_in_chunks(cluster: Cluster, log: Log) -> None:
    cluster.run("CREATE TABLE bulk (id int PRIMARY KEY, v text)")
    with running(log, {"bulk": postgres_source(cluster, "db.bulk", table="bulk")}) as sources:
        sources.wait_for_phase("stream")
        cluster.run("INSERT INTO bulk SELECT i, repeat('v', 100) FROM generate_series(1, 60000) i")
        sources.wait(lambda: sources.status()["records"] == 60000)
        assert [key["id"] for key, _ in sources.records("db.bulk")] == list(range(1, 60001))


def test_a_table_that_is_added_later_is_read_from_one_exact_point(cluster: Cluster, log: Log) -> None:
    cluster.run(
        "CREATE TABLE one (id int PRIMARY KEY, v int)",
        "CREATE TABLE two (id int PRIMARY KEY, v int)",
        "INSERT INTO one VALUES (1, 1)",
    )
    with running(log, {"some": postgres_source(cluster, "db.{table}", tables="one")}) as sources:
        sources.wait_for_phase("stream")
    cluster.run("INSERT INTO two VALUES (1, 1)", "INSERT INTO one VALUES (2, 1)")
    with running(log, {"some": postgres_source(cluster, "db.{table}", tables="one,two")}) as sources:
        sources.wait_for_records("db.one", 2)
        cluster.run("UPDATE two SET v = 2")
        assert [value["v"] for _, value in sources.wait_for_records("db.two", 2)] == [1, 2]
        assert len(sources.records("db.one")) == 2


def test_a_snapshot_can_be_left_out(cluster: Cluster, log: Log) -> None:
    cluster.run("CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late VALUES (1)")
    source = postgres_source(cluster, "db.late", table="late", snapshot="never")
    with running(log, {"late": source}) as sources:
        sources.wait_for_phase("stream")
        cluster.run("INSERT INTO late VALUES (2)")
        assert sources.wait_for_records("db.late", 1) == [({"id": 2}, {"id": 2})]


def fails(cluster: Cluster, log: Log, error: str, **config: str) -> str:
    name = config.get("slot", "failing")
    with running(log, {name: postgres_source(cluster, f"db.{name}", **config)}) as sources:
        return sources.wait_for_error(error)


def test_a_table_without_a_key_is_an_error(cluster: Cluster, log: Log) -> None:
    cluster.run("CREATE TABLE keyless (a int NOT NULL, b int)")
    assert "ADD PRIMARY KEY" in fails(cluster, log, "public.keyless has no primary key", table="keyless")
    cluster.run("ALTER TABLE keyless REPLICA IDENTITY FULL")
    fails(cluster, log, "The key column 'b' of public.keyless may be null", table="keyless", primary_key="b")
    with running(
        log, {"keyless": postgres_source(cluster, "db.keyless", table="keyless", primary_key="a")}
    ) as sources:
        sources.wait_for_phase("stream")
        cluster.run("INSERT INTO keyless VALUES (1)", "UPDATE keyless SET a = 2")
        assert len(sources.wait_for_records("db.keyless", 3)) == 3


def test_errors_say_what_is_missing(cluster: Cluster, log: Log) -> None:
    cluster.run("CREATE TABLE there (id int PRIMARY KEY, v int)")
    fails(cluster, log, "there is no table nowhere", table="nowhere")
    fails(cluster, log, "which public.there does not have; it has id, v", table="there", primary_key="x")
    fails(cluster, log, "the key of public.there is id", table="there", primary_key="v")
    fails(cluster, log, "There is no publication", table="there", create="false")
    cluster.run("CREATE PUBLICATION mine FOR TABLE there")
    fails(
        cluster,
        log,
        "There is no slot 'none'",
        table="there",
        create="false",
        publication="mine",
        slot="none",
    )
    cluster.run("SELECT pg_create_logical_replication_slot('other', 'test_decoding')")
    fails(cluster, log, "uses the plugin 'test_decoding'", table="there", slot="other")
    cluster.drop_slot("other")
    cluster.run("ALTER PUBLICATION mine SET (publish = 'insert')")
    fails(cluster, log, "does not publish every insert, update and delete", table="there", publication="mine")
    cluster.run("CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY)")
    fails(cluster, log, "public.unlogged is unlogged", table="unlogged")
    fails(cluster, log, "does not exist", table="there", dsn=f"host={cluster.folder} dbname=no user=postgres")


def test_secrets_are_not_shown(cluster: Cluster, log: Log) -> None:
    with pytest.raises(InvalidConfigError, match=r"config\.dsn is not a libpq connection string") as raised:
        fails(cluster, log, "", table="t", dsn="password=secret host")
    assert "secret" not in str(raised.value)
    error = fails(cluster, log, "Connection refused", table="t", dsn="postgresql://me:secret@127.0.0.1:1/x")
    assert "secret" not in error


def test_other_sources_go_on_when_one_fails(cluster: Cluster, log: Log) -> None:
    cluster.run("CREATE TABLE fine (id int PRIMARY KEY)", "INSERT INTO fine VALUES (1)")
    with running(
        log,
        {
            "broken": postgres_source(cluster, "db.broken", table="missing"),
            "fine": postgres_source(cluster, "db.fine", table="fine"),
        },
    ) as sources:
        sources.wait_for_records("db.fine", 1)
        sources.wait(lambda: sources.status(0)["errors"] >= 2)
        cluster.run("CREATE TABLE missing (id int PRIMARY KEY)", "INSERT INTO missing VALUES (5)")
        assert sources.wait_for_records("db.broken", 1) == [({"id": 5}, {"id": 5})]
        sources.wait(lambda: sources.status(0)["error"] is None)


def test_a_slot_that_is_gone_is_an_error_and_a_reset_begins_again(cluster: Cluster, log: Log) -> None:
    cluster.run("CREATE TABLE lost (id int PRIMARY KEY)", "INSERT INTO lost VALUES (1)")
    source = {"lost": postgres_source(cluster, "db.lost", table="lost")}
    with running(log, source) as sources:
        sources.wait_for_phase("stream")
    cluster.drop_slot("lastword_lost")
    cluster.run("INSERT INTO lost VALUES (2)")
    with running(log, source) as sources:
        assert "connect reset lost" in sources.wait_for_error("'lastword_lost' is gone")
    assert states.reset(log.path, "lost")
    with running(log, source) as sources:
        assert len(sources.wait_for_records("db.lost", 3)) == 3


def test_a_database_that_is_behind_the_position_is_an_error(cluster: Cluster, log: Log) -> None:
    cluster.run("CREATE TABLE restored (id int PRIMARY KEY)", "INSERT INTO restored VALUES (1)")
    source = {"restored": postgres_source(cluster, "db.restored", table="restored")}
    with running(log, source) as sources:
        sources.wait_for_phase("stream")
    path = log.path / "connect" / "restored" / "unit.json"
    saved = json.loads(path.read_text())
    saved["position"]["commit"] = "FF/0"
    path.write_text(json.dumps(saved))
    with running(log, source) as sources:
        sources.wait_for_error("restored from a backup")


def test_slot_lag_is_shown_and_warned_of(
    cluster: Cluster, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.run("CREATE TABLE lagging (id int PRIMARY KEY, v text)")
    source = postgres_source(cluster, "db.lagging", table="lagging", slot_lag_warn_bytes=1 << 20)
    with running(log, {"lagging": source}) as sources:
        sources.wait_for_phase("stream")
        assert sources.status()["details"]["warning"] is None
    # Nobody reads: PostgreSQL keeps everything.
    cluster.run("INSERT INTO lagging SELECT i, repeat('v', 500) FROM generate_series(1, 5000) i")
    with running(log, {"lagging": source}) as sources:
        sources.wait_for_phase("stream")
        assert sources.status()["details"]["slot_lag_bytes"] > 1 << 20
        assert SLOT_LAG.labels("lagging")._value.get() > 1 << 20
        sources.wait(lambda: sources.status()["records"] == 5000)
    assert "MiB of WAL for the slot lastword_lagging" in caplog.text


def confirmed(cluster: Cluster, slot: str) -> int:
    found = cluster.run(
        f"SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::int FROM pg_replication_slots "
        f"WHERE slot_name = '{slot}'"
    )
    return int(found[0][0])


def test_the_slot_follows_although_only_other_tables_change(cluster: Cluster, log: Log) -> None:
    cluster.run("CREATE TABLE quiet (id int PRIMARY KEY)", "CREATE TABLE noisy (id int PRIMARY KEY, v text)")
    with running(log, {"quiet": postgres_source(cluster, "db.quiet", table="quiet")}) as sources:
        sources.wait_for_phase("stream")
        cluster.run("INSERT INTO noisy SELECT i, repeat('v', 500) FROM generate_series(1, 10000) i")
        sources.wait(lambda: confirmed(cluster, "lastword_quiet") < 1 << 20)


def test_pause_and_resume(cluster: Cluster, log: Log) -> None:
    cluster.run("CREATE TABLE paused (id int PRIMARY KEY)", "INSERT INTO paused VALUES (1)")
    source = {"paused": postgres_source(cluster, "db.paused", table="paused")}
    with running(log, source) as sources:
        sources.wait_for_phase("stream")
        states.pause(log.path, "paused")
        sources.wait(lambda: sources.status()["state"] == "paused")
        cluster.run("INSERT INTO paused VALUES (2)")
    with running(log, source) as sources:
        sources.wait(lambda: sources.status()["state"] == "paused")
        assert len(sources.records("db.paused")) == 1
        states.resume(log.path, "paused")
        assert len(sources.wait_for_records("db.paused", 2)) == 2


def test_position_is_json_that_people_can_read(cluster: Cluster, log: Log) -> None:
    cluster.run("CREATE TABLE shown (id int PRIMARY KEY)", "INSERT INTO shown VALUES (1)")
    with running(log, {"shown": postgres_source(cluster, "db.shown", table="shown")}) as sources:
        sources.wait_for_phase("stream")
        assert isinstance(sources, Sources)
    saved = json.loads((log.path / "connect" / "shown" / "unit.json").read_text())
    assert saved["records"] == 1 and saved["topics"] == {"db.shown": log.topic("db.shown").id.hex}
    assert set(saved["position"]) == {"lsn", "commit", "tables", "epochs"}


def test_a_table_that_is_dropped_and_created_again_is_an_error(cluster: Cluster, log: Log) -> None:
    cluster.run("CREATE TABLE anew (id int PRIMARY KEY)", "INSERT INTO anew VALUES (1)")
    source = {"anew": postgres_source(cluster, "db.anew", table="anew")}
    with running(log, source) as sources:
        sources.wait_for_phase("stream")
        cluster.run("DROP TABLE anew", "CREATE TABLE anew (id int PRIMARY KEY)")
        # On its own it comes with the next look, or as soon as the new table changes.
        cluster.run("ALTER PUBLICATION lastword_anew ADD TABLE anew", "INSERT INTO anew VALUES (2)")
        error = sources.wait_for_error("anew was dropped and recreated")
        assert "reset anew" in error
    with running(log, source) as sources:
        sources.wait_for_error("anew was dropped and recreated")
        states.pause(log.path, "anew")
        sources.wait(lambda: sources.status()["state"] == "paused")
        states.reset(log.path, "anew")
        states.resume(log.path, "anew")
        # Rows of the old table are gone.
        assert sources.wait_for_records("db.anew", 3) == [
            ({"id": 1}, {"id": 1}),
            ({"id": 2}, {"id": 2}),
            ({"id": 1}, None),
        ]
        cluster.run("INSERT INTO anew VALUES (3)")
        # Rows of the old table are gone.
        assert sources.wait_for_records("db.anew", 4)[3:] == [({"id": 3}, {"id": 3})]


def test_a_table_that_is_no_longer_published_is_an_error(
    cluster: Cluster, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lastword.connect.postgres.monitor.MONITOR_S", 0.1)
    cluster.run("CREATE TABLE hidden (id int PRIMARY KEY)", "CREATE TABLE away (id int PRIMARY KEY)")
    sources_of = {
        each: postgres_source(cluster, f"db.{each}", table=each, slot=f"s_{each}")
        for each in ("hidden", "away")
    }
    with running(log, sources_of) as sources:
        for index in (0, 1):
            sources.wait(lambda index=index: sources.status(index)["details"].get("phase") == "stream")
        cluster.run("ALTER PUBLICATION lastword_hidden DROP TABLE hidden", "DROP TABLE away")
        sources.wait_for_error("hidden is no longer in the publication 'lastword_hidden'")
        sources.wait(lambda: "there is no table away" in (sources.status(1)["error"] or ""))


def test_a_table_that_was_out_of_the_publication_for_a_while_is_an_error(cluster: Cluster, log: Log) -> None:
    cluster.run("CREATE TABLE outside (id int PRIMARY KEY)", "INSERT INTO outside VALUES (1)")
    source = {"outside": postgres_source(cluster, "db.outside", table="outside")}
    with running(log, source) as sources:
        sources.wait_for_phase("stream")
    cluster.run(
        "ALTER PUBLICATION lastword_outside DROP TABLE outside",
        "INSERT INTO outside VALUES (2)",
        "ALTER PUBLICATION lastword_outside ADD TABLE outside",
        "INSERT INTO outside VALUES (3)",
    )
    with running(log, source) as sources:
        error = sources.wait_for_error("was removed from the publication 'lastword_outside' and added again")
        assert "reset outside" in error and len(sources.records("db.outside")) == 1
        states.pause(log.path, "outside")
        sources.wait(lambda: sources.status()["state"] == "paused")
        states.reset(log.path, "outside")
        states.resume(log.path, "outside")
        sources.wait_for_records("db.outside", 4)
        cluster.run("INSERT INTO outside VALUES (4)")
        found = sources.wait_for_records("db.outside", 5)
    assert [key["id"] for key, _ in found] == [1, 1, 2, 3, 4]


def test_a_truncate_holds_some_of_the_keys_at_a_time(
    cluster: Cluster, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lastword.reading.winners.SET_BYTES", 1000)
    cluster.run(
        "CREATE TABLE many (id int PRIMARY KEY, name text)",
        "INSERT INTO many SELECT i, 'x' FROM generate_series(1, 300) i",
    )
    with running(log, {"many": postgres_source(cluster, "db.many", table="many")}) as sources:
        sources.wait_for_records("db.many", 300)
        cluster.run("DELETE FROM many WHERE id <= 10")
        sources.wait_for_records("db.many", 310)
        cluster.run("TRUNCATE many", "INSERT INTO many VALUES (5, 'new')")
        records = sources.wait_for_records("db.many", 601)
    tombstones = [key["id"] for key, value in records[310:] if value is None]
    assert sorted(tombstones) == list(range(11, 301))
    assert records[-1] == ({"id": 5}, {"id": 5, "name": "new"})
