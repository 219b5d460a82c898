"""The process that runs a connector, and PostgreSQL, are killed again and again while transactions go on.

At the end the topics' state is the tables, row by row; each row's records are in the order of the commits, none is
missing and none is there twice.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.changes import Workload, config_of, create_tables
from tests.support.connect_child import ConnectJob
from tests.support.crash import Children
from tests.support.postgres import Cluster, running_cluster

import lastword
from lastword.connect import ConnectConfig, Connectors
from lastword.connect.postgres.position import parse_lsn

STEPS = (
    "connect.staged",
    "staged.proposed",
    "connect.journaled",
    "staged.checked",
    "staged.noted",
    "staged.written",
    "staged.synced",
    "staged.committed",
    "staged.cleared",
    "connect.appended",
)
ROWS = 1500
DEADLINE_S = 60


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
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(100, 110))
def test_nothing_is_lost_or_doubled_for_long(
    connectors: Children, cluster: Cluster, folder: Path, seed: int
) -> None:
    kill_again_and_again(connectors, cluster, folder, seed=seed, rounds=60)
