"""Sources inside `lastword serve`: how they start, what they survive, and how they are asked about."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.support.cli import Cli
from tests.support.server import SETTINGS, Server, serving
from tests.support.waiting import wait_until

import lastword
from lastword.connect import states


def line(number: int) -> bytes:
    return json.dumps({"key": f"k{number}", "value": str(number)}).encode() + b"\n"


def write_sources(file: Path, **paths: Path) -> Path:
    """A source for each path, whose topic has its name."""
    sources = "".join(
        f"  {name}:\n    connector: file\n    topic: {name}\n    config:\n      path: {path}\n"
        for name, path in paths.items()
    )
    settings = "settings:\n  topic:\n    auto_create: true\n  retry:\n    first_ms: 50\n    max_ms: 100\n"
    file.write_text(f"sources:\n{sources}{settings}")
    return file


def consumed(server: Server, topic: str, count: int) -> list[str]:
    """The values of a topic's first records, as a Kafka client gets them."""
    consumer = Consumer({"bootstrap.servers": server.kafka, "group.id": "g", "enable.auto.commit": False})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[str] = []
        while len(found) < count:
            message = consumer.poll(60)
            assert message is not None and message.error() is None, (message, server.log)
            found.append((message.value() or b"").decode())
        return found
    finally:
        consumer.close()


