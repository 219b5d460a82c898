"""Side by side with a real Kafka: python -m bench.kafka [--quick] [--only PART]... [--rounds N] [--json FILE]

The same records go through the same client (librdkafka) to an Apache Kafka broker from Maven's jars and to Lastword,
each in its own process on loopback, one after the other, warm, in one run.

compaction  a first pass over a whole log. Kafka's time is from the change of the policy to the end of the last pass
            by its own cleaner's log, and beside it what the cleaner says that it worked; ours is from the call to
            the commit, on Spark. Sealing is ours alone and shown beside it: it is done once, while the log is written
steady      the log is half clean, half dirty: a second pass over as many new records; and with 1 % and 10 % new ones
state       how long a reader needs for the last word of every key
wire        produce and consume, acks=all
distinct    20 M distinct keys, Kafka with its default dedupe buffer

Skipped with a line that says why where Maven can't be reached.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from peers.client import alter, create
from peers.jars import UnreachableError
from peers.kafka import KafkaPeer

import lastword
from bench import broker as wire
from bench.support import Results, Usage, console, median, peak_memory, timed, values_of
from lastword.broker.server import Broker

PARTS = ("compaction", "steady", "state", "wire", "distinct")
BASE_MS = 1_760_000_000_000
LOADING = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "segment.ms": "1000",
    "min.cleanable.dirty.ratio": "0.0001",
}


@dataclass(frozen=True)
class Data:
    name: str
    records: int
    value_bytes: int
    keys: int
    codec: str = "none"
    partitions: int = 1
    zipf: bool = False


FULL = (
    Data("5 M x 200 B", 5_000_000, 200, 500_000),
    Data("5 M x 200 B, zstd", 5_000_000, 200, 500_000, "zstd"),
    Data("2 M x 1 KB", 2_000_000, 1024, 200_000),
    Data("2 M x 1 KB, zstd", 2_000_000, 1024, 200_000, "zstd"),
    Data("5 M x 200 B, Zipf, zstd", 5_000_000, 200, 500_000, "zstd", zipf=True),
    Data("2 M x 1 KB, Zipf, zstd", 2_000_000, 1024, 200_000, "zstd", zipf=True),
    Data("5 M x 200 B, 8 partitions, zstd", 5_000_000, 200, 500_000, "zstd", 8),
    Data("2 M x 1 KB, 8 partitions, zstd", 2_000_000, 1024, 200_000, "zstd", 8),
)
QUICK = (
    Data("200 k x 200 B, zstd", 200_000, 200, 20_000, "zstd"),
    Data("200 k x 200 B, 8 partitions, zstd", 200_000, 200, 20_000, "zstd", 8),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small data, for a first look")
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sets", type=int, nargs="*", help="numbers of the data sets, from 0")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve)
        return
    sets = QUICK if args.quick else FULL
    if args.sets:
        sets = tuple(sets[number] for number in args.sets)
    try:
        bench = Bench(args.rounds, sets, args.json)
    except UnreachableError as error:
        console.print(f"skipped: {error}")
        return
    for part in args.only or PARTS:
        getattr(bench, part)(args.quick)
        bench.results.save(args.json)


# --------------------------------------------------------------------------------------------- the two systems


class Theirs:
    """Kafka: what the benchmark asks of a system."""

    name = "kafka"

    def __init__(self, peer: KafkaPeer) -> None:
        self.peer = peer
        self.address = peer.address
        self._process = psutil.Process(peer.pid)

    def processes(self) -> list[psutil.Process]:
        return [self._process]

    def cpu_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def prepare(self, topic: str, data: Data) -> None:
        create(self.address, topic, data.partitions, LOADING)

    def before_load(self, topic: str) -> None:
        alter(self.address, topic, {"cleanup.policy": "delete"})

    def compact(self, topic: str, ends: dict[int, int]) -> dict[str, float]:
        """Let it clean up to the sentinel of each partition."""
        before = len(self.peer.cleaner_passes())
        started_s = time.time()
        alter(self.address, topic, {"cleanup.policy": "compact"})
        while True:
            passes = [each for each in self.peer.cleaner_passes()[before:] if each.topic == topic]
            done = {each.partition: max(each.dirty_end, 0) for each in passes}
            for each in passes:
                done[each.partition] = max(done[each.partition], each.dirty_end)
            if all(done.get(partition, -1) >= end for partition, end in ends.items()):
                break
            if time.time() - started_s > 600:
                raise RuntimeError(f"Kafka's cleaner came to {done}, not to {ends}")
            time.sleep(0.05)
        last_s = max(each.finished_ms for each in passes) / 1000
        return {
            "seconds": last_s - started_s,
            "worked_s": sum(each.seconds for each in passes),
            "passes": len(passes),
        }

    def disk_bytes(self, topic: str) -> int:
        folders = (self.peer.folder / "data").glob(f"{topic}-*")
        return sum(file.stat().st_size for folder in folders for file in folder.glob("*.log"))


class Ours:
    """Lastword: a broker with its log and a warm Spark in one process, told what to do on its standard input."""

    name = "lastword"

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._pipe = process
        self._process = psutil.Process(process.pid)
        self.address = str(self._answer()["address"])

    def processes(self) -> list[psutil.Process]:
        return [self._process, *self._process.children(recursive=True)]

    def cpu_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def ask(self, command: str, topic: str) -> dict[str, float]:
        assert self._pipe.stdin is not None
        self._pipe.stdin.write(f"{command} {topic}\n")
        self._pipe.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, float]:
        assert self._pipe.stdout is not None
        line = self._pipe.stdout.readline()
        if not line:
            raise RuntimeError("Lastword's process has ended")
        found: dict[str, float] = json.loads(line)
        return found

    def prepare(self, topic: str, data: Data) -> None:
        config = {"cleanup.policy": "compact", "local.retention.ms": "0", "segment.bytes": str(64 << 20)}
        create(self.address, topic, data.partitions, config)

    def before_load(self, topic: str) -> None:
        """Nothing: nobody compacts but when told."""

    def compact(self, topic: str, _ends: dict[int, int]) -> dict[str, float]:
        sealed = self.ask("seal", topic)
        return {**self.ask("compact", topic), "seal_s": sealed["seconds"]}

    def disk_bytes(self, topic: str) -> int:
        return int(self.ask("disk", topic)["bytes"])


@contextmanager
def kafka(folder: Path, threads: int) -> Iterator[Theirs]:
    with KafkaPeer(folder / f"kafka-{threads}", settings={"log.cleaner.threads": str(threads)}) as peer:
        yield Theirs(peer)


@contextmanager
def ours(folder: Path) -> Iterator[Ours]:
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "bench.kafka", "--serve", str(folder / "lastword")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Ours(process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def serve(folder: Path) -> None:
    with lastword.open(folder, config={"num.partitions": 1}) as log:
        asyncio.run(_serve(log))


async def _serve(log: lastword.Log) -> None:
    broker = Broker(log, host="127.0.0.1", port=0)
    await broker.start()
    _warm(log)
    host, port = broker.address
    print(json.dumps({"address": f"{host}:{port}"}), flush=True)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)

    def commands() -> None:
        for line in sys.stdin:
            command, topic = line.split()
            try:
                answer = json.dumps(_do(log, command, topic))
            except BaseException:  # noqa: BLE001 - whoever asks must not wait for ever
                traceback.print_exc()
                os._exit(1)
            print(answer, flush=True)

    threading.Thread(target=commands, daemon=True).start()
    await stopped.wait()
    await broker.stop()


def _warm(log: lastword.Log) -> None:
    """Start Spark and let it compact something, twice."""
    from lastword.record import NewRecord

    log.create_topic("warm", partitions=1, config={"cleanup.policy": "compact"})
    for _ in range(3):
        log.topic("warm").append_many(
            [NewRecord(key=b"%d" % (n % 100), value=b"v" * 100) for n in range(20_000)]
        )
        log.compact(["warm"], seal=True, asked_for=True)


def _do(log: lastword.Log, command: str, topic: str) -> dict[str, float]:
    found: dict[str, float] = {}
    if command == "seal":
        found["seconds"] = timed(lambda: log.topic(topic).seal())
        log.run_retention(steps=["delete"])
    elif command == "compact":
        reports: list[object] = []
        found["seconds"] = timed(lambda: reports.append(log.compact([topic], asked_for=True)))
        partitions = reports[0].partitions  # type: ignore[attr-defined]
        found["worked_s"] = found["seconds"]
        found["mb_read"] = sum(each.read_bytes for each in partitions) / 1e6
        found["mb_written"] = sum(each.written_bytes for each in partitions) / 1e6
        found["records_after"] = sum(each.records_after for each in partitions)
    elif command == "state":
        tables: list[object] = []
        found["seconds"] = timed(lambda: tables.append(log.topic(topic).state()))
        found["keys"] = tables[0].num_rows  # type: ignore[attr-defined]
    elif command == "dict":

        def as_dict() -> None:
            table = log.topic(topic).state()
            found["keys"] = len(dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)))

        found["seconds"] = timed(as_dict)
    elif command == "disk":
        described = log.topic(topic).describe().partitions
        found["bytes"] = sum(each.sealed_bytes + each.wal_bytes for each in described)
    return found


# ------------------------------------------------------------------------------------------------ the client


def compacted(system: Theirs | Ours, topic: str, ends: dict[int, int]) -> dict[str, float]:
    """Let a system compact; with the most memory that its processes had meanwhile."""
    used = Usage()
    with peak_memory(system.processes, used):
        row = system.compact(topic, ends)
    return {**row, "peak_mb": round(used.peak_bytes / 1e6)}


def load(
    address: str, topic: str, data: Data, records: int, seed: int, first: int = 0, distinct: bool = False
) -> dict[int, int]:
    """Send records, then one more to each partition, alone in its segment; the offsets of those."""
    rng = np.random.default_rng(seed)
    values = values_of(rng, 100_000, data.value_bytes).to_pylist()
    if distinct:
        numbers = np.arange(first, first + records)
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
            "queue.buffering.max.kbytes": 400_000,
            "log_level": 3,
        }
    )
    now_ms = BASE_MS + seed * 60_000
    for index, number in enumerate(numbers.tolist()):
        while True:
            try:
                producer.produce(topic, values[index % 100_000], b"user-%015d" % number, timestamp=now_ms)
                break
            except BufferError:
                producer.poll(0.01)
    if producer.flush(300):
        raise RuntimeError("not everything was acknowledged")
    ends: dict[int, int] = {}

    def delivered(error: KafkaError | None, message: object) -> None:
        assert error is None, error
        ends[message.partition()] = message.offset()  # type: ignore[attr-defined]

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
    return ends


def read_state(address: str, topic: str, partitions: int) -> tuple[float, int]:
    """How long a consumer needs to build the dict of the last values, from the first record on."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "state",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.message.max.bytes": 4_000_000,
            "queued.max.messages.kbytes": 200_000,
            "log_level": 3,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    state: dict[bytes, bytes] = {}
    open_partitions = partitions
    started_s: float | None = None
    while open_partitions:
        for message in consumer.consume(10_000, 1.0):
            if message.error() is not None:
                open_partitions -= message.error().code() == KafkaError._PARTITION_EOF
                continue
            value = message.value()
            if value is None:
                state.pop(message.key(), None)
            else:
                state[message.key()] = value
        started_s = started_s or time.perf_counter()
    assert started_s is not None
    seconds = time.perf_counter() - started_s
    consumer.close()
    return seconds, len(state)


