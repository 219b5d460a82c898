"""`lastword group`, beside a server and without one, and what `lastword status` says of a worker that has done nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.support.cli import Cli
from tests.support.server import SETTINGS, Server, serving
from tests.support.waiting import wait_until

QUIET = "seal.interval.ms: 3600000\nworker.initial.delay.ms: 3600000\nretention.interval.ms: 3600000\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "data", settings=SETTINGS + QUIET) as started:
        yield started


def consumer_of(server: Server, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": server.kafka,
            "group.id": group,
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )


def test_groups_beside_a_server_and_without(server: Server) -> None:
    cli = Cli(server.data)
    assert cli("group", "list").out == "There are no consumer groups.\n"
    cli("topic", "create", "users")
    cli("produce", "users", stdin=b"a:1\nb:2\nc:3\n")
    consumer = consumer_of(server, "billing")
    consumer.subscribe(["users"])
    wait_until(lambda: (got := consumer.poll(0.2)) is not None and got.error() is None, lambda: server.log)
    consumer.commit(offsets=[TopicPartition("users", 0, 1)], asynchronous=False)

    (listed,) = cli("group", "list", "--json").json
    assert (listed["group"], listed["state"], listed["members"]) == ("billing", "Stable", 1)
    assert (listed["topics"], listed["behind"]) == (["users"], 2)
    shown = cli("group", "describe", "billing").out
    assert "2 offsets" in shown and "reader" in shown and "Committed offsets" in shown
    refused = cli("group", "delete", "billing", "--yes", code=2)
    assert "has members" in refused.err
    assert "there is no group 'nix'" in cli("group", "describe", "nix", code=2).err

    consumer.close()
    wait_until(lambda: cli("group", "list", "--json").json[0]["state"] == "Empty", lambda: server.log)
    beside = cli("group", "describe", "billing", "--json").json
    server.stop()
    assert cli("group", "describe", "billing", "--json").json == beside
    assert cli("group", "list", "--json").json == [
        {key: beside[key] for key in ("group", "state", "protocol_type", "members", "topics", "behind")}
    ]
    assert cli("group", "delete", "billing", "--yes").out == "Deleted the group billing.\n"
    assert cli("group", "list", "--json").json == []
    with serving(server.data, settings="") as again:
        assert cli("group", "list", "--json").json == []
        assert again.started["pid"] == again.process.pid


def test_members_of_a_server_that_has_ended_keep_their_group(server: Server) -> None:
    cli = Cli(server.data)
    cli("topic", "create", "users")
    consumer = consumer_of(server, "billing")
    consumer.subscribe(["users"])
    wait_until(
        lambda: consumer.poll(0.2) is None and [each.topic for each in consumer.assignment()] == ["users"],
        lambda: server.log,
    )
    server.stop()
    assert "had members when the server stopped" in cli("group", "delete", "billing", "--yes", code=2).err
    found = cli("group", "describe", "billing", "--json").json
    assert found["member_list"][0]["partitions"] == [{"topic": "users", "partition": 0}]
    assert found["behind"] is None
    consumer.close()


def test_status_says_that_the_worker_has_done_nothing_yet(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "other")
    cli("topic", "create", "t")
    assert "No worker has run on this data folder yet" in cli("status", code=1).out
