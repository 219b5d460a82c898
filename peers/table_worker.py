"""A changelog applied to a table of another format, by the Spark that its jars need. bench/tables.py starts it.

    python table_worker.py SYSTEM JARS CHANGELOG FOLDER ROUNDS CORES

Runs in a venv of its own, so it imports nothing but pyspark. CHANGELOG holds a folder `warm-up` and a folder `changelog`,
each with Parquet files of `seq`, `key` and `value`, one a batch, to be applied in the order of their names; a null value
is a tombstone. Prints a JSON object a round on standard output: seconds of each batch, seconds of reads of the latest
state, bytes, and a digest of the state.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import ClassVar

from pyspark.sql import SparkSession

READS = 3
# Every key and value is read, and nothing else is done with them. Delta with deletion vectors can't write to `noop`.
READ = ("count(*)", "sum(length(key))", "sum(length(value))")
MERGE = """
    MERGE INTO {table} t USING newest n ON t.key = n.key
    WHEN MATCHED AND n.value IS NULL THEN DELETE
    WHEN MATCHED THEN UPDATE SET t.value = n.value, t.seq = n.seq
    WHEN NOT MATCHED AND n.value IS NOT NULL THEN INSERT (key, value, seq) VALUES (n.key, n.value, n.seq)
"""
NEWEST = """
    SELECT key, latest.value AS value, latest.seq AS seq
    FROM (SELECT key, max_by(struct(value, seq), seq) AS latest FROM batch GROUP BY key)
"""


class Delta:
    settings: ClassVar[dict[str, str]] = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # Its default of 50 is for clusters, and costs seconds a commit on one machine.
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    namespace = ""
    properties = "'delta.enableDeletionVectors' = 'false'"
    using = "delta"

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark

    def create(self, table: str, folder: Path) -> None:
        self.spark.sql(
            f"CREATE TABLE {table} (key STRING, value STRING, seq BIGINT) USING {self.using} "
            f"{self.place(folder)} TBLPROPERTIES ({self.properties})"
        )

    def place(self, folder: Path) -> str:
        return f"LOCATION '{folder}'"

    def apply(self, table: str) -> None:
        self.spark.sql(NEWEST).createOrReplaceTempView("newest")
        self.spark.sql(MERGE.format(table=table))

    def live_bytes(self, table: str) -> int:
        return int(self.spark.sql(f"DESCRIBE DETAIL {table}").first()["sizeInBytes"])


class DeltaVectors(Delta):
    properties = "'delta.enableDeletionVectors' = 'true'"


class Iceberg(Delta):
    settings: ClassVar[dict[str, str]] = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.peer": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.peer.type": "hadoop",
        "spark.sql.catalog.peer.warehouse": "{folder}",
    }
    namespace = "peer.db."
    properties = "'format-version' = '2', 'write.merge.mode' = 'copy-on-write'"
    using = "iceberg"

    def place(self, _folder: Path) -> str:
        return ""

    def live_bytes(self, table: str) -> int:
        sizes = self.spark.sql(f"SELECT sum(file_size_in_bytes) FROM {table}.files").first()
        return int(sizes[0])


class IcebergOnRead(Iceberg):
    properties = "'format-version' = '2', 'write.merge.mode' = 'merge-on-read'"


class Paimon(Delta):
    """A table with a primary key keeps the row with the highest `seq`; a row of kind -D deletes."""

    settings: ClassVar[dict[str, str]] = {
        "spark.sql.extensions": "org.apache.paimon.spark.extensions.PaimonSparkSessionExtensions",
        "spark.sql.catalog.peer": "org.apache.paimon.spark.SparkCatalog",
        "spark.sql.catalog.peer.warehouse": "{folder}",
    }
    namespace = "peer.db."

    def create(self, table: str, _folder: Path) -> None:
        self.spark.sql(
            f"CREATE TABLE {table} (key STRING, value STRING, seq BIGINT, kind STRING) TBLPROPERTIES ("
            "'primary-key' = 'key', 'merge-engine' = 'deduplicate', 'sequence.field' = 'seq', "
            "'rowkind.field' = 'kind', 'bucket' = '2')"
        )

    def apply(self, table: str) -> None:
        self.spark.sql(
            f"INSERT INTO {table} SELECT key, value, seq, if(value IS NULL, '-D', '+I') AS kind FROM batch"
        )

    def live_bytes(self, table: str) -> int:
        name = table.split(".")[-1]
        return int(self.spark.sql(f"SELECT sum(file_size_in_bytes) FROM peer.db.`{name}$files`").first()[0])


SYSTEMS = {
    "delta": Delta,
    "delta-vectors": DeltaVectors,
    "iceberg": Iceberg,
    "iceberg-on-read": IcebergOnRead,
    "paimon": Paimon,
}


def main() -> None:
    name, jars, changelog, folder, rounds, cores = sys.argv[1:]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # What is printed is the answer; what Java prints on standard output is none.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    system_class = SYSTEMS[name]
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.sql.shuffle.partitions", cores)
        .config("spark.sql.warehouse.dir", f"{folder}/spark-warehouse")
        .config("spark.jars", ",".join(str(jar) for jar in sorted(Path(jars).glob("*.jar"))))
    )
    for key, value in system_class.settings.items():
        builder = builder.config(key, value.format(folder=folder))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    system = system_class(spark)
    if system.namespace:
        spark.sql("CREATE NAMESPACE IF NOT EXISTS peer.db")
    for number in range(-1, int(rounds)):
        batches = Path(changelog) / ("warm-up" if number < 0 else "changelog")
        row = run(system, f"round_{number + 1}", batches, Path(folder))
        if number >= 0:
            print(json.dumps({"spark": spark.version, **row}), file=answers, flush=True)
    spark.stop()


def run(system: Delta, name: str, batches: Path, folder: Path) -> dict[str, object]:
    spark, table = system.spark, f"{system.namespace}{name}"
    system.create(table, folder / name)
    seen: dict[Path, int] = {}
    taken = []
    for batch in sorted(batches.glob("*.parquet")):
        spark.read.parquet(str(batch)).createOrReplaceTempView("batch")
        started = time.perf_counter()
        system.apply(table)
        taken.append(time.perf_counter() - started)
        seen |= files_of(folder, name)
    state = spark.table(table).select("key", "value")
    reads = []
    for _ in range(READS):
        started = time.perf_counter()
        state.selectExpr(*READ).first()
        reads.append(time.perf_counter() - started)
    keys, digest = state.selectExpr("count(*)", "sum(crc32(concat(key, value)))").first()
    return {
        "apply_s": taken,
        "read_s": reads,
        "written_bytes": sum(seen.values()),
        "disk_bytes": sum(files_of(folder, name).values()),
        "live_bytes": system.live_bytes(table),
        "keys": keys,
        "digest": digest,
    }


def files_of(folder: Path, name: str) -> dict[Path, int]:
    """All files of a round's table, in whatever folder the format puts it."""
    return {
        file: file.stat().st_size
        for file in folder.rglob("*")
        if file.is_file() and any(part in (name, f"{name}.db") for part in file.parts)
    }


if __name__ == "__main__":
    main()
