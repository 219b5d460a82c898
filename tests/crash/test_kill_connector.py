"""The process that runs a connector, and PostgreSQL, are killed again and again while transactions go on.

At the end the topics' state is the tables, row by row; each row's records are in the order of the commits, none is
missing and none is there twice.
"""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.support.changes import Workload, config_of, create_tables
from tests.support.cli import Cli
from tests.support.connect_child import ConnectJob
from tests.support.crash import Children, named_steps
from tests.support.postgres import Cluster, running_cluster
from tests.support.server import serving
from tests.support.waiting import wait_until

import lastword
from lastword.connect import ConnectConfig, Connectors
from lastword.connect.postgres.position import parse_lsn

# Sources check their records before they propose them.
STEPS = [
    step for step in named_steps() if step.startswith(("connect.", "staged.")) and step != "staged.checked"
]
ROWS = 1500
DEADLINE_S = 180


@pytest.fixture(scope="module")
def connectors() -> Iterator[Children]:
    started = Children("tests.support.connect_child")
    yield started
    started.close()


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with running_cluster() as started:
        yield started


def snapshot_is_complete(folder: Path) -> bool:
    try:
        position = json.loads((folder / "connect" / "shop" / "unit.json").read_bytes())["position"]
    except (OSError, ValueError, KeyError):
        return False
    return position is not None and all(each["done"] for each in position["tables"].values())


def kill_again_and_again(
    connectors: Children, cluster: Cluster, folder: Path, *, seed: int, rounds: int
) -> None:
    choose = random.Random(seed)
    create_tables(cluster, ROWS)
    workload = Workload(cluster, seed, ROWS)
    workload.start()
    noted = False
    try:
        for number in range(rounds):
            step = STEPS[number % len(STEPS)] if number % 3 else None
            running = connectors.start(
                ConnectJob(
                    folder=str(folder),
                    config=config_of(cluster),
                    kill_step=step,
                    kill_count=choose.randint(1, 6),
                )
            )
            running.read_until(lambda line: line[1] in ("started", "killed"))
            if number % 4 == 3:
                running.read_for(choose.uniform(0.1, 0.5))
                cluster.kill()
            running.read_for(choose.uniform(0.2, 1.0))
            running.kill()
            running.finish()
            if not noted and snapshot_is_complete(folder):
                workload.snapshot_is_complete()
                noted = True
    finally:
        workload.stop()
    assert workload.transactions > 20
    with lastword.open(folder) as log:
        with Connectors(log, ConnectConfig.from_mapping(config_of(cluster))) as last:
            if not noted:
                wait_until_followed(last, 0)
                workload.snapshot_is_complete()
            wait_until_followed(
                last, parse_lsn(cluster.run("SELECT pg_current_wal_insert_lsn()::text")[0][0])
            )
        workload.check(log)


def wait_until_followed(connectors: Connectors, lsn: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        status = connectors.status()[0]
        position = status["position"]
        is_read = position is not None and all(each["done"] for each in position["tables"].values())
        if is_read and parse_lsn(position["lsn"]) >= lsn:
            return
        assert time.monotonic() < deadline, status
        time.sleep(0.02)


@pytest.mark.parametrize("seed", [1])
def test_nothing_is_lost_or_doubled(connectors: Children, cluster: Cluster, folder: Path, seed: int) -> None:
    kill_again_and_again(connectors, cluster, folder, seed=seed, rounds=10)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_nothing_is_lost_or_doubled_beside_a_server_that_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    """The connector is a process of its own, and asks the broker's process, which is killed, to append."""
    choose = random.Random(7)
    create_tables(cluster, ROWS)
    workload = Workload(cluster, 7, ROWS)
    data, file = tmp_path / "data", tmp_path / "sources.yaml"
    file.write_text(yaml.safe_dump(config_of(cluster)))
    cli = Cli(data)
    with serving(data) as server:
        workload.start()
        process = cli.spawn("connect", "run", str(file), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: snapshot_is_complete(data))
            workload.snapshot_is_complete()
            for _ in range(4):
                time.sleep(choose.uniform(0.5, 2))
                server.kill_child("broker")
                time.sleep(choose.uniform(0.5, 2))
                process.kill()
                process.wait()
                process = cli.spawn(
                    "connect", "run", str(file), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
            time.sleep(1)
        finally:
            workload.stop()
        end = parse_lsn(cluster.run("SELECT pg_current_wal_insert_lsn()::text")[0][0])

        def followed() -> bool:
            status = json.loads(cli.real("connect", "status", "--json").out)[0]
            return status["state"] == "running" and parse_lsn(status["position"]["lsn"]) >= end

        wait_until(followed, lambda: (cli.real("connect", "status").out, server.log[-2000:]))
        process.terminate()
        assert process.wait(180) == 0
    with lastword.open(data) as log:
        workload.check(log)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 110))
def test_nothing_is_lost_or_doubled_for_long(
    connectors: Children, cluster: Cluster, folder: Path, seed: int
) -> None:
    kill_again_and_again(connectors, cluster, folder, seed=seed, rounds=60)
