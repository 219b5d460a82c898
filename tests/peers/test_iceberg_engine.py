"""Iceberg's own Spark runtime maintains a topic's table: it is still read exactly, and nothing is lost.

Its procedures commit to the same catalog, between two runs, and between the plan of a run and its commit.
rewrite_position_delete_files refuses every table that is partitioned by a column named `partition`, as ours are.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from peers.jars import UnreachableError, jars, python_with, version_of
from sqlalchemy import make_url
from tests.support.clock import HOUR_MS
from tests.support.compacted import Twin, keyed, meanwhile, segments_of
from tests.support.compaction_model import Policy

from peers import iceberg_worker

TABLE = "lastword.default.t"
REWRITE_DATA = (
    "CALL lastword.system.rewrite_data_files(table => 'default.t', options => map('rewrite-all', 'true'))"
)
REWRITE_DELETES = "CALL lastword.system.rewrite_position_delete_files(table => 'default.t', options => map('rewrite-all', 'true'))"
EXPIRE = "CALL lastword.system.expire_snapshots(table => 'default.t', retain_last => 1, older_than => TIMESTAMP '2100-01-01 00:00:00')"


class RefusedError(Exception):
    """The engine's answer was an error."""


class Engine:
    """Spark with Iceberg, in a process of its own."""

    def __init__(self, folder: Path, catalog_uri: str) -> None:
        try:
            jar_folder, python = jars("iceberg"), python_with(f"pyspark=={version_of('spark')}")
        except UnreachableError as error:
            pytest.skip(str(error))
        self._errors = (folder / "spark.err").open("w")
        self._process = subprocess.Popen(
            [
                *(python, iceberg_worker.__file__, jar_folder, _jdbc(catalog_uri)),
                *((folder / "data" / "warehouse").as_uri(), folder),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._answer()

    def __call__(self, sql: str) -> list[list[Any]]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(sql) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> list[list[Any]]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, Path(self._errors.name).read_text()[-3000:]
        answer = json.loads(line)
        if "error" in answer:
            raise RefusedError(answer["error"])
        rows: list[list[Any]] = answer["rows"]
        return rows

    def offsets(self) -> list[tuple[int, int]]:
        rows = self(f"SELECT `partition`, `offset` FROM {TABLE} ORDER BY 1, 2")
        return [(partition, offset) for partition, offset in rows]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()


def _jdbc(uri: str) -> str:
    url = make_url(uri)
    factory = "org.newsclub.net.unix.AFUNIXSocketFactory$FactoryArg"
    socket = f"{url.query['host']}/.s.PGSQL.5432"
    return (
        f"jdbc:postgresql://localhost/{url.database}?user={url.username}&sslmode=disable"
        f"&socketFactory={factory}&socketFactoryArg={socket}"
    )


@pytest.fixture
def twin(tmp_path: Path, postgres_uri: str) -> Iterator[Twin]:
    # Below this share rows are marked, so that there are delete files.
    policy = Policy(min_rewrite_ratio=0.9, delete_retention_ms=HOUR_MS, at_seal=True)
    broker = {"catalog": {"type": "sql", "uri": postgres_uri}}
    with Twin(
        tmp_path / "data", policy, partitions=2, config={"segment.bytes": 20_000}, broker=broker
    ) as made:
        yield made
        made.log.delete_topic("t")


@pytest.fixture
def engine(tmp_path: Path, twin: Twin, postgres_uri: str) -> Iterator[Engine]:
    started = Engine(tmp_path, postgres_uri)
    yield started
    started.close()


def grow(twin: Twin, seed: int) -> None:
    """Some segments with keys of their own, and some that supersede a few of each."""
    chance = random.Random(seed)
    for part in range(3):
        for partition in range(2):
            own = [(f"{seed}-{part}-{number}", "x" * chance.randrange(100)) for number in range(150)]
            common = [
                (f"k{chance.randrange(40)}", None if chance.random() < 0.2 else str(part)) for _ in range(20)
            ]
            twin.append(*keyed(*own, *common), partition=partition)
        twin.seal()


def both_see_the_same(twin: Twin, engine: Engine) -> None:
    twin.check()
    expected = [(partition, row.offset) for partition, model in enumerate(twin.models) for row in model.rows]
    assert engine.offsets() == expected


def marked(twin: Twin) -> int:
    return sum(
        each.marks is not None for partition in range(2) for each in segments_of(twin.table, partition)
    )


def test_it_reads_marks_as_they_are(twin: Twin, engine: Engine) -> None:
    for seed in range(3):
        grow(twin, seed)
        twin.compact(asked_for=True)
        both_see_the_same(twin, engine)
    assert marked(twin) > 0


def test_rewritten_files_are_read_and_compacted_again(twin: Twin, engine: Engine) -> None:
    grow(twin, 1)
    twin.compact(asked_for=True)
    grow(twin, 2)
    twin.compact(asked_for=True)
    assert marked(twin) > 0
    engine(REWRITE_DATA)
    both_see_the_same(twin, engine)
    for seed in (3, 4):
        grow(twin, seed)
        twin.compact(asked_for=True)
        both_see_the_same(twin, engine)
    engine(REWRITE_DATA)
    twin.log.erase("t", [b"k1"])
    for model in twin.models:
        model.rows = [row for row in model.rows if row.key != b"k1"]
    both_see_the_same(twin, engine)


def test_expired_snapshots_are_gone_and_nothing_else(twin: Twin, engine: Engine) -> None:
    grow(twin, 1)
    twin.compact(asked_for=True)
    engine(EXPIRE)
    both_see_the_same(twin, engine)
    grow(twin, 2)
    engine(REWRITE_DATA)
    engine(EXPIRE)
    both_see_the_same(twin, engine)
    twin.compact(asked_for=True)
    twin.log.run_retention()
    both_see_the_same(twin, engine)


def test_delete_files_are_not_rewritten(twin: Twin, engine: Engine) -> None:
    grow(twin, 1)
    twin.compact(asked_for=True)
    grow(twin, 2)
    twin.compact(asked_for=True)
    with pytest.raises(RefusedError, match="Cannot create identity partition"):
        engine(REWRITE_DELETES)
    both_see_the_same(twin, engine)


@pytest.mark.parametrize("procedure", [REWRITE_DATA, EXPIRE], ids=["data", "expire"])
def test_between_plan_and_commit(twin: Twin, engine: Engine, procedure: str) -> None:
    grow(twin, 1)
    twin.compact(asked_for=True)
    grow(twin, 2)
    twin.compact(asked_for=True)
    grow(twin, 3)
    acts: list[Callable[[], object]] = [lambda: engine(procedure)]
    there = meanwhile(twin, *acts)
    twin.compact(asked_for=True)
    assert not there.acts
    both_see_the_same(twin, engine)
