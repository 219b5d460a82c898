"""kcat, as it comes with Debian, against the broker: an old librdkafka in another process."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.broker import RunningBroker, running_broker
from tests.support.waiting import wait_until

KCAT = shutil.which("kcat")
pytestmark = pytest.mark.skipif(KCAT is None, reason="kcat is not installed (Debian: apt-get install kcat)")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path / "data", {"group.initial.rebalance.delay.ms": 0}) as running:
        yield running


def kcat(broker: RunningBroker, *args: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        [str(KCAT), "-b", broker.address, *args],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_all(broker: RunningBroker, topic: str) -> list[dict[str, Any]]:
    """Every record; kcat ends at the end of the partition, which a compacted tail must not hide from it."""
    text = kcat(broker, "-C", "-t", topic, "-o", "beginning", "-e", "-q", "-J")
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_it_writes_and_reads_keys_headers_and_tombstones(broker: RunningBroker, compression: str) -> None:
    broker.log.create_topic("users", partitions=1, config={"cleanup.policy": "compact"})
    lines = "".join(f"user-{n % 10}:value {n}\n" for n in range(100)) + "user-3:\n"
    kcat(broker, *("-P", "-t", "users", "-K:", "-Z", "-z", compression, "-H", "from=kcat"), stdin=lines)
    found = read_all(broker, "users")
    assert [each["offset"] for each in found] == list(range(101))
    assert found[0]["key"] == "user-0"
    assert found[0]["headers"] == ["from", "kcat"]
    assert found[100]["payload"] is None

    broker.log.topic("users").seal()
    broker.log.compact(["users"])
    assert [each["offset"] for each in read_all(broker, "users")] == [90, 91, 92, *range(94, 101)]


def test_it_comes_to_the_end_although_the_last_records_are_gone(broker: RunningBroker) -> None:
    config = {"cleanup.policy": "compact", "delete.retention.ms": "0"}
    broker.log.create_topic("gone", partitions=1, config=config)
    kcat(broker, "-P", "-t", "gone", "-K:", "-Z", stdin="a:1\nb:1\nb:\n")
    broker.log.topic("gone").seal()
    for _ in range(2):
        time.sleep(0.01)
        broker.log.compact(["gone"])
    assert [(each["offset"], each["key"]) for each in read_all(broker, "gone")] == [(0, "a")]


def test_offsets_are_asked_for_by_time(broker: RunningBroker) -> None:
    broker.log.create_topic("timed", partitions=1)
    kcat(broker, "-P", "-t", "timed", "-K:", stdin="a:1\n")
    first = read_all(broker, "timed")[0]["ts"]
    wait_until(lambda: int(time.time() * 1000) > first, "the clock has moved on")
    kcat(broker, "-P", "-t", "timed", "-K:", stdin="a:2\n")
    assert kcat(broker, "-Q", "-t", f"timed:0:{first + 1}").strip() == "timed [0] offset 1"


def test_a_group_goes_on_where_it_was(tmp_path: Path) -> None:
    for rounds in range(2):
        with running_broker(tmp_path / "data", {"group.initial.rebalance.delay.ms": 0}) as broker:
            if rounds == 0:
                broker.log.create_topic("grouped", partitions=2)
            lines = "".join(f"k{n}:{rounds}\n" for n in range(20))
            kcat(broker, "-P", "-t", "grouped", "-K:", stdin=lines)
            options = ("-q", "-c", "20", "-f", "%s\n", "-X", "auto.offset.reset=earliest")
            text = kcat(broker, "-G", "readers", *options, "grouped")
            assert text.split() == [str(rounds)] * 20


def test_the_cluster_is_listed(broker: RunningBroker) -> None:
    broker.log.create_topic("listed", partitions=3)
    found = json.loads(kcat(broker, "-L", "-J"))
    assert [(each["topic"], len(each["partitions"])) for each in found["topics"]] == [("listed", 3)]
