"""The operator of a simulation: settings, topics, requested maintenance, backups, and a folder that takes a topic over."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from lastword.compaction.reports import CompactionReport
from lastword.errors import LastwordError, UnknownTopicError
from lastword.log import Log
from lastword.log import open as open_log
from lastword.log.topic import Topic
from lastword.maintenance.backup.make import BackupReport
from lastword.maintenance.backup.restoring import restore
from lastword.testing.simulation.client import RefusedError, UnclearError
from lastword.testing.simulation.clients import Client, Surroundings, sent
from lastword.testing.simulation.plan import TOPIC
from lastword.testing.simulation.query import Queries
from lastword.testing.simulation.server import ROLES, Server

TOPIC_EXISTS: Final = 36
DISTURBING: Final = ("restore", "take_over")
"""Acts that may replace the files of a query."""
CONFIRMED_S: Final = 3.0
"""The time after which a former owner acknowledges nothing. Owners confirm their ownership every second."""
CHANGES: Final = (
    ("min.cleanable.dirty.ratio", ("0", "0.9")),
    ("delete.retention.ms", ("0", "1000", "100000")),
    ("cleanup.policy", ("compact", "compact,delete")),
    ("min.compaction.lag.ms", ("0", "5000")),
    ("local.retention.ms", ("0", "100000")),
)


class Operator(Client):
    """A client that may make every request."""

    def __init__(
        self,
        name: str,
        around: Surroundings,
        server: Server,
        *,
        folder: Path,
        elsewhere: Path,
        config: Mapping[str, Any],
        topic: Mapping[str, str],
        queries: Queries,
        problem: Callable[[str], None],
    ) -> None:
        super().__init__(name, around)
        self._server = server
        self._folder = folder
        self._elsewhere = elsewhere
        self._config = config
        self._settings = dict(topic)
        self._queries = queries
        self._problem = problem
        self._backups: list[tuple[str, int, int]] = []

    def do(self, what: str, chance: random.Random) -> None:
        machine = self._around.machine
        machine.disturbances += what in DISTURBING
        self._do(what, chance)
        machine.disturbances += what in DISTURBING

    def _do(self, what: str, chance: random.Random) -> None:
        match what:
            case "seal":
                self._server.ask("worker", lambda log: log.topic(TOPIC).seal())
            case "compact":
                seal, force = chance.random() < 0.7, chance.random() < 0.7
                self.compact(seal=seal, force=force)
            case "compact_later":
                self._server.ask("worker", lambda log: log.topic(TOPIC).seal())
                self._scheduler.sleep(chance.choice([1.0, 20.0, 70.0]))
                self.compact(seal=False, force=True)
                self._around.oracle.as_of_time(chance)
            case "compact_and_read":
                self._compact_and_read(chance)
            case "tidy":
                self._server.ask("worker", lambda log: log.run_retention())
            case "erase":
                self._erase(chance.choice(self._around.keys).encode())
            case "delete_records":
                self._delete_records(chance)
            case "alter":
                self._alter(chance)
            case "delete_topic":
                self._delete_topic()
            case "recreate":
                self._delete_topic()
                self._scheduler.sleep(chance.choice([0.0, 0.0, 0.01, 1.0, 10.0]))
                self.create_topic()
            case "backup":
                self._back_up()
            case "restore":
                self._restore(chance)
            case "take_over":
                self._take_over(chance)
            case other:
                super().do(other, chance)

    def compact(self, *, seal: bool, force: bool) -> bool:
        """Compact the topic in the middle of a query, and return whether it succeeded."""
        self._queries.start()
        reports: list[CompactionReport] = []
        self._server.ask(
            "worker",
            lambda log: reports.append(log.compact([TOPIC], seal=seal, asked_for=True, force=force)),
        )
        return bool(reports) and not reports[0].failures

    def _compact_and_read(self, chance: random.Random) -> None:
        """Read, compact, and read again before other readers, through the broker and directly."""
        partition = chance.randrange(self._around.partitions)
        max_bytes = chance.choice([1, 200, 1 << 20])
        if chance.random() < 0.5:
            self.read_all(partition, max_bytes=1 << 20)
        for seal in (True, False)[: chance.randint(1, 2)]:
            self.compact(seal=seal, force=True)
        reads: list[Callable[[], object]] = [
            lambda: self._around.oracle.replay(partition),
            lambda: self._around.oracle.as_of_time(chance),
            lambda: self._around.oracle.as_of_time(chance),
            lambda: self.read_all(partition, max_bytes=max_bytes),
        ]
        chance.shuffle(reads)
        for read in reads:
            read()

    # ------------------------------------------------------------------------------------------ topics

    def exists(self) -> bool:
        """Return whether the topic exists, according to the broker."""
        try:
            self.kafka.list_offset(TOPIC, 0, -2)
        except RefusedError:
            return False
        except UnclearError:
            return True
        return True

    def create_topic(self) -> None:
        """Create the topic, with retries."""
        partitions = self._around.partitions
        for _ in range(100):
            with self._recorder.topic_created(
                TOPIC, self._settings, partitions=partitions, process=self.name
            ) as pending:
                try:
                    self.kafka.create_topic(TOPIC, partitions, self._settings)
                    pending.ok()
                    return
                except RefusedError as error:
                    pending.refused(error)
                    if error.code == TOPIC_EXISTS:
                        return
                except UnclearError as error:
                    pending.doubt(error)
            self._scheduler.sleep(1)

    def _delete_topic(self) -> None:
        with self._recorder.topic_deleted(TOPIC, process=self.name) as pending:
            self.done(pending, lambda: self.kafka.delete_topic(TOPIC))

    def _alter(self, chance: random.Random) -> None:
        key, values = chance.choice(CHANGES)
        change = {key: chance.choice(values)}
        with self._recorder.topic_settings(TOPIC, change, process=self.name) as pending:
            self.done(pending, lambda: self.kafka.alter_topic(TOPIC, change))

    # ----------------------------------------------------------------------------------------- records

    def _erase(self, key: bytes) -> None:
        with self._recorder.erase(TOPIC, [key], process=self.name) as pending:
            report = self._server.ask("worker", lambda log: log.erase(TOPIC, [key]))
            if report is not None and not getattr(report, "left", None):
                pending.ok()
            else:
                # It may resume later, with the records that were there when it was requested.
                pending.doubt("it failed, or records are left", is_over=True)

    def _delete_records(self, chance: random.Random) -> None:
        partition = chance.randrange(self._around.partitions)
        try:
            end = self.kafka.list_offset(TOPIC, partition, -1)
        except (RefusedError, UnclearError):
            return
        before = chance.randint(0, end)
        with self._recorder.delete_records(TOPIC, partition, before, process=self.name) as pending:
            if self.asked(pending, lambda: (self.kafka.delete_records(TOPIC, partition, before),)):
                pending.ok()

    # ------------------------------------------------------------------------------------------ folders

    def _back_up(self) -> None:
        place = str(self._elsewhere / "backups")
        began = self._recorder.now()
        made: list[BackupReport] = []
        done = self._server.ask("worker", lambda log: made.append(log.backup(place))) is not None
        # One that lacks the topic says so.
        if done and not made[0].problems:
            self._backups.append((made[0].backup.id, began, self._recorder.now()))

    def _restore(self, chance: random.Random) -> None:
        """Stop the server, and replace its folder with a backup."""
        if not self._backups or "catalog" in self._config:
            return
        backup, began, ended = chance.choice(self._backups)
        self._server.is_stopped = True
        with self._recorder.restore(began, ended, process=self.name) as pending:
            for role in ROLES:
                self._server.kill(role)
            self._around.machine.lives += 1
            shutil.rmtree(self._folder, ignore_errors=True)
            shutil.rmtree(self._elsewhere / "bucket", ignore_errors=True)
            try:
                restore(
                    self._elsewhere / "backups",
                    self._folder,
                    backup=backup,
                    config=self._config,
                    clock=self._around.machine.clock,
                )
                pending.ok()
            except LastwordError as error:
                self._problem(f"a restore failed: {error!r}")
        self._server.is_stopped = False
        self._server.changed()

    def _take_over(self, chance: random.Random) -> None:
        """Let another folder take the topic over and append to it, then take the topic back."""
        if "catalog" not in self._config:
            return
        done: list[bool] = []

        def work() -> None:
            try:
                self._rival(chance)
            except (LastwordError, OSError):
                # It was refused or failed. The history has its operations.
                pass
            except Exception as error:  # noqa: BLE001
                self._problem(f"the rival ended with {error!r}")
            done.append(True)

        rival = self._around.machine.start("rival", work)
        while not done and rival.is_alive:
            self._scheduler.sleep(0.5)
        self._around.machine.kill(rival)
        for _ in range(100):
            if self._server.is_serving and self._server.ask("broker", self._take_back) is not None:
                return
            self._scheduler.sleep(2)

    def _rival(self, chance: random.Random) -> None:
        with open_log(
            self._elsewhere / "rival", config=self._config, clock=self._around.machine.clock
        ) as log:
            with self._recorder.takeover(topics=[TOPIC], process="rival") as pending:
                log.take_over(TOPIC)
                self._scheduler.sleep(CONFIRMED_S)
                pending.ok()
            topic = log.topic(TOPIC)
            for _ in range(chance.randint(1, 4)):
                self._append(topic, chance.choice(self._around.keys))
                self._scheduler.sleep(chance.choice([0.0, 0.3, 2.0]))
            if chance.random() < 0.7:
                topic.seal()

    def _take_back(self, log: Log) -> object:
        with self._recorder.takeover(topics=[TOPIC], process=self.name) as pending:
            try:
                log.take_over(TOPIC)
            except UnknownTopicError as error:
                pending.refused(error)
                return True
            self._scheduler.sleep(CONFIRMED_S)
            pending.ok()
        return log.topic(TOPIC)

    def _append(self, topic: Topic, key: str) -> None:
        record = self.record(key)
        partition = self.partition_of(key)
        with self._recorder.produce(TOPIC, partition, [sent(record)], process="rival") as pending:
            at = topic.append(key, record.value, partition=partition, timestamp_ms=record.timestamp_ms)
            pending.acknowledged(at.offset)
