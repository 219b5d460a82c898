"""docs/exact-table.md: with the settings of that page, and the code of that page, other engines see one row a key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.compacted import INLINE_CONFIG
from tests.support.other_engines import ENGINES, Engine, read_by
from tests.support.waiting import wait_until

import lastword
from lastword.record import NewRecord
from lastword.segments.catalog import sqlite_properties

PAGE = Path(__file__).parents[2] / "docs" / "exact-table.md"
ON_THE_NET = "INSTALL iceberg;\n    LOAD iceberg;\n"
FROM_A_PACKAGE = """
import duckdb
from duckdb_extensions import import_extension
for each in ("avro", "iceberg"):
    import_extension(each)
"""
AFTERWARDS = """
import json
def texts(rows):
    return sorted([bytes(key).decode(), bytes(value).decode()] for key, value in rows)
print(json.dumps([texts(with_polars.rows()), texts(zip(*(with_pyiceberg.column(each).to_pylist() for each in ("key", "value")))), sorted(map(list, with_duckdb))]))
"""


@pytest.fixture
def written(tmp_path: Path) -> dict[str, str]:
    """A topic that a worker keeps exact while it is written to; the state that it must have."""
    config = {
        **INLINE_CONFIG,
        "worker.initial.delay.ms": 1,
        "worker.interval.ms": 3_600_000,
        "seal.interval.ms": 50,
    }
    expected: dict[str, str] = {}
    with lastword.open(tmp_path / "lastword-data", config=config) as log:
        topic = log.create_topic(
            "users",
            config={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "tiering.lag.ms": 20},
        )
        with log.worker():
            for part in range(5):
                changes = {f"k{number % 60}": f"{part}-{number}" for number in range(part, 400, part + 1)}
                topic.append_many([NewRecord(key=k.encode(), value=v.encode()) for k, v in changes.items()])
                topic.append(f"k{part}", None)
                expected |= changes
                del expected[f"k{part}"]
                end = topic.extents()[0].log_end
                wait_until(lambda end=end: topic.table.snapshot().positions[0].first_dirty == end)
                keys = [record.key for record in topic.read()]
                assert len(keys) == len(set(keys))
    return expected


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_sees_one_row_a_key(tmp_path: Path, written: dict[str, str], engine: Engine) -> None:
    rows = read_by(engine, sqlite_properties(tmp_path / "lastword-data" / "catalog.db"), "users")
    # Tombstones have rows of their own.
    assert len(rows) == 60


def test_the_code_of_the_page(tmp_path: Path, written: dict[str, str]) -> None:
    pytest.importorskip("duckdb_extensions")
    code = PAGE.read_text().split("```python\n")[1].split("```")[0]
    assert ON_THE_NET in code
    program = f"import sys\nsys.modules['lastword'] = None\n{FROM_A_PACKAGE}{code.replace(ON_THE_NET, '')}{AFTERWARDS}"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    for found in json.loads(done.stdout):
        assert found == sorted(map(list, written.items()))
