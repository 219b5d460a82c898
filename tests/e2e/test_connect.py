"""Sources that are files or other logs, connectors of one's own, the command, and sources beside a server."""

from __future__ import annotations

import gzip
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.support.broker import INLINE, RunningBroker
from tests.support.cli import DEADLINE_S, Cli
from tests.support.server import Server
from tests.support.sources import running
from tests.support.waiting import wait_until

import lastword
from lastword import NewRecord
from lastword.connect import Chunk, ConnectConfig, Connectors, states
from lastword.connect.config import SourceConfig
from lastword.connect.destination import OwnDestination
from lastword.connect.runner import check
from lastword.errors import InvalidConfigError, LockedError
from lastword.folder import steps
from lastword.log import Log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with lastword.open(tmp_path / "data") as opened:
        yield opened


def line(number: int) -> bytes:
    return json.dumps({"key": f"k{number % 3}", "value": str(number)}).encode() + b"\n"


def values(log: Log, topic: str) -> list[str]:
    return [(record.value or b"").decode() for record in log.topic(topic).read()]


def file_source(path: Path, **config: str) -> dict[str, Any]:
    return {"connector": "file", "topic": "lines", "config": {"path": str(path), **config}}


# ------------------------------------------------------------------------------------------------------ file


def test_a_file_is_followed_as_it_grows(tmp_path: Path, log: Log) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(line(1) + line(2))
    with running(log, {"lines": file_source(path)}) as sources:
        sources.wait(lambda: sources.status()["records"] == 2)
        with path.open("ab") as file:
            file.write(line(3) + line(4)[:10])
            file.flush()
            sources.wait(lambda: sources.status()["records"] == 3)
            # The rest of a torn line comes later.
            file.write(line(4)[10:])
        sources.wait(lambda: sources.status()["records"] == 4)
    with path.open("ab") as file:
        file.write(line(5))
    with running(log, {"lines": file_source(path)}) as sources:
        sources.wait(lambda: sources.status()["records"] == 5)
    assert values(log, "lines") == ["1", "2", "3", "4", "5"]
    record = next(iter(log.topic("lines").read()))
    assert record.key == b"k1"


def test_a_file_is_rotated_and_cut(tmp_path: Path, log: Log) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(line(1))
    with running(log, {"lines": file_source(path)}) as sources:
        sources.wait(lambda: sources.status()["records"] == 1)
        with path.open("ab") as file:
            path.rename(tmp_path / "in.jsonl.1")
            file.write(line(2))
        path.write_bytes(line(3))
        sources.wait(lambda: sources.status()["records"] == 3)
        assert sources.status()["details"]["last_change"] == "rotated"
        path.write_bytes(b"")
        sources.wait(lambda: sources.status()["details"]["last_change"] == "cut")
        path.write_bytes(line(4))
        sources.wait(lambda: sources.status()["records"] == 4)
    # Rotated while nobody read it: the rest of the old one is read first.
    with path.open("ab") as file:
        file.write(line(5))
    path.rename(tmp_path / "in.jsonl.2")
    path.write_bytes(line(6))
    with running(log, {"lines": file_source(path)}) as sources:
        sources.wait(lambda: sources.status()["records"] == 6)
    assert values(log, "lines") == ["1", "2", "3", "4", "5", "6"]


