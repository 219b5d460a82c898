"""What other engines read of a topic's table, in a process in which Lastword can't be imported."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from typing import IO, Literal

import pytest

Engine = Literal["pyiceberg", "polars", "duckdb"]

ENGINES: tuple[Engine, ...] = ("pyiceberg", "polars", "duckdb")

_PROGRAM = """
import sys
sys.modules["lastword"] = None
import json
import duckdb, polars
from pyiceberg.catalog import load_catalog

try:
    from duckdb_extensions import import_extension
    connection = duckdb.connect()
    for each in ("avro", "iceberg"):
        import_extension(each, con=connection)
    problem = None
except (ImportError, duckdb.Error) as error:
    problem = str(error)

def rows_of(engine, table):
    if engine == "pyiceberg":
        return table.scan(selected_fields=("partition", "offset")).to_arrow()
    if engine == "polars":
        return polars.scan_iceberg(table).select("partition", "offset").collect().to_arrow()
    query = 'SELECT "partition", "offset" FROM iceberg_scan(?)'
    return connection.execute(query, [table.metadata_location]).to_arrow_table()

for line in sys.stdin:
    properties, identifier, engine = json.loads(line)
    if engine == "duckdb" and problem is not None:
        answer = {"skip": problem}
    else:
        try:
            catalog = load_catalog("lastword", **properties)
            rows = rows_of(engine, catalog.load_table(tuple(identifier))).to_pydict()
            catalog.close()
            answer = {"rows": sorted(zip(rows["partition"], rows["offset"]))}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
"""

_process: subprocess.Popen[str] | None = None


def read_by(engine: Engine, properties: dict[str, str], topic: str) -> list[tuple[int, int]]:
    """Partition and offset of each record, in order. DuckDB's extension reads metadata and manifests by itself."""
    namespace, dot, rest = topic.partition(".")
    identifier = [namespace, rest] if dot else ["default", topic]
    to_engines, from_engines = _engines()
    to_engines.write(json.dumps([properties, identifier, engine]) + "\n")
    to_engines.flush()
    answer = json.loads(from_engines.readline())
    if "skip" in answer:
        pytest.skip(f"the engine is not here: {answer['skip']}")
    assert "error" not in answer, f"{engine}: {answer['error']}"
    return [(partition, offset) for partition, offset in answer["rows"]]


def _engines() -> tuple[IO[str], IO[str]]:
    """One process for all questions of a test process: loading the engines takes longer than any answer."""
    global _process
    if _process is None:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        if path := os.environ.get("LASTWORD_DUCKDB"):
            environment["PYTHONPATH"] = path
        _process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        atexit.register(_end, _process)
    assert _process.stdin is not None and _process.stdout is not None
    return _process.stdin, _process.stdout


def _end(process: subprocess.Popen[str]) -> None:
    process.communicate()
