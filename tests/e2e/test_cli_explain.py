"""`lastword topic explain`: what it prints, as a table and as JSON, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.cli import Cli
from tests.support.server import SETTINGS, serving

import lastword

INLINE = "compaction.service.factory: lastword.compaction.inline:InlineCompactionServiceFactory\n"


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """A compacted topic: some of it sealed, some only in the WAL."""
    made = Cli(tmp_path / "data")
    made.data.mkdir()
    (made.data / "lastword.yaml").write_text(INLINE)
    made("topic", "create", "users", "--cleanup-policy", "compact", "--config", "compaction.at.seal=false")
    made("produce", "users", stdin=b"alice:Oslo\nbob:Rome\nalice:Paris\n")
    made("topic", "seal", "users")
    made("produce", "users", "--null-value", "NULL", stdin=b"carol:" + b"x" * 500 + b"\nbob:NULL\n")
    return made


def test_one_line_a_record_with_the_reason(cli: Cli) -> None:
    lines = cli("topic", "explain", "users").out.splitlines()
    assert lines[0].split() == ["p", "offset", "key", "value", "where", "next", "run", "why"]
    assert len(lines) == 6
    assert "beaten by offset 2, a newer record of its key" in lines[1] and "goes" in lines[1]
    assert "sealed dirty, 0 to 2" in lines[1]
    assert "beaten by offset 4" in lines[2]
    assert lines[3].endswith("stays     the newest record of its key")
    assert "x…" in lines[4] and "WAL active, wal." in lines[4]
    assert "<tombstone>" in lines[5] and "first run that passes it" in lines[5]


def test_what_is_left_out_when_it_is_sealed(cli: Cli) -> None:
    cli("topic", "alter", "users", "--config", "compaction.at.seal=true")
    cli("produce", "users", stdin=b"dave:1\ndave:2\n")
    (first, second) = cli("topic", "explain", "users", "--key", "dave").out.splitlines()[1:3]
    assert first.endswith("goes      beaten by offset 6, a newer record of its key, when both are sealed")
    assert second.endswith("stays     the newest record of its key")
    assert (
        "Sealed 4 records first, 1 of them superseded and left out." in cli("topic", "compact", "users").out
    )


def test_what_it_says_is_what_the_command_then_does(cli: Cli) -> None:
    records = cli.json("topic", "explain", "users")["partitions"][0]["records"]
    cli("topic", "compact", "users")
    with lastword.open(cli.data, read_only=True) as log:
        left = [record.offset for record in log.topic("users").read()]
    assert [each["offset"] for each in records if not each["goes"]] == left
    after = cli("topic", "explain", "users").out
    assert after.startswith("There is no run in partition 0: nothing that may be compacted is dirty")
    assert "it expires 2" in after


def test_a_key_a_part_and_the_way_on(cli: Cli) -> None:
    found = cli.json("topic", "explain", "users", "--key", "bob")
    assert [each["offset"] for each in found["partitions"][0]["records"]] == [1, 4]
    again = cli.json("topic", "explain", "users", "--key-base64", "Ym9i")
    assert [each["offset"] for each in again["partitions"][0]["records"]] == [1, 4]
    assert "continue with --partition 0 --from 3." in cli("topic", "explain", "users", "--limit", "3").out
    found = cli.json("topic", "explain", "users", "--from", "3")
    assert [each["offset"] for each in found["partitions"][0]["records"]] == [3, 4]
    assert cli("topic", "explain", "users", "--key", "nobody").out.endswith("There are no such records.\n")


def test_another_run_is_another_answer(cli: Cli) -> None:
    unsealed = cli.json("topic", "explain", "users", "--no-seal")["partitions"][0]["records"]
    assert unsealed[4]["waits_for"] == "sealing"
    as_worker = cli.json("topic", "explain", "users", "--worker")["partitions"][0]["records"]
    assert (as_worker[1]["goes"], as_worker[1]["beaten_by"]) == (False, 4)
    cli("topic", "compact", "users")
    assert cli.json("topic", "explain", "users", "--force")["partitions"][0]["due"] == "asked for"


def test_what_makes_no_sense_is_refused(cli: Cli) -> None:
    assert "give one of them" in cli("topic", "explain", "users", "--worker", "--force", code=2).err
    assert "two keys" in cli("topic", "explain", "users", "--key", "a", "--key-base64", "YQ==", code=2).err
    assert "not base64" in cli("topic", "explain", "users", "--key-base64", "%", code=2).err
    assert "no partition 4" in cli("topic", "explain", "users", "--partition", "4", code=2).err
    assert "there is no such topic" in cli("topic", "explain", "nope", code=2).err
    assert cli("topic", "explain", "users", "--limit", "0", code=2).err


def test_a_server_answers_over_http_and_the_command_beside_it(tmp_path: Path) -> None:
    slow = "seal.interval.ms: 3600000\nworker.initial.delay.ms: 3600000\n"
    with serving(tmp_path / "data", settings=SETTINGS + slow) as server, server.client() as api:
        cli = Cli(server.data)
        api.post("/v1/topics", json={"name": "t", "config": {"cleanup.policy": "compact"}})
        for value in ("1", "2"):
            api.post("/v1/topics/t/records", json={"records": [{"key": "a", "value": value}]})
        found = api.get("/v1/topics/t/explain", params={"key": "a", "limit": 1}).json()
        assert [each["beaten_by"] for each in found["partitions"][0]["records"]] == [1]
        assert found["next"] == {"partition": 0, "offset": 1}
        as_bytes = api.get("/v1/topics/t/explain", params={"key_base64": "YQ=="}).json()
        assert [each["goes"] for each in as_bytes["partitions"][0]["records"]] == [True, False]
        beside = cli.json("topic", "explain", "t")["partitions"][0]["records"]
        assert [each["goes"] for each in beside] == [True, False]
        for wrong in ({"key": "a", "key_base64": "YQ=="}, {"key_base64": "%"}, {"partition": 9}):
            assert api.get("/v1/topics/t/explain", params=wrong).status_code in (400, 404)
        assert api.get("/v1/topics/nope/explain").status_code == 404


def test_beside_a_server_its_settings_apply(tmp_path: Path) -> None:
    held_back = tmp_path / "other.yaml"
    held_back.write_text(f"{SETTINGS}min.compaction.lag.ms: 3600000\nseal.interval.ms: 3600000\n")
    with serving(tmp_path / "data", "--config", str(held_back), settings="") as server:
        cli = Cli(server.data)
        cli("topic", "create", "t", "--cleanup-policy", "compact")
        cli("produce", "t", stdin=b"a:1\na:2\n")
        records = cli.json("topic", "explain", "t")["partitions"][0]["records"]
        assert [each["goes"] for each in records] == [False, False]
        assert "10000" in cli("topic", "explain", "t", "--limit", "10001", code=2).err