@pytest.mark.parametrize(
    "names",
    [
        ["in.jsonl.3", "in.jsonl.2", "in.jsonl.1"],
        ["in.jsonl-20260129", "in.jsonl-20260130", "in.jsonl-20260131"],
    ],
)
def test_a_file_that_is_rotated_several_times_while_nobody_reads_loses_nothing(
    tmp_path: Path, log: Log, names: list[str]
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(line(1))
    with running(log, {"lines": file_source(path)}) as sources:
        sources.wait(lambda: sources.status()["records"] == 1)
    with path.open("ab") as file:
        file.write(line(2))
    path.rename(tmp_path / names[0])
    (tmp_path / names[1]).write_bytes(line(3))
    (tmp_path / names[2]).write_bytes(line(4) + line(5).rstrip())
    path.write_bytes(line(6))
    # Older ones were read long ago; others only look like them.
    for other in ("in.jsonl.10", "in.jsonl-20251231"):
        (tmp_path / other).write_bytes(line(0))
        os.utime(tmp_path / other, ns=(0, (tmp_path / names[0]).stat().st_mtime_ns - 1))
    for other in ("in.jsonl.bak", "in.jsonl.1.orig"):
        (tmp_path / other).write_bytes(line(0))
    with running(log, {"lines": file_source(path)}) as sources:
        sources.wait(lambda: sources.status()["records"] == 6)
        assert sources.status()["details"]["last_change"] == "rotated"
    assert values(log, "lines") == ["1", "2", "3", "4", "5", "6"]


def test_a_rotated_file_that_is_gone_is_told(tmp_path: Path, log: Log) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(line(1))
    with running(log, {"lines": file_source(path)}) as sources:
        sources.wait(lambda: sources.status()["records"] == 1)
    with path.open("ab") as file:
        file.write(line(2))
    # The inode stays, as one does that is used again.
    content = path.read_bytes()
    path.write_bytes(line(3) + line(4))
    with running(log, {"lines": file_source(path)}) as sources:
        assert "connect reset lines" in sources.wait_for_error(
            "is gone: it was removed, replaced or compressed"
        )
        assert sources.status()["state"] == "failing"
    path.rename(tmp_path / "new")
    path.write_bytes(content)
    with running(log, {"lines": file_source(path)}) as sources:
        # It is another inode, although the same content was put back.
        sources.wait_for_error("is gone")
    with running(log, {"lines": file_source(path, on_lost="skip")}) as sources:
        sources.wait(lambda: sources.status()["details"].get("last_change") == "lost")
        sources.wait(lambda: sources.status()["records"] == 3)
    assert values(log, "lines") == ["1", "1", "2"]


def test_a_rotated_file_that_was_compressed_is_told(tmp_path: Path, log: Log) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(line(1))
    with running(log, {"lines": file_source(path)}) as sources:
        sources.wait(lambda: sources.status()["records"] == 1)
    path.rename(tmp_path / "in.jsonl.2")
    compressed = tmp_path / "in.jsonl.1.gz"
    compressed.write_bytes(gzip.compress(line(2)))
    path.write_bytes(line(3))
    with running(log, {"lines": file_source(path)}) as sources:
        sources.wait_for_error(f"{compressed} was compressed before it was read")
        # As the error says.
        (tmp_path / "in.jsonl.1").write_bytes(gzip.decompress(compressed.read_bytes()))
        compressed.unlink()
        sources.wait(lambda: sources.status()["records"] == 3)
    assert values(log, "lines") == ["1", "2", "3"]


def test_a_line_that_is_wrong_stops_a_file_or_is_left_out(tmp_path: Path, log: Log) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(line(1) + b"oops\n" + line(2))
    with running(log, {"lines": file_source(path)}) as sources:
        error = sources.wait_for_error("is not JSON")
    assert f"the line at byte {len(line(1))}" in error
    with running(log, {"lines": file_source(path, on_error="skip")}) as sources:
        sources.wait(lambda: sources.status()["records"] == 2)
        sources.wait(lambda: sources.status()["details"].get("skipped_lines") == 1)


def test_json_and_plain_lines(tmp_path: Path, log: Log) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b'{"id": 7, "name": "x"}\n')
    source = file_source(path, format="json", key="id")
    with running(log, {"json": source}) as sources:
        sources.wait(lambda: sources.status()["records"] == 1)
    with running(log, {"plain": {**file_source(path, format="lines"), "topic": "plain"}}) as sources:
        sources.wait(lambda: sources.status()["records"] == 1)
    record = next(iter(log.topic("lines").read()))
    assert (record.key, record.value) == (b"7", b'{"id": 7, "name": "x"}')
    assert next(iter(log.topic("plain").read())).key is None