# ------------------------------------------------------------------------------------------------- the parts


class Bench:
    def __init__(self, rounds: int, sets: tuple[Data, ...], json_path: Path | None) -> None:
        from peers.jars import jars

        jars("kafka")
        self.results = Results("kafka")
        self._rounds = rounds
        self._sets = sets
        self._json = json_path
        self._number = 0

    @contextmanager
    def _systems(self, threads: int = 1) -> Iterator[tuple[Theirs, Ours]]:
        folder = Path(tempfile.mkdtemp(prefix="lastword-peers-"))
        try:
            with kafka(folder, threads) as theirs, ours(folder) as own:
                yield theirs, own
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _topic(self) -> str:
        self._number += 1
        return f"bench-{self._number}"

    def compaction(self, _quick: bool) -> None:
        for data in self._sets:
            threads = 1 if data.partitions == 1 else 2
            with self._systems(threads) as systems:
                rows = {system.name: self._first_passes(system, data) for system in systems}
            self._compare("compaction", data, "first pass", rows, data.records)
        self._show("compaction", "Compaction: a first pass")

    def steady(self, _quick: bool) -> None:
        for data in self._sets:
            threads = 1 if data.partitions == 1 else 2
            with self._systems(threads) as systems:
                for name, share in (("as many new", 1.0), ("10 % new", 0.1), ("1 % new", 0.01)):
                    rows = {system.name: self._second_passes(system, data, share) for system in systems}
                    self._compare("steady", data, name, rows, int(data.records * (1 + share)))
        self._show("steady", "Compaction: a second pass")

    def _first_passes(self, system: Theirs | Ours, data: Data) -> list[dict[str, float]]:
        rows = []
        for _ in range(self._rounds + 1):
            topic = self._topic()
            system.prepare(topic, data)
            ends = load(system.address, topic, data, data.records, seed=1)
            before = system.disk_bytes(topic)
            row = compacted(system, topic, ends)
            rows.append({**row, "log_mb": before / 1e6, "left_mb": system.disk_bytes(topic) / 1e6})
        # The first is a warm-up.
        return rows[1:]

    def _second_passes(self, system: Theirs | Ours, data: Data, share: float) -> list[dict[str, float]]:
        rows = []
        topic = self._topic()
        system.prepare(topic, data)
        system.compact(topic, load(system.address, topic, data, data.records, seed=1))
        for round_number in range(self._rounds + 1):
            system.before_load(topic)
            ends = load(system.address, topic, data, int(data.records * share), seed=2 + round_number)
            before = system.disk_bytes(topic)
            row = compacted(system, topic, ends)
            rows.append({**row, "log_mb": before / 1e6, "left_mb": system.disk_bytes(topic) / 1e6})
        return rows[1:]

    def _compare(
        self, part: str, data: Data, name: str, rows: dict[str, list[dict[str, float]]], records: int
    ) -> None:
        def of(system: str, field: str) -> float:
            return median([row.get(field, 0.0) for row in rows[system]])

        theirs, own = of("kafka", "worked_s"), of("lastword", "seconds")
        if data.partitions > 1:
            theirs = of("kafka", "seconds")
        self.results.add(
            part=part,
            data=data.name,
            what=name,
            kafka_s=theirs,
            kafka_wall_s=of("kafka", "seconds"),
            lastword_s=own,
            times_faster=theirs / own,
            lastword_records_per_s=round(records / own),
            seal_s=of("lastword", "seal_s"),
            kafka_left_mb=of("kafka", "left_mb"),
            lastword_left_mb=of("lastword", "left_mb"),
            kafka_peak_mb=of("kafka", "peak_mb"),
            lastword_peak_mb=of("lastword", "peak_mb"),
            lastword_mb_read=of("lastword", "mb_read"),
            lastword_mb_written=of("lastword", "mb_written"),
        )
        self.results.save(self._json)

    def state(self, quick: bool) -> None:
        keys = 50_000 if quick else 1_000_000
        for name, records in (
            ("every record is the last word", keys),
            ("90 % of the log is garbage", keys * 10),
        ):
            data = Data("state", records, 100, keys, "zstd")
            with self._systems() as (theirs, own):
                row: dict[str, object] = {"part": "state", "what": name}
                for system in (theirs, own):
                    topic = self._topic()
                    system.prepare(topic, data)
                    load(system.address, topic, data, records, seed=1, distinct=records == keys)
                    if system is own:
                        own.ask("seal", topic)
                    times = [read_state(system.address, topic, 1) for _ in range(self._rounds)]
                    row[f"{system.name}_consumer_s"] = median([seconds for seconds, _ in times])
                    row["keys"] = times[0][1]
                for command in ("dict", "state"):
                    asked = [own.ask(command, topic)["seconds"] for _ in range(self._rounds)]
                    row[f"lastword_{command}_s"] = median(asked)
                kafka_s = row["kafka_consumer_s"]
                assert isinstance(kafka_s, float)
                row["times_faster_dict"] = kafka_s / float(str(row["lastword_dict_s"]))
                row["times_faster_state"] = kafka_s / float(str(row["lastword_state_s"]))
                self.results.add(**row)
                self.results.save(self._json)
        self._show("state", "The last word of every key")

    def wire(self, quick: bool) -> None:
        megabytes = 50 if quick else 500
        for batch_bytes in (1_000_000, 16_384):
            row: dict[str, object] = {"part": "wire", "batch_bytes": batch_bytes}
            with self._systems() as systems:
                for system in systems:
                    produced, consumed = [], []
                    for number in range(self._rounds + 1):
                        wire.TOPIC = f"wire-{batch_bytes}-{number}"
                        create(system.address, wire.TOPIC, 1, {})
                        running: wire.Running = system  # type: ignore[assignment]
                        produced.append(wire.produce(running, batch_bytes, megabytes))
                        consumed.append(wire.consume(running, megabytes))
                    for name, found in (("produce", produced[1:]), ("consume", consumed[1:])):
                        for figure in ("mb_per_s", "server_cpu_ms_per_mb"):
                            values = [float(str(each[figure])) for each in found]
                            row[f"{system.name}_{name}_{figure}"] = median(values)
            self.results.add(**row)
        self._show("wire", "Produce and consume, 1 KB values, acks=all")

    def distinct(self, quick: bool) -> None:
        records = 200_000 if quick else 20_000_000
        data = Data("distinct", records, 100, records, "zstd")
        rows: dict[str, list[dict[str, float]]] = {}
        with self._systems() as systems:
            for system in systems:
                topic = self._topic()
                system.prepare(topic, data)
                ends = load(system.address, topic, data, records, seed=1, distinct=True)
                rows[system.name] = [compacted(system, topic, ends)]
        self._compare("distinct", data, f"{records:,} distinct keys", rows, records)
        self._show("distinct", "Distinct keys only")

    def _show(self, part: str, title: str) -> None:
        rows = [
            {k: v for k, v in row.items() if k != "part"} for row in self.results.rows if row["part"] == part
        ]
        self.results.show(title, rows)


if __name__ == "__main__":
    main()
