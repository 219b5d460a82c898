"""Side by side with a real Kafka: python -m bench.kafka [--quick] [--only PART]... [--rounds N] [--json FILE]

The same records go through the same client (librdkafka) to an Apache Kafka broker from Maven's jars and to Lastword,
each in its own process on loopback, one after the other, warm, in one run.

compaction  a first pass over a whole log. Kafka's time is what its cleaner says that it worked (on one partition), or
            by the clock from the change of the policy to the end of the last pass (on eight); ours is by the clock
            from the call to the commit, on Spark. Sealing is ours alone and shown beside it: it is done once, while
            the log is written
steady      half of the log is clean, half dirty, as many keys as clean records; then 10 % and 1 % new records
state       how long a reader needs for the last word of every key
wire        produce and consume, acks=all, at equal durability
distinct    20 M distinct keys, Kafka with its default dedupe buffer

One partition: Kafka's default cleaner, one thread. Eight partitions: a cleaner thread a core.
What both keep is compared: survivors by number, states by digest. Rows are kept in the file one by one; parts that are
run later are added to it. Skipped with a line that says why where Maven can't be reached.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import confluent_kafka
import numpy as np
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from peers.client import create
from peers.jars import UnreachableError, jars, version_of

from bench import broker as wire
from bench.kafka_systems import Data, Ours, Theirs, digest, kafka, ours
from bench.kept import Kept
from bench.support import Usage, console, median, peak_memory, values_of

PARTS = ("compaction", "steady", "state", "wire", "distinct")
BASE_MS = 1_760_000_000_000
CHUNK = 10_000

FULL = (
    Data("5 M x 200 B", 5_000_000, 200, 500_000),
    Data("5 M x 200 B, zstd", 5_000_000, 200, 500_000, "zstd"),
    Data("2 M x 1 KB", 2_000_000, 1024, 200_000),
    Data("2 M x 1 KB, zstd", 2_000_000, 1024, 200_000, "zstd"),
    Data("5 M x 200 B, Zipf, zstd", 5_000_000, 200, 500_000, "zstd", zipf=True),
    Data("2 M x 1 KB, Zipf, zstd", 2_000_000, 1024, 200_000, "zstd", zipf=True),
    Data("5 M x 200 B, 8 partitions, zstd", 5_000_000, 200, 500_000, "zstd", 8),
    Data("2 M x 1 KB, 8 partitions, zstd", 2_000_000, 1024, 200_000, "zstd", 8),
    Data("5 M x 200 B, zstd; segments lz4", 5_000_000, 200, 500_000, "zstd", segments="lz4"),
    Data("2 M x 1 KB, zstd; segments lz4", 2_000_000, 1024, 200_000, "zstd", segments="lz4"),
)
QUICK_DIVISOR = 25
NEW = (("half clean, half dirty", 1.0), ("10 % new", 0.1), ("1 % new", 0.01))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small data, for a first look")
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; may be given again")
    parser.add_argument("--rounds", type=int, default=2, help="of each measurement; medians are shown")
    parser.add_argument(
        "--sets", type=int, nargs="*", help=f"data sets of compaction and steady, 0 to {len(FULL) - 1}"
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    sets = [FULL[number] for number in args.sets] if args.sets else list(FULL)
    if args.quick:
        sets = [_small(each) for each in sets]
    try:
        jars("kafka")
    except UnreachableError as error:
        console.print(f"skipped: {error}")
        return
    versions = {
        "kafka": version_of("kafka"),
        "librdkafka": confluent_kafka.libversion()[0],
        "confluent-kafka": confluent_kafka.version(),
    }
    bench = Bench(
        args.rounds, sets, args.quick, Kept("kafka", args.json, quick=args.quick, versions=versions)
    )
    for part in args.only or PARTS:
        console.rule(part)
        started = time.monotonic()
        getattr(bench, part)()
        console.print(f"{part}: {time.monotonic() - started:.0f} s in all")


def _small(data: Data) -> Data:
    return replace(
        data,
        name=f"1/{QUICK_DIVISOR} of {data.name}",
        records=data.records // QUICK_DIVISOR,
        keys=data.keys // QUICK_DIVISOR,
    )


# ------------------------------------------------------------------------------------------------ the client


def load(
    address: str, topic: str, data: Data, records: int, seed: int, *, distinct: bool = False
) -> dict[int, int]:
    """Send records, then one more to each partition, alone in its segment; the offsets of those."""
    rng = np.random.default_rng(seed)
    values = values_of(rng, 100_000, data.value_bytes).to_pylist()
    if distinct:
        numbers = rng.permutation(records)
    elif data.zipf:
        numbers = rng.zipf(1.3, records) % data.keys
    else:
        numbers = rng.integers(0, data.keys, records)
    producer = Producer(
        {
            "bootstrap.servers": address,
            "compression.type": data.codec,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 800_000,
            "log_level": 3,
        }
    )
    now_ms = BASE_MS + seed * 60_000
    for first in range(0, records, 100_000):
        for number, value in zip(numbers[first : first + 100_000].tolist(), values, strict=False):
            while True:
                try:
                    producer.produce(topic, value, b"user-%015d" % number, timestamp=now_ms)
                    break
                except BufferError:
                    producer.poll(0.01)
    if producer.flush(300):
        raise RuntimeError("not everything was acknowledged")
    ends: dict[int, int] = {}

    def delivered(error: KafkaError | None, message: confluent_kafka.Message) -> None:
        assert error is None, error
        ends[message.partition()] = message.offset()

    for partition in range(data.partitions):
        producer.produce(
            topic,
            b"",
            b"sentinel-%d-%d" % (seed, partition),
            partition,
            timestamp=now_ms + 30_000,
            on_delivery=delivered,
        )
    producer.flush(60)
    assert len(ends) == data.partitions, ends
    return ends


def read_state(address: str, topic: str) -> tuple[float, dict[bytes, bytes]]:
    """How long a consumer needs to build the dict of the last values, from the first record to the last one.

    For one partition that has not been compacted: no offset is missing, so it never waits for what does not come.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "state",
            "enable.auto.commit": False,
            "check.crcs": False,
            "fetch.message.max.bytes": 4_000_000,
            "queued.min.messages": 100_000,
            "queued.max.messages.kbytes": 200_000,
            "log_level": 3,
        }
    )
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), 30)
    consumer.assign([TopicPartition(topic, 0, low)])
    state: dict[bytes, bytes] = {}
    left = high - low
    messages = consumer.consume(1, 30.0)
    started_s = time.perf_counter()
    while True:
        for message in messages:
            assert message.error() is None, message.error()
            value = message.value()
            if value is None:
                state.pop(message.key(), None)
            else:
                state[message.key()] = value
        left -= len(messages)
        if left <= 0:
            break
        messages = consumer.consume(min(CHUNK, left), 5.0)
    seconds = time.perf_counter() - started_s
    consumer.close()
    return seconds, state


