"""The data source without Spark: what its planner and its tasks do, in this process."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.datasource import Filter

from lastword.log import Log
from lastword.spark import tasks
from lastword.spark.filters import wanted
from lastword.spark.options import batch_options, stream_options
from lastword.spark.plan import plan_batch
from lastword.spark.schema import arrow_schema, read_schema
from lastword.spark.stream import StreamReader
from lastword.spark.tasks import SealedTask

STEPS = (
    "sink.staged",
    "staged.proposed",
    "staged.checked",
    "staged.noted",
    "staged.written",
    "staged.synced",
    "staged.committed",
    "staged.cleared",
)
"""Where a write of a unit can be killed, in their order."""

Row = tuple[int, int, bytes | None, bytes | None]


def given(log: Log, topic: str = "t", **options: object) -> dict[str, str]:
    own = {name.replace("_", "."): str(value) for name, value in options.items()}
    return {"path": str(log.path), "topic": topic, **own}


def read(log: Log, filters: Sequence[Filter] = (), **options: object) -> pa.Table:
    """What a batch read gives, before Spark applies its filters."""
    parsed = batch_options(given(log, **options))
    schema = arrow_schema(read_schema(parsed.columns))
    rows = wanted(filters)
    batches = [each for task in plan_batch(parsed, rows) for each in tasks.read(task, schema, rows)]
    found = pa.Table.from_batches(batches, schema)
    order = [(name, "ascending") for name in ("partition", "offset") if name in schema.names]
    return found.sort_by(order) if order else found


def files_of(log: Log, filters: Sequence[Filter] = (), **options: object) -> set[str]:
    """The segment files that the tasks of a batch read open."""
    found = plan_batch(batch_options(given(log, **options)), wanted(filters))
    return {part.segment.path for task in found if isinstance(task, SealedTask) for part in task.parts}


def rows_of(table: pa.Table) -> list[Row]:
    names = ("partition", "offset", "key", "value")
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def stream_of(log: Log, topic: str = "t", **options: object) -> StreamReader:
    parsed = stream_options(given(log, topic, **options))
    return StreamReader(parsed, read_schema(parsed.columns))


def read_range(stream: StreamReader, start: dict[str, object], end: dict[str, object]) -> list[Row]:
    """The rows of one micro-batch."""
    batches = [each for task in stream.partitions(start, end) for each in stream.read(task)]
    if not batches:
        return []
    return sorted(rows_of(pa.Table.from_batches(batches)), key=lambda row: row[:2])
