"""The Spark data source beside Spark's own Parquet reader, on the same sealed files.

python -m bench.spark_source [--quick] [--rounds N] [--records N] [--value-bytes N] [--only PART] [--json PATH]

records   every column, and key and value alone: the source, and `spark.read.parquet` of the topic's files. Beside key and
          value also a source that reads nothing and only hands the same batches over and over to Spark: what is left
          is the price of any source in Python
state     the newest record of each key: the source's state view, and `max_by` and `row_number` over the Parquet files
stream    the whole topic through one streaming query, all at once and in bounded triggers

CPU seconds are those of the JVM and of all Python processes. Each round runs all of them, one after the other; a `noop` sink
takes the rows, so every column is really made.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.window import Window

import lastword
import lastword.spark
from bench.support import Results, console, keys_of, median, timed, usage, values_of

PARTS = ("every column", "key and value", "state", "one key", "stream")
SEGMENTS = 20
DELETED = 0.02
BATCH_ROWS = 16 * 1024
HANDING_OVER_TASKS = 4
WARM_UP_ROUNDS = 2


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the records")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    records = args.records // (10 if args.quick else 1)
    results = Results("spark_source")
    with tempfile.TemporaryDirectory(prefix="lastword-bench-") as folder:
        size_bytes = _fill(Path(folder), records, args.value_bytes)
        spark = _session(args.master)
        lastword.spark.register(spark)
        spark.dataSource.register(_HandedOver)
        bench = _Bench(spark, folder, records, args.value_bytes)
        for title, ways in zip(
            PARTS,
            (bench.records(), bench.keys_and_values(), bench.state(), bench.one_key(), bench.stream(records)),
            strict=True,
        ):
            if title in (args.only or PARTS):
                _compare(title, ways, args.rounds, records, size_bytes, results)
        spark.stop()
    results.show(f"{records:,} records of {args.value_bytes} bytes, {SEGMENTS} segments, {args.master}")
    results.save(args.json)


def _session(master: str) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.sql.shuffle.partitions", "8")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def _fill(folder: Path, records: int, value_bytes: int) -> int:
    """A compacted topic that has never been compacted, all of it sealed; the bytes of its files."""
    rng = np.random.default_rng(7)
    with lastword.open(folder, config={"wal.sync": "none"}) as log:
        topic = log.create_topic("users", config={"cleanup.policy": "compact"})
        for _ in range(SEGMENTS):
            rows = records // SEGMENTS
            values = values_of(rng, rows, value_bytes)
            values = pa.compute.if_else(pa.array(rng.random(rows) < DELETED), None, values)
            keys = keys_of(rng.integers(0, records // 10, rows))
            topic.append_arrow(pa.table({"key": keys, "value": values}))
            topic.seal()
        return topic.describe().partitions[0].sealed_bytes


class _Bench:
    def __init__(self, spark: SparkSession, folder: str, records: int, value_bytes: int) -> None:
        self._spark = spark
        self._handed_over = {"records": str(records), "value_bytes": str(value_bytes)}
        self._folder = folder
        self._files = f"{folder}/warehouse"

    def _ours(self, **options: str) -> DataFrame:
        reader = self._spark.read.format("lastword").option("path", self._folder).option("topic", "users")
        for name, value in options.items():
            reader = reader.option(name, value)
        return reader.load()

    def _parquet(self) -> DataFrame:
        reader = self._spark.read.option("recursiveFileLookup", "true").option("pathGlobFilter", "*.parquet")
        return reader.parquet(self._files).drop("timestamp_type")

    def records(self) -> dict[str, Callable[[], object]]:
        return {
            "lastword": lambda: _noop(self._ours()),
            "parquet": lambda: _noop(self._parquet()),
        }

    def keys_and_values(self) -> dict[str, Callable[[], object]]:
        return {
            "lastword": lambda: _noop(self._ours(columns="key,value")),
            "parquet": lambda: _noop(self._parquet().select("key", "value")),
            "handed over only": lambda: _noop(
                self._spark.read.format("handed_over").options(**self._handed_over).load()
            ),
        }

    def state(self) -> dict[str, Callable[[], object]]:
        newest = Window.partitionBy("key").orderBy(F.col("offset").desc())
        columns = ["partition", "offset", "timestamp", "key", "value", "headers"]
        row = F.struct(*columns)
        return {
            "lastword": lambda: _noop(self._ours(view="state")),
            "max_by": lambda: _noop(
                self._parquet()
                .groupBy("key")
                .agg(F.max_by(row, "offset").alias("row"))
                .select("row.*")
                .filter("value is not null")
            ),
            "row_number": lambda: _noop(
                self._parquet()
                .withColumn("rank", F.row_number().over(newest))
                .filter("rank = 1 and value is not null")
                .drop("rank")
            ),
        }

    def one_key(self) -> dict[str, Callable[[], object]]:
        key = F.lit(keys_of(np.array([42]))[0].as_py())
        return {
            "lastword": lambda: _noop(self._ours().filter(F.col("key") == key)),
            "parquet": lambda: _noop(self._parquet().filter(F.col("key") == key)),
        }

    def stream(self, records: int) -> dict[str, Callable[[], object]]:
        def run(bound: int | None) -> None:
            reader = self._spark.readStream.format("lastword").option("path", self._folder)
            reader = reader.option("topic", "users")
            if bound is not None:
                reader = reader.option("max.records.per.trigger", str(bound))
            with tempfile.TemporaryDirectory() as checkpoint:
                query = (
                    reader.load()
                    .writeStream.format("noop")
                    .option("checkpointLocation", checkpoint)
                    .trigger(availableNow=True)
                    .start()
                )
                query.awaitTermination()

        return {
            "all at once": lambda: run(None),
            "ten triggers": lambda: run(records // 10),
        }


class _HandedOver(DataSource):
    """As many rows as the topic has, of the same sizes, that need not be read."""

    @classmethod
    def name(cls) -> str:
        return "handed_over"

    def schema(self) -> str:
        return "key binary, value binary"

    def reader(self, schema: object) -> _HandingOver:  # noqa: ARG002
        return _HandingOver(int(self.options["records"]), int(self.options["value_bytes"]))


class _HandingOver(DataSourceReader):
    def __init__(self, records: int, value_bytes: int) -> None:
        self._records = records
        self._value_bytes = value_bytes

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(HANDING_OVER_TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rng = np.random.default_rng(partition.value)
        keys = keys_of(rng.integers(0, self._records, BATCH_ROWS))
        values = values_of(rng, BATCH_ROWS, self._value_bytes)
        batch = pa.record_batch({"key": keys.cast(pa.binary()), "value": values.cast(pa.binary())})
        left = self._records // HANDING_OVER_TASKS
        while left > 0:
            yield batch.slice(0, min(left, BATCH_ROWS))
            left -= BATCH_ROWS


def _noop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _compare(
    title: str,
    ways: dict[str, Callable[[], Any]],
    rounds: int,
    records: int,
    size_bytes: int,
    results: Results,
) -> None:
    """The ways side by side, round by round; the first two warm everything up and do not count."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(-WARM_UP_ROUNDS, rounds):
        for name, way in ways.items():
            with usage() as used:
                taken = timed(way)
            console.print(f"{title}: {name}: {taken:.2f} s{' (warm-up)' if number < 0 else ''}", style="dim")
            if number >= 0:
                seconds[name].append(taken)
                cpu[name].append(used.cpu_s)
    first = median(next(iter(seconds.values())))
    for name, taken in seconds.items():
        results.add(
            part=title,
            way=name,
            seconds=median(taken),
            least=min(taken),
            most=max(taken),
            cpu_s=median(cpu[name]),
            records_per_s=round(records / median(taken)),
            mb_per_s=round(size_bytes / median(taken) / 1e6, 1),
            lastword_times_as_fast=round(median(taken) / first, 2),
        )


if __name__ == "__main__":
    main()
