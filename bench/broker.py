"""The Kafka endpoint under librdkafka, server in a process of its own: python -m bench.broker [--quick] [--json FILE]

1 KB values. Produce with batches of 1 MB and 16 KB, with a sync for each group of produces and with none; consume of
the tail; replay of sealed segments; latency of single produces at a fixed rate, and beside a compaction. CPU is the server's, per MB of
values. What a client consumes is bound by Python, which makes an object of each record; so there is also a *raw* reader,
a socket that asks for the next batches by their headers and decodes no record: what the server can do. `--profile FILE` writes cProfile's findings of the server's event loop. `fdatasync` is fast on some machines
and slow on others: the first line says how long one takes here.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

import lastword
from bench.support import Results, console, median, values_of
from lastword import heap
from lastword.broker.server import Broker

VALUE_BYTES = 1024
TOPIC = "t"
FETCH_BYTES = 4_000_000
"""As much as the consumer asks for at a time."""
COMPACTIONS = 5
"""So many are watched, with four seconds without one before each. Medians are shown: now and then a disk stalls."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--only", choices=["produce", "consume", "replay", "latency", "beside"])
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--sync", default="group", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.sync, args.profile)
        return
    results = Results("broker")
    megabytes = 200 if args.quick else 1000
    console.print(f"One fdatasync of 16 KB takes {sync_ms():.2f} ms here.")
    for sync in () if args.only in ("replay", "latency", "beside") else ("group", "none"):
        for batch_bytes in (1_000_000, 16_384):
            with server(sync, args.profile) as running:
                produced = produce(running, batch_bytes, megabytes)
                results.add(part="produce", wal_sync=sync, batch_bytes=batch_bytes, **produced)
                if args.only in (None, "consume"):
                    for name, read in (("consume the tail", consume), ("raw fetch of the tail", fetch_raw)):
                        found = read(running, megabytes)
                        results.add(part=name, wal_sync=sync, batch_bytes=batch_bytes, **found)
        if args.only == "consume":
            break
    if args.only in (None, "replay"):
        # Each has a server of its own, so that neither finds what the other had in the cache.
        for name, read in (("replay sealed", consume), ("raw fetch of sealed", fetch_raw)):
            with server("none", args.profile) as running:
                produce(running, 1_000_000, megabytes)
                running.seal()
                results.add(part=name, wal_sync="none", batch_bytes=1_000_000, **read(running, megabytes))
    results.show("Throughput, 1 KB values")
    if args.only in (None, "latency"):
        found = Results("latency")
        for sync in ("group", "none"):
            with server(sync, None) as running:
                for rate in (100, 1000):
                    count = rate * (2 if args.quick else 10)
                    taken = latencies(running, rate, lambda number, count=count: number < count)
                    found.add(part="latency", wal_sync=sync, rate_per_s=rate, **percentiles(taken))
        found.show("Produces of one record at a fixed rate, acks=all")
        results.rows += found.rows
    if args.only in (None, "beside"):
        found = Results("beside")
        for row in beside_a_compaction(200_000 if args.quick else 4_000_000):
            found.add(part="beside a compaction", **row)
        found.show(
            "Produces of one record at 200/s, acks=all, while `lastword serve` compacts another topic on Spark"
        )
        results.rows += found.rows
    results.save(args.json)


