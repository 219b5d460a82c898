"""A topic is a plain Iceberg table: other engines read it, in processes in which Lastword can't be imported."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.segments import START_MS, Place, append, local_place, new_topic, records, write_segment

from lastword.record import TimestampType
from lastword.segments.model import Positions, Snapshot
from lastword.segments.table import SegmentTable

PRELUDE = """
import sys
sys.modules["lastword"] = None
import base64, json
from pyiceberg.catalog import load_catalog
catalog = load_catalog("lastword", **json.loads(sys.argv[1]))
table = catalog.load_table(("default", "events"))

def text(value):
    return None if value is None else base64.b64encode(bytes(value)).decode()

def show(rows):
    out = [
        [
            row["partition"],
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            row["timestamp_type"],
            text(row["key"]),
            text(row["value"]),
            [[each["key"], text(each["value"])] for each in row["headers"] or []],
        ]
        for row in rows
    ]
    print(json.dumps(sorted(out, key=lambda row: row[:2])))
"""

Row = list[Any]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = local_place(tmp_path)
    yield place
    place.close()


@pytest.fixture
def table(place: Place) -> SegmentTable:
    """Two partitions; some of it sealed, some compacted, with every kind of record."""
    table = place.open().create(new_topic())
    replaced = append(table, 0)
    append(table, 0, partition=1)
    special = records(
        10,
        4,
        keys=[b"k", None, b"\xff\x00", b"k"],
        values=[None, b"no key", b"", b"x" * 5000],
        types=[TimestampType.CREATE, TimestampType.NONE, TimestampType.LOG_APPEND, TimestampType.CREATE],
        headers=[None, [("h", b"1"), ("h", None)], [], None],
    )
    segment = write_segment(table, special)
    table.append(table.snapshot(), [segment], {0: Positions(sealed_end=14)}, operation="seal")
    survivors = write_segment(table, records(7, 3), job_id="compact-1")
    table.replace(
        table.snapshot(),
        [replaced],
        [survivors],
        {0: Positions(first_dirty=10, sealed_end=14)},
        operation="compact",
    )
    return table


def as_rows(table: SegmentTable, snapshot: Snapshot) -> list[Row]:
    """What Lastword itself reads, in the form in which the other engines' processes print it."""

    def text(value: bytes | None) -> str | None:
        return None if value is None else base64.b64encode(value).decode()

    rows: list[Row] = []
    for segment in table.plan(snapshot):
        for batch in table.read(segment):
            for row in batch.to_pylist():
                stamp = row["timestamp"]
                rows.append(
                    [
                        segment.partition,
                        row["offset"],
                        START_MS + row["offset"] if stamp is None else round(stamp.timestamp() * 1000),
                        row["timestamp_type"],
                        text(row["key"]),
                        text(row["value"]),
                        [[each["key"], text(each["value"])] for each in row["headers"] or []],
                    ]
                )
    return rows


def run(place: Place, code: str, *arguments: str, path: str = "") -> Any:
    """Run code after the prelude in a process of its own; returns the JSON that it prints."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if path:
        environment["PYTHONPATH"] = path
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code), json.dumps(place.properties), *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_pyiceberg(place: Place, table: SegmentTable) -> None:
    rows = run(place, "show(table.scan().to_arrow().to_pylist())")
    assert rows == as_rows(table, table.snapshot())
    assert [row[1] for row in rows] == [7, 8, 9, 10, 11, 12, 13, *range(10)]


def test_pyiceberg_with_a_filter_and_an_older_snapshot(place: Place, table: SegmentTable) -> None:
    oldest_with_data = table.history()[2]
    rows = run(
        place,
        """
        scan = table.scan("partition == 0 and offset >= 8", snapshot_id=int(sys.argv[2]))
        assert len(list(scan.plan_files())) == 1
        show(scan.to_arrow().to_pylist())
        """,
        str(oldest_with_data.id),
    )
    expected = as_rows(table, oldest_with_data)
    assert rows == [row for row in expected if row[0] == 0 and row[1] >= 8]
    assert len(rows) == 2


def test_filters_prune_by_what_the_manifests_say(place: Place, table: SegmentTable) -> None:
    counts = run(
        place,
        """
        filters = ["offset < 7", "offset == 13 and partition == 0", "timestamp > '2100-01-01T00:00:00+00:00'",
                   "key is null", "value is null", "value is not null"]
        print(json.dumps([len(list(table.scan(each).plan_files())) for each in filters]))
        """,
    )
    assert counts == [1, 1, 0, 1, 1, 3]


def test_polars(place: Place, table: SegmentTable) -> None:
    rows = run(
        place,
        """
        import polars
        show(polars.scan_iceberg(table).collect().to_dicts())
        """,
    )
    assert rows == as_rows(table, table.snapshot())


def test_duckdb_over_arrow(place: Place, table: SegmentTable) -> None:
    counts = run(
        place,
        """
        connection = table.scan().to_duckdb("events")
        query = 'SELECT partition, count(*), max("offset"), count(key), count(value) FROM events GROUP BY 1 ORDER BY 1'
        print(json.dumps(connection.execute(query).fetchall()))
        """,
    )
    assert counts == [[0, 7, 13, 6, 6], [1, 10, 9, 10, 10]]


def test_duckdb_over_the_files(place: Place, table: SegmentTable) -> None:
    rows = run(
        place,
        """
        import duckdb
        files = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
        relation = duckdb.connect().execute("SELECT * FROM read_parquet(?)", [files])
        show(relation.to_arrow_table().to_pylist())
        """,
    )
    assert rows == as_rows(table, table.snapshot())


def test_duckdb_iceberg_extension(place: Place, table: SegmentTable) -> None:
    """Needs duckdb-extension-iceberg and -avro of DuckDB's own version, in the venv or in LASTWORD_DUCKDB."""
    code = """
        import duckdb
        connection = duckdb.connect()
        try:
            from duckdb_extensions import import_extension
            for each in ("avro", "iceberg"):
                import_extension(each, con=connection)
        except (ImportError, duckdb.Error) as error:
            print(json.dumps(str(error)))
            sys.exit()
        location = table.metadata_location
        relation = connection.execute("SELECT * FROM iceberg_scan(?)", [location])
        show(relation.to_arrow_table().to_pylist())
        """
    rows = run(place, code, path=os.environ.get("LASTWORD_DUCKDB", ""))
    if isinstance(rows, str):
        pytest.skip(f"DuckDB's Iceberg extension is not here: {rows}")
    assert rows == as_rows(table, table.snapshot())


def test_a_table_that_another_engine_rewrote_is_still_read_in_order(
    place: Place, table: SegmentTable
) -> None:
    before = table.snapshot()
    expected = as_rows(table, before)
    run(
        place,
        """
        rows = table.scan().to_arrow()
        table.overwrite(rows.take(list(reversed(range(len(rows))))))
        print("null")
        """,
    )

    after = table.snapshot()

    assert after.id != before.id
    assert after.operation == "foreign"
    assert after.positions == before.positions
    assert as_rows(table, after) == expected
    assert len(table.plan(after)) == 2
    append(table, 20)
    assert table.history()[-2] == after
    assert as_rows(table, table.snapshot())[7][1] == 20