def test_a_record_that_the_topic_does_not_take_is_told(tmp_path: Path, log: Log) -> None:
    topic = log.create_topic("lines", config={"max.message.bytes": 1000})
    path = tmp_path / "in.jsonl"
    path.write_bytes(line(1) + json.dumps({"value": "v" * 2000}).encode() + b"\n")
    with running(log, {"lines": file_source(path)}) as sources:
        sources.wait_for_error("topic 'lines' does not accept a record of the source")
        log.alter_topic("lines", set_config={"max.message.bytes": 100000})
        sources.wait(lambda: sources.status()["records"] == 2)
    assert topic.extents()[0].log_end == 2


# ----------------------------------------------------------------------------------------------------- kafka


def test_topics_of_a_kafka_cluster_are_mirrored(tmp_path: Path, log: Log) -> None:
    config = {"compaction.service.factory": INLINE}
    with lastword.open(tmp_path / "other", config=config) as other, RunningBroker(other) as broker:
        topic = other.create_topic("events", partitions=3)
        topic.append_many(
            [
                NewRecord(
                    key=b"k%d" % (i % 50),
                    value=None if i % 9 == 0 else b"v%d" % i,
                    timestamp_ms=1000 + i,
                    headers=(("h", b"%d" % i),),
                )
                for i in range(2000)
            ]
        )
        source = {
            "connector": "kafka",
            "topic": "mirror.{topic}",
            "config": {
                "bootstrap": broker.address,
                "topics": "events",
                "client": {"fetch.wait.max.ms": "50"},
            },
        }
        with running(log, {"mirror": source}) as sources:
            sources.wait(lambda: sources.status()["records"] == 2000)
        topic.append(b"late", b"one")
        with running(log, {"mirror": source}) as sources:
            sources.wait(lambda: sources.status()["records"] == 2001)
        assert list(log.topic("mirror.events").read()) == list(topic.read())


def test_a_topic_that_kafka_does_not_have_is_an_error(tmp_path: Path, log: Log) -> None:
    with (
        lastword.open(
            tmp_path / "other",
            config={"compaction.service.factory": INLINE, "auto.create.topics.enable": "false"},
        ) as other,
        RunningBroker(other) as broker,
    ):
        source = {"connector": "kafka", "config": {"bootstrap": broker.address, "topics": "nothing"}}
        with running(log, {"mirror": source}) as sources:
            sources.wait_for_error("Kafka has no topic 'nothing'")


