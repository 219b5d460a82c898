"""The Java client and Kafka's own command-line tools against Lastword, and Spark's Kafka source on a compacted topic."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from peers.jars import UnreachableError, jars, python_with, version_of
from peers.kafka import TOOLS, tool
from tests.support.broker import RunningBroker, running_broker
from tests.support.waiting import wait_until

from lastword.record import NewRecord


@pytest.fixture(scope="module", autouse=True)
def _tools() -> None:
    try:
        jars("kafka")
    except UnreachableError as error:
        pytest.skip(str(error))


@pytest.fixture
def ours(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path / "data") as broker:
        yield broker


def produce(ours: RunningBroker, topic: str, lines: str, *properties: str) -> None:
    tool(
        "console-producer",
        *("--topic", topic, "--reader-property", "parse.key=true", "--reader-property", "key.separator=:"),
        *("--reader-property", "null.marker=NULL"),
        *(each for name in properties for each in ("--command-property", name)),
        address=ours.address,
        stdin=lines.encode(),
    )


def consume(ours: RunningBroker, topic: str, *options: str, count: int) -> list[str]:
    text = tool(
        "console-consumer",
        *("--topic", topic, "--from-beginning", "--max-messages", str(count), "--timeout-ms", "30000"),
        *("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true"),
        *("--formatter-property", "print.headers=true", "--formatter-property", "null.literal=NULL"),
        *options,
        address=ours.address,
    )
    return [line for line in text.splitlines() if line.startswith("Offset:")]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_the_console_tools_write_and_read(ours: RunningBroker, compression: str) -> None:
    ours.log.create_topic("users", partitions=1, config={"cleanup.policy": "compact"})
    lines = "".join(f"user-{number % 10}:value {number}\n" for number in range(100)) + "user-3:NULL\n"
    produce(ours, "users", lines, f"compression.type={compression}")
    found = consume(ours, "users", count=101)
    assert len(found) == 101
    assert found[-1].split("\t")[-2:] == ["user-3", "NULL"]
    ours.log.topic("users").seal()
    ours.log.compact(["users"])
    left = consume(ours, "users", count=10)
    assert [line.split("\t")[0] for line in left] == [
        f"Offset:{offset}" for offset in (90, 91, 92, 94, 95, 96, 97, 98, 99, 100)
    ]


def test_topics_are_made_described_changed_and_deleted(ours: RunningBroker) -> None:
    address = ours.address
    made = ("--topic", "config", "--partitions", "3", "--replication-factor", "1")
    tool("topics", "--create", *made, "--config", "cleanup.policy=compact", address=address)
    assert "config" in tool("topics", "--list", address=address).split()
    described = tool("topics", "--describe", "--topic", "config", address=address)
    assert "PartitionCount: 3" in described
    assert "cleanup.policy=compact" in described
    with pytest.raises(RuntimeError, match="TopicExistsException"):
        tool("topics", "--create", *made, address=address)
    tool("topics", "--alter", "--topic", "config", "--partitions", "5", address=address)
    assert ours.log.topic("config").partitions == 5

    entity = ("--entity-type", "topics", "--entity-name", "config")
    tool("configs", *entity, "--alter", "--add-config", "delete.retention.ms=1234", address=address)
    assert "delete.retention.ms=1234" in tool("configs", *entity, "--describe", address=address)
    with pytest.raises(RuntimeError, match=r"min\.cleanable\.dirty\.ratio"):
        tool("configs", *entity, "--alter", "--add-config", "min.cleanable.dirty.ratio=7", address=address)
    tool("configs", *entity, "--alter", "--delete-config", "delete.retention.ms", address=address)
    assert "delete.retention.ms=1234" not in tool("configs", *entity, "--describe", address=address)

    tool("topics", "--delete", "--topic", "config", address=address)
    assert "config" not in tool("topics", "--list", address=address).split()


def test_records_are_deleted_and_offsets_asked_for(ours: RunningBroker, tmp_path: Path) -> None:
    ours.log.create_topic("events", partitions=1)
    produce(ours, "events", "".join(f"k{n}:{n}\n" for n in range(20)))
    request = tmp_path / "delete.json"
    request.write_text(
        json.dumps({"partitions": [{"topic": "events", "partition": 0, "offset": 5}], "version": 1})
    )
    tool("delete-records", "--offset-json-file", str(request), address=ours.address)
    earliest = tool("get-offsets", "--topic", "events", "--time", "-2", address=ours.address)
    assert earliest.strip() == "events:0:5"
    assert tool("get-offsets", "--topic", "events", address=ours.address).strip() == "events:0:20"


class Member:
    """A Java consumer in a group, as a process; it prints what happens to it as JSON lines."""

    def __init__(self, ours: RunningBroker, topic: str, group: str) -> None:
        command = ["java", "-Xmx256m", "-cp", f"{jars('kafka')}/*", TOOLS["verifiable-consumer"]]
        self._process = subprocess.Popen(
            [
                *(*command, "--bootstrap-server", ours.address, "--topic", topic, "--group-id", group),
                *("--group-protocol", "classic", "--session-timeout", "6000", "--verbose"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.events: list[dict[str, object]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.events.append(json.loads(line))

    @property
    def partitions(self) -> set[int]:
        """Those that it has now."""
        held: set[int] = set()
        for event in self.events:
            own = {each["partition"] for each in event.get("partitions", ())}  # type: ignore[attr-defined,index]
            if event["name"] == "partitions_assigned":
                held |= own
            elif event["name"] == "partitions_revoked":
                held -= own
        return held

    @property
    def read(self) -> list[tuple[int, int]]:
        return [
            (event["partition"], event["offset"])  # type: ignore[misc]
            for event in list(self.events)
            if event["name"] == "record_data"
        ]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(180)
        self._reader.join(10)


def test_a_group_of_java_consumers_shares_and_takes_over(ours: RunningBroker) -> None:
    ours.log.create_topic("shared", partitions=4)
    topic = ours.log.topic("shared")
    for partition in range(4):
        topic.append_many([NewRecord(key=b"k%d" % n, value=b"v") for n in range(50)], partition=partition)
    first = Member(ours, "shared", "g")
    try:
        wait_until(lambda: len(first.read) == 200, "the first member reads everything")
        second = Member(ours, "shared", "g")
        try:
            wait_until(lambda: len(first.partitions) == len(second.partitions) == 2, "two members share")
            for partition in range(4):
                topic.append_many(
                    [NewRecord(key=b"x%d" % n, value=b"v") for n in range(10)], partition=partition
                )
            wait_until(lambda: len({*first.read, *second.read}) == 240, "what is new goes to both")
            described = tool("consumer-groups", "--describe", "--group", "g", address=ours.address)
            assert described.count("shared") == 4
        finally:
            second.stop()
        wait_until(lambda: first.partitions == {0, 1, 2, 3}, "the first takes over")
    finally:
        first.stop()
    assert "g" in tool("consumer-groups", "--list", address=ours.address).split()
    wait_until(
        lambda: (
            "60" in tool("consumer-groups", "--describe", "--group", "g", "--offsets", address=ours.address)
        ),
        "offsets are committed",
    )
    reset = ("--reset-offsets", "--group", "g", "--topic", "shared", "--to-earliest", "--execute")
    tool("consumer-groups", *reset, address=ours.address)
    tool("consumer-groups", "--delete", "--group", "g", address=ours.address)
    assert "g" not in tool("consumer-groups", "--list", address=ours.address).split()


def test_a_java_group_resumes_after_a_restart(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as ours:
        ours.log.create_topic("resumed", partitions=1)
        produce(ours, "resumed", "".join(f"k{n}:{n}\n" for n in range(30)))
        assert len(consume(ours, "resumed", "--group", "g", count=10)) == 10
    with running_broker(tmp_path / "data") as ours:
        found = consume(ours, "resumed", "--group", "g", count=20)
        assert found[0].startswith("Offset:10\t")
        assert found[-1].startswith("Offset:29\t")


SPARK_JOB = """
import sys
from pyspark.sql import SparkSession
address, jars = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.jars", jars).config("spark.ui.enabled", "false").getOrCreate()
rows = (
    spark.read.format("kafka")
    .option("kafka.bootstrap.servers", address).option("subscribe", "users")
    .option("startingOffsets", "earliest").load()
)
for row in rows.selectExpr("offset", "cast(key as string) key", "cast(value as string) value").orderBy("offset").collect():
    print("ROW", row.offset, row.key, row.value)
spark.stop()
"""


def test_sparks_own_kafka_source_reads_a_compacted_topic(ours: RunningBroker, tmp_path: Path) -> None:
    try:
        folder, python = jars("spark-kafka"), python_with(f"pyspark=={version_of('spark')}")
    except UnreachableError as error:
        pytest.skip(str(error))
    ours.log.create_topic("users", partitions=1, config={"cleanup.policy": "compact"})
    topic = ours.log.topic("users")
    topic.append_many([NewRecord(key=b"k%d" % (n % 10), value=b"v%d" % n) for n in range(1000)])
    topic.append_many([NewRecord(key=b"k3")])
    topic.seal()
    ours.log.compact(["users"])
    topic.append_many([NewRecord(key=b"k0", value=b"tail")])
    job = tmp_path / "job.py"
    job.write_text(SPARK_JOB)
    done = subprocess.run(
        [str(python), str(job), ours.address, ",".join(str(each) for each in folder.glob("*.jar"))],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("ROW")]
    kept = [990, 991, 992, *range(994, 1000)]
    assert found == [
        *([str(offset), f"k{offset % 10}", f"v{offset}"] for offset in kept),
        ["1000", "k3", "None"],
        ["1001", "k0", "tail"],
    ]
