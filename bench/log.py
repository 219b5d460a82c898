"""Appends, sealing, replay and the deleter of the log itself: python -m bench.log [--quick] [--json FILE]

Appends are compared with plain writes of the same bytes to a file and an fdatasync, which is the least that
anything durable must do; replay with pyarrow reading the same Parquet files.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import lastword
from bench.support import Results, console, keys_of, median, timed, values_of

ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    results = Results("log")
    folder = Path(tempfile.mkdtemp(prefix="lastword-bench-"))
    try:
        appends(folder, results, seconds=0.5 if args.quick else 2.0)
        results.show("Appends of 200-byte values", [row for row in results.rows if row["part"] == "append"])
        seal_and_replay(folder, results, records=100_000 if args.quick else 500_000)
        results.show(
            "Sealing and replay, 1 KB values", [row for row in results.rows if row["part"] != "append"]
        )
        deleter(folder, results)
    finally:
        shutil.rmtree(folder)
    results.save(args.json)


def appends(folder: Path, results: Results, seconds: float) -> None:
    rng = np.random.default_rng(1)
    values = values_of(rng, 1000, 200).to_pylist()
    keys = keys_of(rng.integers(0, 100_000, 1000)).to_pylist()
    records = [lastword.NewRecord(key=key, value=value) for key, value in zip(keys, values, strict=True)]
    for sync in ("group", "interval:100", "none"):
        for size in (1, 100, 1000):
            with lastword.open(
                folder / f"append-{sync}-{size}".replace(":", "-"), config={"wal.sync": sync}
            ) as log:
                topic = log.create_topic("t")
                batch = records[:size]
                topic.append_many(batch)
                rates = []
                for _ in range(ROUNDS):
                    done, started = 0, time.perf_counter()
                    while time.perf_counter() - started < seconds / ROUNDS:
                        topic.append_many(batch)
                        done += size
                    rates.append(done / (time.perf_counter() - started))
            plain = plain_rate(folder, size, sync == "group", seconds / 3)
            results.add(
                part="append",
                wal_sync=sync,
                batch=size,
                records_per_s=round(median(rates)),
                plain_file_per_s=round(plain),
            )


def plain_rate(folder: Path, size: int, sync: bool, seconds: float) -> float:
    data = os.urandom(size * 230)
    fd = os.open(folder / "plain", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    done, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        os.write(fd, data)
        if sync:
            os.fdatasync(fd)
        done += size
    rate = done / (time.perf_counter() - started)
    os.close(fd)
    return rate


def seal_and_replay(folder: Path, results: Results, records: int) -> None:
    rng = np.random.default_rng(2)
    value_bytes = records * 1024
    rows: dict[str, list[float]] = {
        "seal": [],
        "replay as Arrow": [],
        "replay as records": [],
        "pyarrow alone": [],
    }
    for number in range(ROUNDS):
        with lastword.open(folder / f"replay-{number}", config={"wal.sync": "none"}) as log:
            topic = log.create_topic("t")
            for _ in range(0, records, 50_000):
                table = pa.table(
                    {"key": keys_of(rng.integers(0, 10**6, 50_000)), "value": values_of(rng, 50_000, 1024)}
                )
                topic.append_arrow(table)
            rows["seal"].append(timed(topic.seal))
            rows["replay as Arrow"].append(
                timed(lambda topic=topic: sum(b.num_rows for b in topic.read_arrow()))
            )
            rows["replay as records"].append(timed(lambda topic=topic: sum(1 for _ in topic.read())))
            files = sorted((folder / f"replay-{number}").rglob("*.parquet"))
            rows["pyarrow alone"].append(
                timed(
                    lambda files=files: sum(
                        pq.ParquetFile(file, memory_map=True).read().num_rows for file in files
                    )
                )
            )
        shutil.rmtree(folder / f"replay-{number}")
    for part, times in rows.items():
        results.add(
            part=part,
            mb_of_values_per_s=round(value_bytes / median(times) / 1e6),
            records_per_s=round(records / median(times)),
            seconds=median(times),
        )


def deleter(folder: Path, results: Results) -> None:
    """One cycle over 100 files that may all go."""
    path = folder / "deleter"
    with lastword.open(path, config={"local.retention.ms": 0, "wal.sync": "none"}) as log:
        topic = log.create_topic("t")
        for _ in range(100):
            topic.append_many([lastword.NewRecord(key=b"k", value=bytes(1000))])
            topic.roll(due_only=False)
        topic.seal()
        taken = timed(lambda: log.run_retention(steps=["delete"]))
    results.add(part="deleter cycle, 100 files", seconds=taken)
    console.print(f"A deleter cycle that removes 100 files: {taken * 1000:.0f} ms")


if __name__ == "__main__":
    main()
