"""What other engines read of a topic's table, in processes in which Lastword can't be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

_PRELUDE = """
import sys
sys.modules["lastword"] = None
import json
from pyiceberg.catalog import load_catalog
catalog = load_catalog("lastword", **json.loads(sys.argv[1]))
table = catalog.load_table(tuple(json.loads(sys.argv[2])))
def show(rows):
    print(json.dumps(sorted([row["partition"], row["offset"]] for row in rows)))
"""

_DUCKDB = """
import duckdb
connection = duckdb.connect()
try:
    from duckdb_extensions import import_extension
    for each in ("avro", "iceberg"):
        import_extension(each, con=connection)
except (ImportError, duckdb.Error) as error:
    print(json.dumps(str(error)))
    sys.exit()
show(connection.execute("SELECT * FROM iceberg_scan(?)", [table.metadata_location]).to_arrow_table().to_pylist())
"""


def read_by_pyiceberg(properties: dict[str, str], topic: str) -> list[tuple[int, int]]:
    """Partition and offset of each record, in order."""
    return _run(properties, topic, "show(table.scan().to_arrow().to_pylist())")


def read_by_polars(properties: dict[str, str], topic: str) -> list[tuple[int, int]]:
    return _run(properties, topic, "import polars\nshow(polars.scan_iceberg(table).collect().to_dicts())")


def read_by_duckdb(properties: dict[str, str], topic: str) -> list[tuple[int, int]]:
    """By DuckDB's Iceberg extension, which reads metadata, manifest lists and manifests by itself."""
    return _run(properties, topic, _DUCKDB)


def _run(properties: dict[str, str], topic: str, code: str) -> list[tuple[int, int]]:
    namespace, dot, rest = topic.partition(".")
    identifier = [namespace, rest] if dot else ["default", topic]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if path := os.environ.get("LASTWORD_DUCKDB"):
        environment["PYTHONPATH"] = path
    done = subprocess.run(
        [sys.executable, "-c", _PRELUDE + code, json.dumps(properties), json.dumps(identifier)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    if isinstance(found, str):
        pytest.skip(f"the engine is not here: {found}")
    return [(partition, offset) for partition, offset in found]
