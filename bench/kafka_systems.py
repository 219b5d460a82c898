"""The two systems that bench/kafka.py compares, each in its own process on loopback, and what is asked of them.

`Theirs` is an Apache Kafka from Maven's jars, `Ours` a Lastword broker with its log and a warm Spark in one process,
which is told what to do on its standard input: `python -m bench.kafka_systems FOLDER WAL_SYNC`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from peers.client import alter, create
from peers.kafka import CleanerPass, KafkaPeer

import lastword
from bench.support import timed
from lastword.broker.server import Broker

_PATIENCE_S = 900
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
    segments: str = "zstd"
    """How Lastword packs segments until they are compacted."""


def digest(pairs: Iterable[tuple[bytes, bytes]]) -> int:
    """A number that two equal states share, in whatever order their keys come."""
    return sum(zlib.crc32(value, zlib.crc32(key)) for key, value in pairs)


class Theirs:
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
        """Keep the cleaner away until everything is there."""
        alter(self.address, topic, {"cleanup.policy": "delete"})

    def compact(self, topic: str, ends: dict[int, int]) -> dict[str, float]:
        """Let it clean up to the sentinel of each partition."""
        before = len(self.peer.cleaner_passes())
        started_s = time.time()
        alter(self.address, topic, {"cleanup.policy": "compact"})
        while True:
            passes = [each for each in self.peer.cleaner_passes()[before:] if each.topic == topic]
            done = {each.partition: each.dirty_end for each in sorted(passes, key=lambda p: p.dirty_end)}
            if all(done.get(partition, -1) >= end for partition, end in ends.items()):
                break
            if time.time() - started_s > _PATIENCE_S:
                raise RuntimeError(f"Kafka's cleaner came to {done}, not to {ends}")
            time.sleep(0.05)
        return {
            "seconds": max(each.finished_ms for each in passes) / 1000 - started_s,
            "worked_s": sum(each.seconds for each in passes),
            "passes": len(passes),
            "from_offset": min(each.dirty_start for each in passes),
            "mb_read": sum(_reported(each, "Indexed") + _reported(each, "Cleaned") for each in passes),
            "mb_written": sum(_reported(each, "End size:") for each in passes),
            "records_after": sum(_messages_after(last) for last in _last(passes)),
        }

    def disk_bytes(self, topic: str) -> int:
        """What its log needs; files that are to be deleted in a minute are named otherwise."""
        folders = (self.peer.folder / "data").glob(f"{topic}-*")
        return sum(file.stat().st_size for folder in folders for file in folder.glob("*.log"))


def _reported(each: CleanerPass, word: str) -> float:
    found = re.search(rf"{re.escape(word)} ([\d.,]+) MB", each.report)
    # What it calls MB are MiB.
    return float(found[1].replace(",", "")) * 1.048576 if found else 0.0


def _last(passes: list[CleanerPass]) -> list[CleanerPass]:
    """The last pass over each partition."""
    return list({each.partition: each for each in sorted(passes, key=lambda each: each.dirty_end)}.values())


def _messages_after(each: CleanerPass) -> int:
    found = re.search(r"End size: .* MB \(([\d,]+) messages\)", each.report)
    assert found is not None, each.report
    return int(found[1].replace(",", ""))


class Ours:
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
        config = {
            "cleanup.policy": "compact",
            "local.retention.ms": "0",
            "segment.bytes": str(64 << 20),
            "segment.compression.type": data.segments,
        }
        create(self.address, topic, data.partitions, config)

    def before_load(self, topic: str) -> None:
        """Nothing: nobody compacts but when told."""

    def seal(self, topic: str) -> float:
        return self.ask("seal", topic)["seconds"]

    def compact(self, topic: str, _ends: dict[int, int]) -> dict[str, float]:
        return self.ask("compact", topic)

    def disk_bytes(self, topic: str) -> int:
        return int(self.ask("disk", topic)["bytes"])


@contextmanager
def kafka(folder: Path, threads: int) -> Iterator[Theirs]:
    with KafkaPeer(folder / "kafka", settings={"log.cleaner.threads": str(threads)}) as peer:
        yield Theirs(peer)


@contextmanager
def ours(folder: Path, wal_sync: str = "group") -> Iterator[Ours]:
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", "bench.kafka_systems", str(folder / "lastword"), wal_sync],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Ours(process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


# ---------------------------------------------------------------------------------------- Lastword's process


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
    """Start Spark and let it compact something, three times."""
    from lastword.record import NewRecord

    log.create_topic("warm", partitions=1, config={"cleanup.policy": "compact"})
    for _ in range(3):
        log.topic("warm").append_many(
            [NewRecord(key=b"%d" % (n % 100), value=b"v" * 100) for n in range(20_000)]
        )
        log.compact(["warm"], seal=True, asked_for=True)


def _do(log: lastword.Log, command: str, topic: str) -> dict[str, float]:
    found: dict[str, float] = {}
    match command:
        case "seal":
            found["seconds"] = timed(lambda: log.topic(topic).seal())
            log.run_retention(steps=["delete"])
        case "compact":
            started = time.perf_counter()
            report = log.compact([topic], asked_for=True)
            found["seconds"] = found["worked_s"] = time.perf_counter() - started
            found["mb_read"] = sum(each.read_bytes for each in report.partitions) / 1e6
            found["mb_written"] = sum(each.written_bytes for each in report.partitions) / 1e6
            found["records_after"] = sum(each.records_after for each in report.partitions)
        case "state":
            started = time.perf_counter()
            table = log.topic(topic).state()
            found["seconds"] = time.perf_counter() - started
            found["keys"] = table.num_rows
        case "dict":
            started = time.perf_counter()
            table = log.topic(topic).state()
            state = dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
            found["seconds"] = time.perf_counter() - started
            found["keys"], found["digest"] = len(state), digest(state.items())
        case "disk":
            described = log.topic(topic).describe().partitions
            found["bytes"] = sum(each.sealed_bytes + each.wal_bytes for each in described)
        case _:
            raise ValueError(command)
    return found


if __name__ == "__main__":
    with lastword.open(Path(sys.argv[1]), config={"num.partitions": 1, "wal.sync": sys.argv[2]}) as opened:
        asyncio.run(_serve(opened))