def beside_a_compaction(records: int) -> Iterator[dict[str, object]]:
    """The latency of produces before a compaction and during it, in the other process of a whole server."""
    folder = Path(tempfile.mkdtemp(prefix="lastword-bench-"))
    command = [str(Path(sys.executable).with_name("lastword"))]
    options = ["--data", str(folder / "data"), "--kafka", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--json"]
    process = subprocess.Popen(
        [*command, "serve", *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        text = ""
        while not text.endswith("\n}\n"):
            text += process.stdout.readline()
        ready = json.loads(text)
        running = Running(process, ready["kafka"])
        for number in range(1 + COMPACTIONS):
            made = ["topic", "create", f"big-{number}", "--config", "cleanup.policy=compact"]
            subprocess.run(
                [*command, *made, "--data", str(folder / "data")], check=True, stdout=subprocess.DEVNULL
            )
            fill(running, f"big-{number}", records)

        def compact(number: int) -> None:
            """Over HTTP: a command's own start would be measured with it."""
            url = f"http://{ready['admin']}/v1/topics/big-{number}/compact"
            asked = urllib.request.Request(
                url, data=b"{}", headers={"Content-Type": "application/json"}, method="POST"
            )
            with urllib.request.urlopen(asked) as answer:
                answer.read()

        # The first compaction starts Spark.
        compact(0)
        latencies(running, 200, lambda number: number < 1000)
        taken: dict[str, list[dict[str, float]]] = {"none": [], "running": []}
        with ThreadPoolExecutor(1) as pool:
            for number in range(1, 1 + COMPACTIONS):
                taken["none"].append(percentiles(latencies(running, 200, lambda number: number < 800)))
                beside = pool.submit(compact, number)
                while_running = latencies(running, 200, lambda _, beside=beside: not beside.done())
                taken["running"].append(percentiles(while_running))
                beside.result()
        for name, windows in taken.items():
            p99s_ms = [each["p99_ms"] for each in windows]
            yield {
                "compaction": name,
                "p50_ms": median([each["p50_ms"] for each in windows]),
                "p99_ms": median(p99s_ms),
                "least_p99_ms": min(p99s_ms),
                "most_p99_ms": max(p99s_ms),
            }
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def fill(running: Running, topic: str, records: int) -> None:
    values = values_of(np.random.default_rng(1), 10_000, 200).to_pylist()
    producer = Producer({"bootstrap.servers": running.address, "linger.ms": 20, "batch.size": 1_000_000})
    for number in range(records):
        while True:
            try:
                producer.produce(topic, values[number % 10_000], b"user-%012d" % (number % (records // 10)))
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(120) == 0


class Running:
    """A server in its own process."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.address = address
        self._process = process
        self._usage = psutil.Process(process.pid)

    def cpu_s(self) -> float:
        times = self._usage.cpu_times()
        return times.user + times.system

    def seal(self) -> None:
        """Seal everything, and take the WAL's files away, so that all of it must be read from segments."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("seal\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline().strip() == "sealed"


@contextmanager
def server(sync: str, profile: Path | None) -> Iterator[Running]:
    folder = Path(tempfile.mkdtemp(prefix="lastword-bench-"))
    command = [sys.executable, "-m", "bench.broker", "--serve", str(folder / "data"), "--sync", sync]
    if profile:
        command += ["--profile", str(profile)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Running(process, process.stdout.readline().strip())
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        shutil.rmtree(folder)


def serve(folder: Path, sync: str, profile: Path | None) -> None:
    settings = {"wal.sync": sync, "num.partitions": 1, "local.retention.ms": 0}
    profiler = cProfile.Profile() if profile else None
    with lastword.open(folder, config=settings) as log:
        if profiler:
            profiler.enable()
        asyncio.run(_serve(log))
        if profiler and profile:
            profiler.disable()
            profiler.dump_stats(profile)


async def _serve(log: lastword.Log) -> None:
    broker = Broker(log, host="127.0.0.1", port=0)
    await broker.start()
    # As `lastword serve` does.
    heap.freeze()
    host, port = broker.address
    print(f"{host}:{port}", flush=True)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)

    def seal() -> None:
        log.topic(TOPIC).seal()
        log.run_retention(steps=["delete"])
        print("sealed", flush=True)

    def command() -> None:
        if sys.stdin.readline().strip() == "seal":
            loop.run_in_executor(None, seal)

    loop.add_reader(sys.stdin.fileno(), command)
    await stopped.wait()
    await broker.stop()


def produce(running: Running, batch_bytes: int, megabytes: int) -> dict[str, object]:
    rng = np.random.default_rng(1)
    values = values_of(rng, 1000, VALUE_BYTES).to_pylist()
    count = megabytes * 1000
    producer = Producer(
        {
            "bootstrap.servers": running.address,
            "batch.size": batch_bytes,
            "message.max.bytes": 1_000_000,
            "batch.num.messages": 100_000,
            "linger.ms": 50 if batch_bytes > 100_000 else 1,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 200_000,
            "acks": "all",
        }
    )
    producer.list_topics(TOPIC, timeout=10)
    producer.produce(TOPIC, b"first", b"key")
    producer.flush()
    cpu_s, started = running.cpu_s(), time.perf_counter()
    for number in range(count):
        while True:
            try:
                producer.produce(TOPIC, values[number % 1000], b"user-%012d" % number)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(120) == 0
    return figures(count, time.perf_counter() - started, running.cpu_s() - cpu_s)


def consume(running: Running, megabytes: int) -> dict[str, object]:
    count = megabytes * 1000
    consumer = Consumer(
        {
            "bootstrap.servers": running.address,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.message.max.bytes": FETCH_BYTES,
            "queued.min.messages": 100_000,
            "queued.max.messages.kbytes": 200_000,
            "check.crcs": False,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    # From the first record on: connecting is not what is measured.
    first = len(consumer.consume(1, 30.0))
    cpu_s, started, got = running.cpu_s(), time.perf_counter(), first
    while got < count:
        got += len(consumer.consume(10_000, 5.0))
    found = figures(count - first, time.perf_counter() - started, running.cpu_s() - cpu_s)
    consumer.close()
    return found


def fetch_raw(running: Running, megabytes: int) -> dict[str, object]:
    """Every batch of the topic over a plain socket: its length and its offsets are checked, its records are not read."""
    host, _, port = running.address.rpartition(":")
    buffer = bytearray(FETCH_BYTES + (1 << 20))
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        count = megabytes * 1000
        # The first fetch is not measured: connecting, and what is read ahead from then on, begins with it.
        offset = first = _fetch(sock, buffer, 0, 0)
        cpu_s, started = running.cpu_s(), time.perf_counter()
        number = 0
        while offset < count:
            number += 1
            offset = _fetch(sock, buffer, number, offset)
        return figures(offset - first, time.perf_counter() - started, running.cpu_s() - cpu_s)


def _fetch(sock: socket.socket, buffer: bytearray, number: int, offset: int) -> int:
    """Fetch (version 4) from an offset; the offset behind the batches that came."""
    body = struct.pack(">hhih", 1, 4, number, -1)
    body += struct.pack(">iiiib", -1, 5000, 1, FETCH_BYTES, 0)
    body += struct.pack(">ih", 1, len(TOPIC)) + TOPIC.encode()
    body += struct.pack(">iiqi", 1, 0, offset, FETCH_BYTES)
    sock.sendall(struct.pack(">i", len(body)) + body)
    view = memoryview(buffer)
    _receive(sock, view[:4])
    (size_bytes,) = struct.unpack_from(">i", buffer)
    _receive(sock, view[:size_bytes])
    # Correlation id, throttle time, one topic with its name, one partition: index, error, two offsets, no aborted ones.
    at = 4 + 4 + 4 + 2 + len(TOPIC) + 4
    _index, error, _high, _stable, _aborted, records_bytes = struct.unpack_from(">ihqqii", buffer, at)
    at += struct.calcsize(">ihqqii")
    assert error == 0 and at + records_bytes == size_bytes, (error, at, records_bytes, size_bytes)
    first_offset = offset
    while at < size_bytes:
        base_offset, length = struct.unpack_from(">qi", buffer, at)
        (last_delta,) = struct.unpack_from(">i", buffer, at + 23)
        assert base_offset == offset or (offset == first_offset and base_offset < offset), (
            base_offset,
            offset,
        )
        offset = base_offset + last_delta + 1
        at += 12 + length
    assert at == size_bytes and offset > first_offset
    return offset


def _receive(sock: socket.socket, into: memoryview) -> None:
    while into:
        received = sock.recv_into(into)
        assert received, "the server closed the connection"
        into = into[received:]


def latencies(running: Running, rate: int, goes_on: Callable[[int], bool]) -> list[float]:
    """The seconds that single produces took, sent at a fixed rate as long as `goes_on` says so of the next one."""
    producer = Producer({"bootstrap.servers": running.address, "linger.ms": 0, "acks": "all"})
    producer.list_topics(TOPIC, timeout=10)
    taken: list[float] = []
    value = bytes(VALUE_BYTES)
    began = time.perf_counter()
    number = 0
    while goes_on(number):
        due = began + number / rate
        while (left := due - time.perf_counter()) > 0:
            producer.poll(left)
        sent = time.perf_counter()
        producer.produce(
            TOPIC, value, on_delivery=lambda *_, sent=sent: taken.append(time.perf_counter() - sent)
        )
        number += 1
    assert producer.flush(30) == 0
    return taken


def percentiles(taken: list[float]) -> dict[str, float]:
    p50_ms, p99_ms = np.percentile(taken, [50, 99]) * 1000
    return {"p50_ms": float(p50_ms), "p99_ms": float(p99_ms)}


def figures(count: int, seconds: float, cpu_s: float) -> dict[str, object]:
    megabytes = count * VALUE_BYTES / 1e6
    return {
        "mb_per_s": round(megabytes / seconds),
        "records_per_s": round(count / seconds),
        "server_cpu_ms_per_mb": cpu_s * 1000 / megabytes,
    }


def sync_ms() -> float:
    with tempfile.NamedTemporaryFile() as file:
        started = time.perf_counter()
        for _ in range(20):
            os.write(file.fileno(), bytes(16384))
            os.fdatasync(file.fileno())
        return (time.perf_counter() - started) / 20 * 1000


if __name__ == "__main__":
    main()