def test_consumers_of_a_broker_see_what_a_source_in_its_process_appends(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(line(1))
    config = {"compaction.service.factory": INLINE}
    with (
        lastword.open(tmp_path / "data", config=config) as log,
        RunningBroker(log) as broker,
        running(log, {"lines": file_source(path)}) as sources,
    ):
        sources.wait(lambda: sources.status()["records"] == 1)
        consumer = Consumer(
            {
                "bootstrap.servers": broker.address,
                "group.id": "g",
                "fetch.wait.max.ms": 120_000,
                "socket.timeout.ms": 150_000,
            }
        )
        consumer.assign([TopicPartition("lines", 0, 0)])
        found = []
        for number in (2, 3):
            message = consumer.poll(DEADLINE_S)
            assert message is not None and message.error() is None
            found.append(message.value())
            with path.open("ab") as file:
                file.write(line(number))
        # The fetch waits much longer than the test does: it must be told.
        message = consumer.poll(DEADLINE_S)
        assert message is not None and [*found, message.value()] == [b"1", b"2", b"3"]
        consumer.close()


# --------------------------------------------------------------------------------------------- third parties


class Counting:
    """A connector of somebody's own: numbers, of which each chunk has some."""

    fail_at = -1

    def __init__(self, options: Any, context: Any) -> None:
        self.size = options.number("size", 3)
        options.finish()
        self.context = context

    def check(self) -> list[str]:
        return ["there are not enough numbers"]

    def read(self, position: Any) -> Iterator[Chunk]:
        from lastword.connect import SourceRecord

        self.context.needs_topic(self.context.topic, None)
        number = 0 if position is None else position["next"]
        while True:
            if number == Counting.fail_at:
                Counting.fail_at = -1
                raise RuntimeError("no more numbers")
            some = range(number, number + self.size)
            number += self.size
            yield Chunk(
                [SourceRecord(self.context.topic, b"%d" % each, b"%d" % each) for each in some],
                {"next": number},
            )
            self.context.wait(0.001)

    def appended(self, position: Any) -> None: ...

    def close(self) -> None: ...


COUNTING = {"connector": f"{__name__}:Counting", "topic": "numbers", "config": {"size": 3}}


def test_a_connector_of_ones_own_is_loaded_by_name_and_started_again(log: Log) -> None:
    Counting.fail_at = 30
    with running(log, {"numbers": COUNTING}) as sources:
        sources.wait(lambda: sources.status()["records"] >= 60)
        assert sources.status()["errors"] == 1
    found = values(log, "numbers")
    assert found == [str(each) for each in range(len(found))]


def test_each_unit_is_appended_once_whatever_step_fails(log: Log) -> None:
    """Errors instead of kills: the same process goes on."""
    seen: list[str] = []

    def fail_once(step: str) -> None:
        if step.startswith("connect.") and seen.count(step) < 3:
            seen.append(step)
            raise RuntimeError(step)

    steps.install(fail_once)
    try:
        with running(log, {"numbers": COUNTING}) as sources:
            sources.wait(lambda: sources.status()["records"] >= 60)
    finally:
        steps.install(None)
    assert set(seen) == {"connect.staged", "connect.journaled", "connect.appended"}
    found = values(log, "numbers")
    assert found == [str(each) for each in range(len(found))]


@pytest.mark.parametrize("created_again", [False, True])
@pytest.mark.parametrize("while_running", [False, True])
def test_a_topic_that_was_deleted_does_not_come_back_with_later_records_only(
    log: Log, created_again: bool, while_running: bool
) -> None:
    def delete() -> None:
        log.delete_topic("numbers")
        if created_again:
            log.create_topic("numbers", partitions=1)

    with running(log, {"numbers": COUNTING}) as sources:
        sources.wait(lambda: sources.status()["records"] >= 30)
        if while_running:
            delete()
            sources.wait_for_error("The topic 'numbers' was deleted")
    if not while_running:
        delete()
    with running(log, {"numbers": COUNTING}) as sources:
        assert "reset numbers" in sources.wait_for_error("The topic 'numbers' was deleted")
        assert log.topics() == (["numbers"] if created_again else [])
        assert not created_again or not values(log, "numbers")
        # As the error says.
        states.pause(log.path, "numbers")
        sources.wait(lambda: sources.status()["state"] == "paused")
        states.reset(log.path, "numbers")
        states.resume(log.path, "numbers")
        sources.wait(lambda: sources.status()["records"] >= 30 and sources.status()["error"] is None)
    found = [int(each) for each in values(log, "numbers")]
    assert found == list(range(len(found)))


def test_a_topic_that_is_deleted_while_nothing_comes_is_told(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lastword.connect.runner.TOPIC_CHECK_S", 0.05)
    path = tmp_path / "in.jsonl"
    path.write_bytes(line(1))
    with running(log, {"lines": file_source(path)}) as sources:
        sources.wait(lambda: sources.status()["records"] == 1)
        log.delete_topic("lines")
        sources.wait_for_error("The topic 'lines' was deleted")
        assert sources.status()["state"] == "failing"
    config = ConnectConfig.from_mapping(
        {"sources": {"lines": file_source(path)}, "settings": {"topic": {"auto_create": "true"}}}
    )
    assert "The topic 'lines' was deleted" in check(config, OwnDestination(log))["lines"][0]


def test_a_source_that_is_renamed_connector_is_refused(tmp_path: Path, log: Log) -> None:
    with running(log, {"numbers": COUNTING}) as sources:
        sources.wait(lambda: sources.status()["records"] >= 3)
    with running(log, {"numbers": file_source(tmp_path / "x")}) as sources:
        sources.wait_for_error("connect reset numbers")


def test_topics_are_created_only_if_that_is_wanted(log: Log) -> None:
    with running(log, {"numbers": COUNTING}, topic={"auto_create": "false"}) as sources:
        sources.wait_for_error("there is no topic 'numbers'; create it, or set settings.topic.auto_create")
        log.create_topic("numbers", partitions=2)
        sources.wait(lambda: sources.status()["records"] >= 3)


def test_a_source_runs_once_at_a_time(log: Log) -> None:
    config = ConnectConfig.from_mapping({"sources": {"numbers": COUNTING}})
    with Connectors(log, config), pytest.raises(LockedError, match="'numbers' is being run by process"):
        Connectors(log, config).start()


def test_a_name_that_loads_nothing_is_an_error(log: Log) -> None:
    for name, error in {
        "mongo": "there is no connector 'mongo'; allowed: postgres-cdc, file, kafka, or module:Class",
        "no.such.module:Class": "can't be loaded: No module named 'no'",
        "json:JSONDecoder": "must be a class with check, read, appended, close",
    }.items():
        source = SourceConfig(name="x", connector=name, topic=None, where="f.yaml:3", given={})
        with pytest.raises(InvalidConfigError, match=r"f\.yaml:3: sources\.x\.connector") as raised:
            Connectors(log, ConnectConfig(sources={"x": source}))
        assert error in str(raised.value)


# ------------------------------------------------------------------------------------------------ the command


def write_config(tmp_path: Path, path: Path) -> Path:
    file = tmp_path / "sources.yaml"
    file.write_text(
        f"""\
sources:
  lines:
    connector: file
    topic: lines
    config:
      path: {path}
settings:
  topic:
    auto_create: true
    default_config:
      cleanup.policy: compact
"""
    )
    return file


def test_the_command_runs_checks_pauses_and_resets(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "data")
    path = tmp_path / "in.jsonl"
    file = write_config(tmp_path, path)
    assert "No such file" in cli("connect", "check", str(file), code=1).out
    path.write_bytes(line(1) + line(2))
    assert cli.json("connect", "check", str(file)) == {"lines": []}
    cli("topic", "create", "other")
    assert cli.json("connect", "check", str(file)) == {"lines": []}
    assert cli.json("connect", "status") == []
    process = cli.spawn("connect", "run", str(file), "--json")

    def state() -> dict[str, Any]:
        found = json.loads(cli("connect", "status", "--json").out)
        return found[0] if found else {}

    try:
        wait_until(lambda: state().get("records") == 2, state)
        assert state()["state"] == "running" and "running" in cli("connect", "status").out
        assert "is being run by process" in cli("connect", "reset", "lines", "--yes", code=3).err
        cli("connect", "pause", "lines")
        wait_until(lambda: state()["state"] == "paused", state)
        cli("connect", "resume", "lines")
        wait_until(lambda: state()["state"] == "running", state)
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=180)
    assert process.returncode == 0, (out, err)
    assert json.loads(out)["sources"] == ["lines"]
    assert state()["state"] == "stopped"
    assert cli.values("lines") == ["1", "2"]
    assert "known: lines" in cli("connect", "pause", "nobody", code=2).err
    cli("connect", "reset", "lines", "--yes")
    described = cli.json("topic", "describe", "lines")
    assert described["cleanup_policy"] == "compact"


def test_a_file_that_is_wrong_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "sources.yaml"
    file.write_text("sources:\n  a:\n    connector: file\n    topic: t\n    config:\n      pth: x\n")
    error = Cli(tmp_path / "data")("connect", "run", str(file), code=2).err
    assert f"{file}:2: sources.a.config.path is missing; it is the file to read" in error


def test_sources_run_beside_a_server(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(line(1) + line(2))
    file = write_config(tmp_path, path)
    data = tmp_path / "data"
    server = Server(data)
    try:
        cli = Cli(data)
        process = cli.spawn("connect", "run", str(file))
        try:
            wait_until(lambda: (data / "staging").exists() and cli.values("lines") == ["1", "2"])
        finally:
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=180)
        assert process.returncode == 0, err
    finally:
        server.stop()