# ------------------------------------------------------------------------------------------------- the parts


class Bench:
    def __init__(self, rounds: int, sets: list[Data], quick: bool, kept: Kept) -> None:
        self._rounds = rounds
        self._sets = sets
        self._quick = quick
        self._kept = kept
        self._number = 0

    @contextmanager
    def _systems(self, threads: int = 1, wal_sync: str = "group") -> Iterator[tuple[Theirs, Ours]]:
        folder = Path(tempfile.mkdtemp(prefix="lastword-peers-"))
        try:
            with kafka(folder, threads) as theirs, ours(folder, wal_sync) as own:
                yield theirs, own
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _topic(self) -> str:
        self._number += 1
        return f"bench-{self._number}"

    @contextmanager
    def _warm(self, partitions: int) -> Iterator[tuple[Theirs, Ours]]:
        """Both systems, with a cleaner thread a core for several partitions, each after some passes already."""
        threads = 1 if partitions == 1 else os.cpu_count() or 1
        with self._systems(threads) as systems:
            small = Data("warm-up", 20_000 if self._quick else 1_000_000, 200, 100_000, "zstd", partitions)
            for system in systems:
                for _ in range(2):
                    topic = self._topic()
                    system.prepare(topic, small)
                    compacted(system, topic, load(system.address, topic, small, small.records, seed=1))
            yield systems

    def compaction(self) -> None:
        for partitions in sorted({data.partitions for data in self._sets}):
            with self._warm(partitions) as systems:
                for data in self._sets:
                    if data.partitions == partitions:
                        rows = {system.name: self._first_passes(system, data) for system in systems}
                        self._compare("compaction", data, "first pass", rows, data.records)
        self._show_passes("compaction", "Compaction: a first pass")

    def steady(self) -> None:
        sets = [data for data in self._sets if data.codec == "zstd" and not data.zipf]
        for partitions in sorted({data.partitions for data in sets}):
            with self._warm(partitions) as systems:
                for data in (each for each in sets if each.partitions == partitions):
                    # Half of the data set's records are clean, and every key is once among them.
                    half = replace(data, records=data.records // 2, keys=data.records // 2)
                    found = {system.name: self._second_passes(system, half) for system in systems}
                    for what, share in NEW:
                        rows = {name: by_share[what] for name, by_share in found.items()}
                        self._compare("steady", data, what, rows, int(half.records * (1 + share)))
        self._show_passes("steady", "Compaction: a second pass")

    def _first_passes(self, system: Theirs | Ours, data: Data) -> list[dict[str, float]]:
        rows = []
        for _ in range(self._rounds):
            topic = self._topic()
            system.prepare(topic, data)
            ends = load(system.address, topic, data, data.records, seed=1)
            rows.append(compacted(system, topic, ends))
        return rows

    def _second_passes(self, system: Theirs | Ours, data: Data) -> dict[str, list[dict[str, float]]]:
        topic = self._topic()
        system.prepare(topic, data)
        compacted(system, topic, load(system.address, topic, data, data.records, seed=1, distinct=True))
        rows: dict[str, list[dict[str, float]]] = {what: [] for what, _ in NEW}
        seed = 1
        for _ in range(self._rounds):
            for what, share in NEW:
                seed += 1
                system.before_load(topic)
                ends = load(system.address, topic, data, int(data.records * share), seed)
                rows[what].append(compacted(system, topic, ends))
        return rows

    def _compare(
        self, part: str, data: Data, what: str, rows: dict[str, list[dict[str, float]]], records: int
    ) -> None:
        def of(system: str, field: str) -> float:
            return median([row.get(field, 0.0) for row in rows[system]])

        _same_survivors(data, what, rows)
        if part == "steady":
            assert of("kafka", "from_offset") > 0, "Kafka cleaned the whole log again: that is no second pass"
        theirs = of("kafka", "worked_s" if data.partitions == 1 else "seconds")
        own, seal_s = of("lastword", "seconds"), of("lastword", "seal_s")
        self._kept.add(
            part=part,
            data=data.name,
            what=what,
            rounds=len(rows["lastword"]),
            kafka_s=theirs,
            lastword_s=own,
            times_as_fast=theirs / own,
            seal_s=seal_s,
            times_as_fast_with_sealing=theirs / (own + seal_s),
            kafka_clock_s=of("kafka", "seconds"),
            kafka_passes=of("kafka", "passes"),
            kafka_all_s=[round(row["seconds"], 3) for row in rows["kafka"]],
            lastword_all_s=[round(row["seconds"], 3) for row in rows["lastword"]],
            kafka_records_per_s=round(records / theirs),
            lastword_records_per_s=round(records / own),
            **{
                f"{system}_{field}": round(of(system, field), 1)
                for field in ("log_mb", "left_mb", "mb_read", "mb_written", "peak_mb")
                for system in ("kafka", "lastword")
            },
            kafka_mb_per_s=round(of("kafka", "log_mb") / theirs, 1),
            lastword_mb_per_s=round(of("kafka", "log_mb") / own, 1),
        )

    def _show_passes(self, part: str, title: str) -> None:
        columns = {
            "data": "data",
            "what": "what",
            "kafka_s": "Kafka s",
            "lastword_s": "Lastword s",
            "times_as_fast": "times as fast",
            "seal_s": "sealing s",
            "times_as_fast_with_sealing": "with sealing",
            "kafka_clock_s": "Kafka by the clock",
            "kafka_left_mb": "Kafka MB after",
            "lastword_left_mb": "Lastword MB after",
            "kafka_peak_mb": "Kafka peak MB",
            "lastword_peak_mb": "Lastword peak MB",
        }
        self._kept.show(part, title, columns)

    def state(self) -> None:
        keys = 50_000 if self._quick else 1_000_000
        for what, records in (
            ("every record is the last word", keys),
            ("90 % of the log is garbage", keys * 10),
        ):
            data = Data(f"{keys:,} keys x 100 B", records, 100, keys, "zstd")
            row: dict[str, float] = {}
            digests: dict[str, int] = {}
            with self._systems() as (theirs, own):
                for system in (theirs, own):
                    topic = self._topic()
                    system.prepare(topic, data)
                    load(system.address, topic, data, records, seed=1, distinct=records == keys)
                    if system is own:
                        own.seal(topic)
                    taken = []
                    for number in range(self._rounds):
                        seconds, state = read_state(system.address, topic)
                        taken.append(seconds)
                        if number == 0:
                            digests[system.name] = digest(state.items())
                            row["keys"] = len(state)
                    row[f"{system.name}_consumer_s"] = median(taken)
                for command in ("dict", "state"):
                    own.ask(command, topic)
                    asked = [own.ask(command, topic) for _ in range(max(3, self._rounds))]
                    row[f"lastword_{command}_s"] = median([each["seconds"] for each in asked])
                    digests[command] = int(asked[0].get("digest", digests["kafka"]))
                    assert {each["keys"] for each in asked} == {row["keys"]}, (asked, row)
            assert len(set(digests.values())) == 1, f"the states differ: {digests}"
            for way in ("consumer", "dict", "state"):
                row[f"times_as_fast_{way}"] = row["kafka_consumer_s"] / row[f"lastword_{way}_s"]
            self._kept.add(part="state", data=data.name, what=what, rounds=self._rounds, **row)
        columns = {
            "data": "data",
            "what": "what",
            "kafka_consumer_s": "consumer on Kafka s",
            "lastword_consumer_s": "consumer on Lastword s",
            "lastword_dict_s": "state() and dict s",
            "lastword_state_s": "state() s",
            "times_as_fast_consumer": "consumer, times as fast",
            "times_as_fast_dict": "dict, times as fast",
            "times_as_fast_state": "state(), times as fast",
        }
        self._kept.show("state", "The last word of every key", columns)

    def wire(self) -> None:
        """Equal durability: the operating system writes when it likes, or a sync before each answer."""
        # In tens: the client takes ten thousand records at a time, and would wait for a last part of that.
        megabytes = 20 if self._quick else 300
        for what, flush, wal_sync in (
            ("no sync: Kafka's default flush, wal.sync=none", {}, "none"),
            ("a sync before each answer: flush.messages=1, wal.sync=group", {"flush.messages": "1"}, "group"),
        ):
            with self._systems(wal_sync=wal_sync) as systems:
                for batch_bytes in (1_000_000, 16_384):
                    row: dict[str, float] = {}
                    for system in systems:
                        config = flush if system.name == "kafka" else {}
                        row |= self._throughput(system, config, batch_bytes, megabytes)
                    for name in ("produce", "consume"):
                        row[f"{name}_times_as_fast"] = (
                            row[f"lastword_{name}_mb_per_s"] / row[f"kafka_{name}_mb_per_s"]
                        )
                    data = f"{megabytes} MB x 1 KB, batches of {batch_bytes:,} B"
                    row["fdatasync_ms"] = wire.sync_ms()
                    self._kept.add(part="wire", data=data, what=what, rounds=self._rounds, **row)
        columns = {"data": "data", "what": "what"}
        for name in ("produce", "consume"):
            columns[f"kafka_{name}_mb_per_s"] = f"Kafka {name} MB/s"
            columns[f"lastword_{name}_mb_per_s"] = f"Lastword {name} MB/s"
            columns[f"{name}_times_as_fast"] = f"{name}, times as fast"
        self._kept.show("wire", "Produce and consume, 1 KB values, acks=all", columns)

    def _throughput(
        self, system: Theirs | Ours, config: dict[str, str], batch_bytes: int, megabytes: int
    ) -> dict[str, float]:
        found: dict[str, list[dict[str, object]]] = {"produce": [], "consume": []}
        for _ in range(self._rounds + 1):
            wire.TOPIC = self._topic()
            create(system.address, wire.TOPIC, 1, config)
            running: wire.Running = system  # type: ignore[assignment]
            found["produce"].append(wire.produce(running, batch_bytes, megabytes))
            found["consume"].append(wire.consume(running, megabytes))
        return {
            # The first of each is a warm-up.
            f"{system.name}_{name}_{figure}": median([float(str(each[figure])) for each in rounds[1:]])
            for name, rounds in found.items()
            for figure in ("mb_per_s", "server_cpu_ms_per_mb")
        }

    def distinct(self) -> None:
        records = 200_000 if self._quick else 20_000_000
        data = Data(f"{records:,} x 100 B, zstd", records, 100, records, "zstd")
        with self._warm(1) as systems:
            rows: dict[str, list[dict[str, float]]] = {}
            for system in systems:
                topic = self._topic()
                system.prepare(topic, data)
                ends = load(system.address, topic, data, records, seed=1, distinct=True)
                rows[system.name] = [compacted(system, topic, ends)]
        self._compare("distinct", data, "distinct keys only", rows, records)
        self._show_passes("distinct", "Distinct keys only")


def compacted(system: Theirs | Ours, topic: str, ends: dict[int, int]) -> dict[str, float]:
    """Let a system compact; with the disk that it needs before and after, and the most memory of its processes."""
    seal_s = system.seal(topic) if isinstance(system, Ours) else 0.0
    before = system.disk_bytes(topic)
    used = Usage()
    with peak_memory(system.processes, used):
        row = system.compact(topic, ends)
    return {
        **row,
        "seal_s": seal_s,
        "log_mb": before / 1e6,
        "left_mb": system.disk_bytes(topic) / 1e6,
        "peak_mb": used.peak_bytes / 1e6,
    }


def _same_survivors(data: Data, what: str, rows: dict[str, list[dict[str, float]]]) -> None:
    """Both must have kept as many records. Ours have the sentinels too, which Kafka has in its active segments."""
    theirs = [row["records_after"] + data.partitions for row in rows["kafka"]]
    own = [row["records_after"] for row in rows["lastword"]]
    assert theirs == own, f"{data.name}, {what}: Kafka kept {theirs} records, Lastword {own}"


if __name__ == "__main__":
    main()
