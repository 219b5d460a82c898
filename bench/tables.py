"""What a Spark user would pick instead: python -m bench.tables [--quick] [--only SYSTEM]... [--rounds N] [--json FILE]

One task for all: apply a changelog, batch by batch, and read the latest state. The same Parquet files of records
(updates, new keys, tombstones) go to Delta Lake and Iceberg by MERGE, to Paimon's deduplicating table by INSERT, and to
Lastword by append, seal and compact, one system after the other in one run, each in its own process with Spark on as
many cores, warm (a small changelog goes first). Jars come from Maven, each peer runs on the Spark that its jars need.

The latest states are compared: all must have the keys and the digest that a dict of the changelog has. Bytes written
are all files that were ever there; live bytes those of the newest version. Only Lastword syncs what it writes.
A peer whose jars or whose Spark can't be fetched is skipped with a line that says why.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from peers.jars import UnreachableError, jars, python_with, version_of

import lastword
from bench.kafka_systems import digest
from bench.kept import Kept
from bench.support import console, keys_of, median, timed, values_of

VALUE_BYTES = 200
TOMBSTONES = 0.05
NEW_KEYS = 0.05
READS = 3
READ = ("count(*)", "sum(length(key))", "sum(length(value))")
ROOT = Path(__file__).resolve().parent.parent
WORKER = ROOT / "peers" / "table_worker.py"


@dataclass(frozen=True)
class Peer:
    """A way to keep the latest state: its label, its jars (a profile of peers/pom.xml) and the Spark that they need."""

    label: str
    profile: str
    spark: str


PEERS = {
    "delta": Peer("Delta Lake, MERGE", "delta", "spark"),
    "delta-vectors": Peer("Delta Lake, MERGE, deletion vectors", "delta", "spark"),
    "iceberg": Peer("Iceberg, MERGE, copy-on-write", "iceberg", "spark"),
    "iceberg-on-read": Peer("Iceberg, MERGE, merge-on-read", "iceberg", "spark"),
    "paimon": Peer("Paimon, deduplicating table", "paimon", "spark35"),
}
SYSTEMS = ("lastword", *PEERS)


@dataclass(frozen=True)
class Changelog:
    """A first batch with every key once, then batches of changes."""

    keys: int
    batches: int
    batch_records: int

    @property
    def name(self) -> str:
        return f"{self.keys:,} keys, then {self.batches} x {self.batch_records:,} changes, {VALUE_BYTES} B"

    def write(self, folder: Path) -> tuple[int, int]:
        """Write its files; the number of keys of the latest state and its digest, by a dict."""
        folder.mkdir(parents=True)
        rng = np.random.default_rng(11)
        state: dict[bytes, bytes] = {}
        seq, next_key = 0, self.keys
        for number in range(self.batches + 1):
            if number == 0:
                numbers, deleted = np.arange(self.keys), np.zeros(self.keys, bool)
            else:
                numbers = rng.integers(0, next_key, self.batch_records)
                fresh = rng.random(self.batch_records) < NEW_KEYS
                numbers[fresh] = next_key + np.arange(fresh.sum())
                next_key += int(fresh.sum())
                deleted = ~fresh & (rng.random(self.batch_records) < TOMBSTONES)
            keys = keys_of(numbers)
            values = pa.compute.if_else(pa.array(deleted), None, values_of(rng, len(numbers), VALUE_BYTES))
            for key, value in zip(keys.to_pylist(), values.to_pylist(), strict=True):
                if value is None:
                    state.pop(key, None)
                else:
                    state[key] = value
            columns = {
                "seq": pa.array(np.arange(seq, seq + len(numbers))),
                "key": keys.cast(pa.string()),
                "value": values.cast(pa.string()),
            }
            seq += len(numbers)
            pq.write_table(pa.table(columns), folder / f"batch-{number:03}.parquet", compression="zstd")
        return len(state), digest(state.items())


class FailedError(Exception):
    """A system that ended before its time, or whose latest state is not the changelog's."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small data, for a first look")
    parser.add_argument("--only", action="append", choices=SYSTEMS, help="a system; may be given again")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--lastword", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.lastword:
        changelog, folder, rounds = args.lastword
        _lastword(Path(changelog), Path(folder), int(rounds))
        return 0
    small = Changelog(20_000, 3, 5_000)
    log = small if args.quick else Changelog(1_000_000, 5, 100_000)
    versions = {name: version_of(name) for name in ("delta", "iceberg", "paimon", "spark", "spark35")}
    kept = Kept("tables", args.json, quick=args.quick, versions=versions)
    failed = 0
    folder = Path(tempfile.mkdtemp(prefix="lastword-tables-"))
    try:
        small.write(folder / "in" / "warm-up")
        wanted = log.write(folder / "in" / "changelog")
        for name in args.only or SYSTEMS:
            console.rule(name)
            try:
                _measure(name, log, wanted, folder, args.rounds, kept)
            except UnreachableError as error:
                console.print(f"skipped: {error}")
            except FailedError as error:
                failed += 1
                console.print(f"failed: {error}", markup=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    columns = {
        "what": "system",
        "first_s": "first batch s",
        "batch_s": "a batch s",
        "read_s": "read s",
        "batch_times_lastword": "batch, times Lastword's",
        "read_times_lastword": "read, times Lastword's",
        "written_mb": "MB written",
        "disk_mb": "MB on disk",
        "live_mb": "MB live",
    }
    kept.show("tables", f"{log.name}: apply it and read the latest state", columns)
    return 1 if failed else 0


def _measure(
    name: str, log: Changelog, wanted: tuple[int, int], folder: Path, rounds: int, kept: Kept
) -> None:
    label, command = _command(name, folder / "in", folder / name, rounds)
    (folder / name).mkdir()
    with (folder / f"{name}.log").open("w+") as log_file:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=log_file, text=True, check=False, cwd=ROOT
        )
        log_file.seek(0)
        said = log_file.read()
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or len(rows) != rounds:
        raise FailedError(f"{label} ended with {done.returncode} after {len(rows)} rounds: {said[-3000:]}")
    for row in rows:
        found = row["keys"], row["digest"]
        if found != wanted:
            raise FailedError(
                f"{label}: its latest state has keys and digest {found}, the changelog {wanted}"
            )
    first_s = median([row["apply_s"][0] for row in rows])
    batch_s = median([seconds for row in rows for seconds in row["apply_s"][1:]])
    read_s = median([seconds for row in rows for seconds in row["read_s"]])
    more: dict[str, Any] = {
        key: median([seconds for row in rows for seconds in row[key]])
        for key in ("append_s", "seal_s", "compact_s", "state_s")
        if key in rows[0]
    }
    own = next((each for each in kept.rows if each["what"] == "Lastword"), None)
    if own is not None and name != "lastword":
        for what, seconds in (("first", first_s), ("batch", batch_s), ("read", read_s)):
            more[f"{what}_times_lastword"] = seconds / float(str(own[f"{what}_s"]))
    kept.add(
        part="tables",
        data=log.name,
        what=label,
        rounds=rounds,
        first_s=first_s,
        batch_s=batch_s,
        read_s=read_s,
        **{
            f"{what}_mb": round(median([row[f"{what}_bytes"] for row in rows]) / 1e6, 1)
            for what in ("written", "disk", "live")
        },
        keys=wanted[0],
        spark=rows[0]["spark"],
        all_apply_s=[[round(seconds, 3) for seconds in row["apply_s"]] for row in rows],
        all_read_s=[[round(seconds, 3) for seconds in row["read_s"]] for row in rows],
        **more,
    )
    shutil.rmtree(folder / name, ignore_errors=True)