class Shop:
    """A server that runs two sources: `lines`, and `broken`, whose file is not there."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.lines = folder / "lines.jsonl"
        self.broken = folder / "broken.jsonl"
        self.file = folder / "sources.yaml"
        self.server = server
        self.cli = Cli(server.data)

    def get(self, path: str) -> Any:
        with self.server.client() as client:
            return client.get(path).json()

    def state(self, name: str) -> str:
        return str(self.get(f"/v1/connectors/{name}").get("state"))

    def wait_for(self, name: str, state: str) -> None:
        wait_until(lambda: self.state(name) == state, lambda: self.get("/v1/connectors"))


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "lines.jsonl").write_bytes(line(1) + line(2))
    file = write_sources(
        folder / "sources.yaml", lines=folder / "lines.jsonl", broken=folder / "broken.jsonl"
    )
    with serving(folder / "data", settings=f"{SETTINGS}connect.file: {file}\n") as server:
        yield Shop(folder, server)


def test_kafka_clients_see_what_a_source_appends(shop: Shop) -> None:
    shop.wait_for("lines", "running")
    assert consumed(shop.server, "lines", 2) == ["1", "2"]
    with shop.server.client() as client:
        assert client.get("/readyz").status_code == 200


def test_the_admin_api_says_what_the_command_says(shop: Shop) -> None:
    shop.wait_for("broken", "failing")
    shown = {each["source"]: each for each in shop.cli.json("connect", "status", code=1)}
    listed = {each["source"]: each for each in shop.get("/v1/connectors")}
    assert set(shown) == set(listed) == {"lines", "broken"}
    assert shown["lines"].keys() == listed["lines"].keys() == shop.get("/v1/connectors/lines").keys()
    assert (listed["lines"]["state"], listed["lines"]["records"]) == ("running", 2)
    assert "No such file" in listed["broken"]["error"]
    assert "No such file" in shop.cli("connect", "status", code=1).out
    assert shop.get("/v1/status")["sources"] == {
        "states": {"broken": "failing", "lines": "running"},
        "problem": None,
    }
    assert "broken failing, lines running" in shop.cli("status").out


def test_metrics_are_those_of_the_sources(shop: Shop) -> None:
    shop.wait_for("broken", "failing")
    with shop.server.client() as client:
        text = client.get("/metrics").text
    assert 'lastword_connect_records_total{source="lines"} 2.0' in text
    assert 'lastword_connect_running{source="lines"} 1.0' in text
    assert 'lastword_connect_errors_total{source="lines"} 0.0' in text
    assert 'lastword_connect_running{source="broken"} 0.0' in text


def test_a_source_is_paused_reset_and_resumed(shop: Shop) -> None:
    shop.wait_for("lines", "running")
    cli = shop.cli
    assert "pause it, or stop that process, first" in cli("connect", "reset", "lines", "--yes", code=3).err
    assert cli.json("connect", "pause", "lines") == {"source": "lines", "paused": True}
    shop.wait_for("lines", "paused")
    with shop.server.client() as client:
        asked = client.post("/v1/connectors/lines/resume", json={})
        assert asked.json() == {"source": "lines", "paused": False}
        shop.wait_for("lines", "running")
        client.post("/v1/connectors/lines/pause", json={})
    shop.wait_for("lines", "paused")
    cli("connect", "reset", "lines", "--yes")
    cli("connect", "resume", "lines")
    wait_until(lambda: cli.values("lines") == ["1", "2", "1", "2"], lambda: cli.values("lines"))


@pytest.mark.parametrize("name", ["nobody", "%2e%2e", "..%2fwal", ""])
def test_a_source_that_is_not_there(shop: Shop, name: str) -> None:
    with shop.server.client() as client:
        for asked in (
            client.get(f"/v1/connectors/{name}/" if not name else f"/v1/connectors/{name}"),
            client.post(f"/v1/connectors/{name}/pause", json={}),
        ):
            # An empty name is the list, by a redirect.
            assert asked.status_code in ((307, 404) if not name else (404,)), asked.text
    assert not (shop.server.data / "paused").exists()
    assert "known: broken, lines" in shop.cli("connect", "pause", "nobody", code=2).err


def test_a_source_runs_in_one_place_at_a_time(shop: Shop) -> None:
    refused = shop.cli.real("connect", "run", str(shop.file), "--data", str(shop.server.data))
    assert refused.code == 3
    assert f"is being run by process {shop.server.child('broker').pid}" in refused.err


# ------------------------------------------------------------------------------------------- start and stop


def test_a_file_that_is_wrong_is_told_before_anything_listens(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "data")
    file = tmp_path / "sources.yaml"
    arguments = ("serve", "--kafka", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", str(cli.data))
    refused = cli.real(*arguments, "--connect", str(file))
    assert (refused.code, str(file) in refused.err) == (2, True), refused
    file.write_text("sources:\n  a:\n    connector: file\n    topic: t\n    config:\n      pth: x\n")
    refused = cli.real(*arguments, "--connect", str(file))
    assert refused.code == 2, refused
    assert f"{file}:2: sources.a.config.path is missing" in refused.err
    assert "Traceback" not in refused.err
    assert not cli.data.exists() or not (cli.data / "wal").exists()
    (tmp_path / "own.py").write_text("1 / 0\n")
    file.write_text("sources:\n  a:\n    connector: own:Source\n")
    refused = cli.real(*arguments, "--connect", str(file), PYTHONPATH=str(tmp_path))
    assert refused.code == 2, refused
    assert "the connector 'own:Source' can't be loaded: division by zero" in refused.err
    assert "Traceback" not in refused.err


def test_it_does_not_start_where_another_process_runs_a_source(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "data")
    file = write_sources(tmp_path / "sources.yaml", lines=tmp_path / "lines.jsonl")
    with lastword.open(cli.data):
        pass
    with states.SourceLock.acquire(states.source_folder(cli.data, "lines")):
        refused = cli.real(
            *("serve", "--kafka", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--data", str(cli.data)),
            *("--connect", str(file)),
        )
    assert refused.code == 3, refused
    assert f"The source 'lines' is being run by process {os.getpid()}" in refused.err


def test_a_stop_ends_the_sources_and_closes_the_wal(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"".join(map(line, range(1000))))
    file = write_sources(tmp_path / "sources.yaml", lines=path)
    data = tmp_path / "data"
    with serving(data, "--connect", str(file)) as server:
        wait_until(lambda: (data / "connect" / "lines" / "unit.json").exists(), lambda: server.log)
        assert server.stop() == 0
        assert "source lines has stopped" in server.log
    # A partition that was not closed in order would begin a new epoch.
    with lastword.open(data) as log:
        assert log.topic("lines").describe().partitions[0].leader_epoch == 0


def test_exactly_once_while_the_broker_is_killed_under_a_source(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.touch()
    file = write_sources(tmp_path / "sources.yaml", lines=path)
    written = 0
    ended = threading.Event()

    def write() -> None:
        nonlocal written
        with path.open("ab", buffering=0) as out:
            while not ended.wait(0.01):
                out.write(b"".join(line(written + each) for each in range(50)))
                written += 50

    with serving(tmp_path / "data", "--connect", str(file)) as server:
        cli = Cli(server.data)
        writing = threading.Thread(target=write)
        writing.start()
        try:
            for _ in range(3):

                def appended() -> int:
                    found = cli.json("connect", "status")
                    return int(found[0]["records"]) if found else 0

                before = appended()
                wait_until(lambda before=before: appended() > before + 500, lambda: server.log)  # type: ignore[misc]
                server.kill_child("broker")
        finally:
            ended.set()
            writing.join()
        assert consumed(server, "lines", written) == [str(each) for each in range(written)]
        wait_until(lambda: appended() == written, appended)
        assert len(cli.values("lines")) == written


def test_a_broker_that_is_started_again_serves_clients_before_its_sources(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(line(1))
    file = write_sources(tmp_path / "sources.yaml", lines=path)
    right = file.read_text()
    with serving(tmp_path / "data", "--connect", str(file)) as server:
        cli = Cli(server.data)
        wait_until(lambda: "lines" in {each["name"] for each in cli.json("topic", "list")})
        wait_until(lambda: cli.values("lines") == ["1"])
        file.write_text("sources: 7\n")
        server.kill_child("broker")
        assert consumed(server, "lines", 1) == ["1"]
        problem = cli.json("status")["sources"]["problem"]
        assert f"{file}:1: sources must be a group" in problem
        assert "The sources are not running" in cli("status").out
        assert cli.json("connect", "status")[0]["state"] == "stopped"
        file.write_text(right)
        with path.open("ab") as out:
            out.write(line(2))
        wait_until(lambda: cli.values("lines") == ["1", "2"], lambda: server.log)
        assert cli.json("status")["sources"] == {"states": {"lines": "running"}, "problem": None}
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.wait() == 0
