"""kafkajs, from npm, against Lastword."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from peers.jars import cache
from tests.support.broker import RunningBroker, running_broker

import peers

VERSION = "2.2.4"
SCRIPT = Path(peers.__file__).with_name("kafkajs.js")


@pytest.fixture(scope="module")
def modules() -> Path:
    folder = cache() / f"kafkajs-{VERSION}"
    if not (folder / "node_modules" / "kafkajs").exists():
        if shutil.which("npm") is None:
            pytest.skip("npm is not installed, so kafkajs can't be fetched")
        done = subprocess.run(
            ["npm", "install", "--silent", "--prefix", str(folder), f"kafkajs@{VERSION}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        if done.returncode != 0:
            pytest.skip(f"npm could not fetch kafkajs: {done.stderr[-300:]}")
    return folder / "node_modules"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path / "data", {"group.initial.rebalance.delay.ms": 0}) as running:
        yield running


def node(modules: Path, broker: RunningBroker, *args: str, stdin: str = "") -> list[dict[str, object]]:
    done = subprocess.run(
        ["node", str(SCRIPT), broker.address, *args],
        input=stdin,
        capture_output=True,
        text=True,
        env={"NODE_PATH": str(modules), "PATH": os.environ["PATH"], "KAFKAJS_NO_PARTITIONER_WARNING": "1"},
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[dict[str, object]] = json.loads(done.stdout)
    return found


def lines(count: int) -> str:
    rows = [{"key": f"k{n % 10}", "value": f"v{n}", "headers": {"n": str(n)}} for n in range(count)]
    return "".join(json.dumps(row) + "\n" for row in [*rows, {"key": "k3", "value": None}])


@pytest.mark.parametrize("codec", ["None", "GZIP"])
def test_it_writes_reads_and_reads_what_compaction_left(
    modules: Path, broker: RunningBroker, codec: str
) -> None:
    broker.log.create_topic("users", partitions=1, config={"cleanup.policy": "compact"})
    assert node(modules, broker, "produce", "users", codec, stdin=lines(50))[0]["errorCode"] == 0
    found = node(modules, broker, "consume", "users", "first", "51")
    assert [each["offset"] for each in found] == list(range(51))
    assert found[7] == {"partition": 0, "offset": 7, "key": "k7", "value": "v7", "headers": {"n": "7"}}
    assert found[50]["value"] is None
    broker.log.topic("users").seal()
    broker.log.compact(["users"])
    left = node(modules, broker, "consume", "users", "second", "10")
    assert [each["offset"] for each in left] == [40, 41, 42, *range(44, 51)]


def test_a_group_goes_on_after_a_restart(modules: Path, tmp_path: Path) -> None:
    for rounds in range(2):
        with running_broker(tmp_path / "data", {"group.initial.rebalance.delay.ms": 0}) as broker:
            if rounds == 0:
                broker.log.create_topic("grouped", partitions=2)
            node(modules, broker, "produce", "grouped", "None", stdin=lines(19))
            found = node(modules, broker, "consume", "grouped", "readers", "20")
            assert sorted(str(each["value"]) for each in found) == sorted(
                ["None", *(f"v{n}" for n in range(19))]
            )
