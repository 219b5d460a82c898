"""A real Apache Kafka: one node, KRaft, on loopback, with its own data folder.

    with KafkaPeer(folder) as kafka:
        kafka.address, kafka.tool("topics", "--list"), kafka.cleaned("topic")

Its log cleaner reports each pass to a file of its own, which `cleaner_passes` reads.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from peers.jars import jars

TOOLS = {
    "topics": "org.apache.kafka.tools.TopicCommand",
    "configs": "kafka.admin.ConfigCommand",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "producer-perf": "org.apache.kafka.tools.ProducerPerformance",
    "consumer-perf": "org.apache.kafka.tools.ConsumerPerformance",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}

_START_SECONDS = 300

_LOGGING = """
status = error
appender.file.type = File
appender.file.name = file
appender.file.fileName = {folder}/server.log
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{{1}} %m%n
appender.cleaner.type = File
appender.cleaner.name = cleaner
appender.cleaner.fileName = {folder}/cleaner.log
appender.cleaner.layout.type = PatternLayout
appender.cleaner.layout.pattern = %d{{UNIX_MILLIS}} %m%n
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
logger.cleaner.name = org.apache.kafka.storage.internals.log.LogCleaner$CleanerThread
logger.cleaner.level = info
logger.cleaner.appenderRef.cleaner.ref = cleaner
"""


@dataclass(frozen=True, slots=True)
class CleanerPass:
    """One pass of the cleaner over one partition, as it reports it itself."""

    topic: str
    partition: int
    dirty_start: int
    dirty_end: int
    seconds: float
    finished_ms: int
    report: str


class KafkaPeer:
    def __init__(self, folder: Path, *, settings: Mapping[str, str] | None = None, heap: str = "2g") -> None:
        self.folder = folder
        self._settings = settings or {}
        self._heap = heap
        self._jars = jars("kafka")
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0
        self._passes: list[CleanerPass] = []
        self._passes_read = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        properties = self.folder / "server.properties"
        if not properties.exists():
            self._port, controller = _free_ports(2)
            properties.write_text(self._properties(controller))
            (self.folder / "log4j2.properties").write_text(_LOGGING.format(folder=self.folder))
            cluster = self._java(["kafka.tools.StorageTool", "random-uuid"]).strip().splitlines()[-1]
            self._java(["kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)])
        log = self.folder / "server.log"
        seen = log.stat().st_size if log.exists() else 0
        with (self.folder / "out.log").open("ab") as out:
            self._process = subprocess.Popen(
                [*self._command(self._heap), "kafka.Kafka", str(properties)], stdout=out, stderr=out
            )
        deadline = time.monotonic() + _START_SECONDS
        while not (log.exists() and b"Kafka Server started" in log.read_bytes()[seen:]):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"Kafka did not start: see {log} and {self.folder / 'out.log'}")
            time.sleep(0.1)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None

    def cleaner_passes(self) -> list[CleanerPass]:
        """All passes until now. Entries that are complete are read once."""
        log = self.folder / "cleaner.log"
        if not log.exists():
            return []
        with log.open("rb") as file:
            file.seek(self._passes_read)
            text = file.read().decode(errors="replace")
        # The last entry may still be being written.
        last = max((each.start() for each in _ENTRY.finditer(text)), default=0)
        self._passes += _passes(text[:last])
        self._passes_read += len(text[:last].encode())
        return [*self._passes, *_passes(text[last:])]

    def tool(self, name: str, *args: str, address: str | None = None, stdin: bytes | None = None) -> str:
        return tool(name, *args, address=address or self.address, stdin=stdin)

    def _java(self, args: Sequence[str]) -> str:
        return _run([*self._command("256m"), *args], None)

    def _command(self, heap: str) -> list[str]:
        return [
            "java",
            f"-Xmx{heap}",
            "-cp",
            f"{self._jars}/*",
            f"-Dkafka.logs.dir={self.folder}",
            f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}",
        ]

    def _properties(self, controller_port: int) -> str:
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@localhost:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{controller_port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.folder / "data"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "log.cleaner.backoff.ms": "100",
            "log.retention.check.interval.ms": "1000",
            "group.initial.rebalance.delay.ms": "0",
            **self._settings,
        }
        return "".join(f"{name}={value}\n" for name, value in settings.items())


def tool(name: str, *args: str, address: str, stdin: bytes | None = None, timeout_s: float = 300) -> str:
    """What one of Kafka's command-line tools prints, asked of a broker at an address."""
    command = ["java", "-Xmx512m", "-cp", f"{jars('kafka')}/*", TOOLS[name]]
    return _run([*command, "--bootstrap-server", address, *args], stdin, timeout_s)


def _run(command: Sequence[str], stdin: bytes | None, timeout_s: float = 300) -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=timeout_s)
    if done.returncode != 0:
        raise RuntimeError(
            f"{command[-3:]} ended with {done.returncode}: {(done.stderr + done.stdout).decode()[-2000:]}"
        )
    return done.stdout.decode()


_ENTRY = re.compile(r"^(?P<at>\d{13}) ", re.MULTILINE)
_PASS = re.compile(
    r"cleaned log (?P<topic>.+)-(?P<partition>\d+) "
    r"\(dirty section = \[(?P<start>\d+), (?P<end>\d+)\]\)(?P<report>.*)",
    re.DOTALL,
)
_SECONDS = re.compile(r"processed in ([\d.,]+) seconds")


def _passes(text: str) -> list[CleanerPass]:
    found = []
    pieces = _ENTRY.split(text)[1:]
    for at, entry in zip(pieces[::2], pieces[1::2], strict=True):
        if (match := _PASS.search(entry)) is None:
            continue
        seconds = _SECONDS.search(match["report"])
        found.append(
            CleanerPass(
                topic=match["topic"],
                partition=int(match["partition"]),
                dirty_start=int(match["start"]),
                dirty_end=int(match["end"]),
                seconds=float(seconds[1].replace(",", "")) if seconds else 0.0,
                finished_ms=int(at),
                report=match["report"].strip(),
            )
        )
    return found


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