def _command(name: str, changelog: Path, folder: Path, rounds: int) -> tuple[str, list[str]]:
    if name == "lastword":
        own = [sys.executable, "-W", "ignore", "-m", "bench.tables"]
        return "Lastword", [*own, "--lastword", str(changelog), str(folder), str(rounds)]
    peer = PEERS[name]
    python = python_with(f"pyspark=={version_of(peer.spark)}")
    arguments = [name, str(jars(peer.profile)), str(changelog), str(folder), str(rounds), str(os.cpu_count())]
    return peer.label, [str(python), str(WORKER), *arguments]


# ---------------------------------------------------------------------------------------- Lastword's process


def _lastword(changelog: Path, folder: Path, rounds: int) -> None:
    """The same rounds as peers/table_worker.py, its answers in the same form."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spark = (
        SparkSession.builder.master(f"local[{os.cpu_count()}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.sql.shuffle.partitions", str(os.cpu_count()))
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    # One log for all rounds: a log that is closed ends the Spark session that it compacted with.
    with lastword.open(folder / "data") as log:
        for number in range(-1, rounds):
            batches = changelog / ("warm-up" if number < 0 else "changelog")
            row = _round(spark, log, f"round-{number + 1}", batches)
            if number >= 0:
                print(json.dumps({"spark": spark.version, **row}), file=answers, flush=True)


def _round(spark: Any, log: lastword.Log, name: str, batches: Path) -> dict[str, object]:
    taken: dict[str, list[float]] = {"append_s": [], "seal_s": [], "compact_s": []}
    seen: dict[Path, int] = {}
    config = {"cleanup.policy": "compact", "local.retention.ms": "0"}
    topic = log.create_topic(name, partitions=1, config=config)
    for batch in sorted(batches.glob("*.parquet")):

        def append() -> None:
            topic.append_arrow(pq.read_table(batch, columns=["key", "value"]))

        for what, act in (
            ("append_s", append),
            ("seal_s", topic.seal),
            ("compact_s", lambda: log.compact([name], asked_for=True)),
        ):
            taken[what].append(timed(act))
            seen |= _files(log.path, name)
    # What a server does in the background: the WAL's files go when they are sealed.
    log.run_retention(steps=["delete"])
    reads, direct = [], []
    for _ in range(READS):
        reads.append(timed(lambda: _state(topic, spark).selectExpr(*READ).first()))
        direct.append(timed(topic.state))
    keys, found = _state(topic, spark).selectExpr("count(*)", "sum(crc32(concat(key, value)))").first()
    table = topic.state()
    own = digest(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
    assert own == found, "topic.state() and the state view differ"
    described = topic.describe().partitions
    return {
        **taken,
        "apply_s": [sum(parts) for parts in zip(*taken.values(), strict=True)],
        "read_s": reads,
        "state_s": direct,
        "written_bytes": sum(seen.values()),
        "disk_bytes": sum(_files(log.path, name).values()),
        "live_bytes": sum(each.sealed_bytes + each.wal_bytes for each in described),
        "keys": keys,
        "digest": found,
    }


def _state(topic: Any, spark: Any) -> Any:
    return topic.dataframe(spark, view="state", columns="key,value")


def _files(folder: Path, topic: str) -> dict[Path, int]:
    found = {}
    for file in folder.rglob("*"):
        try:
            if topic in file.parts and file.is_file():
                found[file] = file.stat().st_size
        except FileNotFoundError:
            continue
    return found


if __name__ == "__main__":
    sys.exit(main())
