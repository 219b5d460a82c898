"""Records a second through the batch codec, one core, beside aiokafka's own objects doing the same."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from lastword import batch as batches
from lastword.batch import Compression, Limits
from lastword.batch.partitioner import RoundRobin, partitions_of
from lastword.record import PAYLOAD_SCHEMA, NewRecord

NOW_MS = 1_700_000_000_000
LIMITS = Limits(max_message_bytes=1 << 30, now_ms=NOW_MS, max_decompressed_bytes=1 << 30)


def aiokafka_encode(records: list[NewRecord]) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
    for offset, record in enumerate(records):
        builder.append(offset, record.timestamp_ms, record.key, record.value, list(record.headers))
    return bytes(builder.build())


def aiokafka_decode_arrow(batch: bytes) -> pa.RecordBatch:
    offsets, times, types, keys, values, headers = [], [], [], [], [], []
    for record in DefaultRecordBatch(batch):
        offsets.append(record.offset)
        times.append(record.timestamp * 1000)
        types.append(record.timestamp_type)
        keys.append(record.key)
        values.append(record.value)
        headers.append([{"key": k, "value": v} for k, v in record.headers] if record.headers else None)
    columns = (offsets, times, types, keys, values, headers)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, PAYLOAD_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=PAYLOAD_SCHEMA)


def aiokafka_encode_arrow(table: pa.RecordBatch) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
    offsets = table["offset"].to_pylist()
    times = (table["timestamp"].cast(pa.int64()).to_numpy() // 1000).tolist()
    rows = zip(offsets, times, table["key"].to_pylist(), table["value"].to_pylist(), strict=True)
    headers = table["headers"].to_pylist()
    for (offset, timestamp_ms, key, value), pairs in zip(rows, headers, strict=True):
        builder.append(
            offset, timestamp_ms, key, value, [(h["key"], h["value"]) for h in pairs] if pairs else []
        )
    return bytes(builder.build())


def measure(act: Callable[[], object], records: int, rounds: int) -> float:
    """The median of some rounds, in records a second. A round is long enough for the clock."""
    act()
    once = time.perf_counter()
    act()
    repeats = max(1, int(0.05 / max(time.perf_counter() - once, 1e-7)))
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            act()
        taken.append((time.perf_counter() - start) / repeats)
    return records / statistics.median(taken)


def cases(count: int, value_bytes: int) -> dict[str, tuple[int, Callable[[], object]]]:
    random = np.random.default_rng(1)
    records = [
        NewRecord(key=b"key-%08d" % row, value=random.bytes(value_bytes), timestamp_ms=NOW_MS + row)
        for row in range(count)
    ]
    tagged = [
        NewRecord(key=r.key, value=r.value, timestamp_ms=r.timestamp_ms, headers=(("a", b"1"), ("b", b"22")))
        for r in records
    ]
    batch, tagged_batch = batches.encode(records, now_ms=NOW_MS), batches.encode(tagged, now_ms=NOW_MS)
    small = [batches.encode(records[row : row + 70], now_ms=NOW_MS) for row in range(0, count, 70)]
    table, tagged_table = batches.decode(batch), batches.decode(tagged_batch)
    zstd = batches.encode(records, now_ms=NOW_MS, compression=Compression.ZSTD)
    one = batches.encode(records[:1], now_ms=NOW_MS)
    room = 1 << 30
    return {
        "validate": (count, lambda: batches.validate(batch, LIMITS)),
        "validate, headers": (count, lambda: batches.validate(tagged_batch, LIMITS)),
        "validate, zstd": (count, lambda: batches.validate(zstd, LIMITS)),
        "validate, 70 a batch": (count, lambda: [batches.validate(b, LIMITS) for b in small]),
        "validate, one record": (1, lambda: batches.validate(one, LIMITS)),
        "bytes -> Arrow": (count, lambda: batches.decode(batch)),
        "bytes -> Arrow, headers": (count, lambda: batches.decode(tagged_batch)),
        "bytes -> Arrow, 70 a batch, together": (count, lambda: batches.decode_many(small)),
        "bytes -> Arrow (aiokafka)": (count, lambda: aiokafka_decode_arrow(batch)),
        "bytes -> Arrow, headers (aiokafka)": (count, lambda: aiokafka_decode_arrow(tagged_batch)),
        "bytes -> Record": (count, lambda: batches.decode_records(batch, 0)),
        "bytes -> Record, headers": (count, lambda: batches.decode_records(tagged_batch, 0)),
        "bytes -> DefaultRecord (aiokafka)": (count, lambda: list(DefaultRecordBatch(batch))),
        "Arrow -> bytes": (count, lambda: batches.encode_arrow(table, batch_bytes=room)),
        "Arrow -> bytes, headers": (count, lambda: batches.encode_arrow(tagged_table, batch_bytes=room)),
        "Arrow -> bytes (aiokafka)": (count, lambda: aiokafka_encode_arrow(table)),
        "Arrow -> bytes, headers (aiokafka)": (count, lambda: aiokafka_encode_arrow(tagged_table)),
        "NewRecord -> bytes": (count, lambda: batches.encode(records, now_ms=NOW_MS)),
        "NewRecord -> bytes, headers": (count, lambda: batches.encode(tagged, now_ms=NOW_MS)),
        "NewRecord -> bytes (aiokafka)": (count, lambda: aiokafka_encode(records)),
        "NewRecord -> bytes, one record": (1, lambda: batches.encode(records[:1], now_ms=NOW_MS)),
        "partitions of keys": (count, lambda: partitions_of(table["key"], 12, RoundRobin())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=4500, help="records a batch")
    parser.add_argument("--value-bytes", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    start = time.perf_counter()
    batches.warm_up()
    loaded = time.perf_counter() - start
    print(f"{options.records} records a batch, values of {options.value_bytes} bytes, one core, median of")
    print(f"{options.rounds} rounds; compiled loops loaded in {loaded:.2f} s\n")
    figures: dict[str, float] = {}
    for name, (records, act) in cases(options.records, options.value_bytes).items():
        figures[name] = measure(act, records, options.rounds)
        print(
            f"{name:40} {figures[name] / 1e6:8.2f} M records/s {1e6 * records / figures[name]:10.1f} µs a call"
        )
    if options.json:
        options.json.write_text(
            json.dumps(
                {
                    "records": options.records,
                    "value_bytes": options.value_bytes,
                    "loaded_seconds": loaded,
                    "records_per_second": figures,
                },
                indent=2,
            )
        )


if __name__ == "__main__":
    main()
