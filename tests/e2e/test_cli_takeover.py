"""`lastword takeover` and `lastword wal export`, and what a broker says whose topic was taken over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kafka import KafkaProducer
from kafka.errors import KafkaError
from tests.support.cli import Cli
from tests.support.kafka_clients import LEAVES_SOCKETS, collected, consume_in_group
from tests.support.raw_fetch import RawReader
from tests.support.server import SETTINGS, serving
from tests.support.waiting import wait_until

__all__ = ["collected"]


@pytest.fixture
def settings(tmp_path: Path) -> str:
    return f"""{SETTINGS}
catalog:
  type: sql
  uri: sqlite:///{tmp_path}/catalog.db?timeout=30
warehouse: {tmp_path}/warehouse
"""


def folder(tmp_path: Path, name: str, settings: str) -> Cli:
    data = tmp_path / name
    data.mkdir()
    (data / "lastword.yaml").write_text(settings)
    return Cli(data)


def test_by_hand(tmp_path: Path, settings: str) -> None:
    one, two = folder(tmp_path, "one", settings), folder(tmp_path, "two", settings)
    one("topic", "create", "users")
    one("produce", "users", stdin=b"alice:Oslo\n")
    one("topic", "seal", "users")
    one("produce", "users", stdin=b"bob:Rome\ncarol:\n")
    two("topic", "create", "own")

    listed = two.json("topic", "list")
    assert [(each["name"], each["foreign_owner"] is None) for each in listed] == [
        ("own", True),
        ("users", False),
    ]
    assert f"({one.data} on " in two("topic", "list").out.replace("\n", "")
    assert "belongs to the data folder" in " ".join(two("topic", "describe", "users").out.split())
    refused = two("produce", "users", stdin=b"dave:Kyiv\n", code=3)
    assert f"{one.data} on " in refused.err
    assert "`lastword takeover users`" in refused.err
    assert "already belongs to this data folder" in one("takeover", "users", code=2).err
    assert "there is no topic 'x'" in two("takeover", "x", code=2).err
    assert "Name the topics" in two("takeover", code=2).err

    shown = two("takeover", "users")
    assert str(one.data) in shown.out
    assert "Nothing was changed" in shown.out and "lastword wal export" in shown.out
    assert two.json("takeover", "--all")["taken_over"] is False
    assert one.json("takeover", "own")["topics"][0]["owner"]["path"] == str(two.data)
    one("produce", "users", stdin=b"erin:Bern\n")

    done = two.json("takeover", "users", "--yes")

    assert [(each["before"]["epoch"], each["after"]["epoch"]) for each in done["topics"]] == [(1, 2)]
    two("produce", "users", stdin=b"dave:Kyiv\n")
    assert two.values("users") == ["Oslo", "Kyiv"]
    assert "belongs to the data folder" in one("produce", "users", stdin=b"x:y\n", code=3).err
    assert "No topic belongs to another" in two("takeover", "--all").out
    exported = one("wal", "export", "users")
    assert [(each["offset"], each["key"], each["value"]) for each in exported.lines] == [
        (1, "bob", "Rome"),
        (2, "carol", ""),
        (3, "erin", "Bern"),
    ]
    two("produce", "users", "--jsonl", stdin=exported.out.encode())
    assert two.values("users") == ["Oslo", "Kyiv", "Rome", "", "Bern"]
    rescued = tmp_path / "rescued.jsonl"
    assert one.json("wal", "export", "users", "--from-offset", "0", "--file", str(rescued))["records"] == 4
    assert [json.loads(line)["value"] for line in rescued.read_text().splitlines()] == [
        "Oslo",
        "Rome",
        "",
        "Bern",
    ]
    assert "already exists" in one("wal", "export", "users", "--file", str(rescued), code=2).err


def test_by_a_folder_that_has_nothing_but_settings(tmp_path: Path, settings: str) -> None:
    one, two = folder(tmp_path, "one", settings), folder(tmp_path, "two", settings)
    one("topic", "create", "users")
    assert two.json("takeover", "--all")["topics"][0]["owner"]["path"] == str(one.data)
    assert two.json("takeover", "users", "--yes")["taken_over"] is True
    two("produce", "users", stdin=b"dave:Kyiv\n")
    assert two.values("users") == ["Kyiv"]
    # Without settings nothing is shared, and a folder by a wrong name is not begun.
    other = Cli(tmp_path / "other")
    assert "There is no Lastword data" in other("takeover", "users", code=2).err
    assert not other.data.exists()


@LEAVES_SOCKETS
def test_a_broker_that_lost_a_topic_stops_acknowledging(tmp_path: Path, settings: str) -> None:
    one, two = folder(tmp_path, "one", settings), folder(tmp_path, "two", settings)
    with serving(one.data, settings=settings) as server:
        one("topic", "create", "users")
        producer = KafkaProducer(
            bootstrap_servers=server.kafka, retries=0, request_timeout_ms=5000, acks="all", max_block_ms=5000
        )
        producer.send("users", b"v", b"k").get(180)
        # The groups of this catalog are this broker's: another one serves none, and says so.
        consume_in_group(server.kafka, "users", "g", partitions=1, count=1)
        with serving(two.data, settings=settings) as other:
            wait_until(lambda: "'__lastword_groups' belongs to the data folder" in other.log)

        two("takeover", "users", "--yes")

        def is_refused() -> bool:
            try:
                producer.send("users", b"v", b"k").get(180)
            except KafkaError as error:
                assert type(error).__name__ in ("NotLeaderForPartitionError", "NotLeaderOrFollowerError"), (
                    error
                )
                return True
            return False

        wait_until(is_refused)
        producer.close()
        wait_until(lambda: "belongs to the data folder" in server.log, "the broker says why")
        # Nor does it serve what it has acknowledged alone.
        with RawReader(server.kafka, "users") as reader, pytest.raises(AssertionError, match=r"^6"):
            reader.fetch()
        assert one("produce", "users", stdin=b"x:y\n", code=None).code == 3
        assert len(one("wal", "export", "users").lines) >= 1
        assert two.values("users") == []
