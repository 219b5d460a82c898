"""The backend without a server: each command opens the log as it needs it, and closes it."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from lastword.cli.backend import Appender
from lastword.folder.paths import CONFIG_FILE
from lastword.record_json import Json, Parsed

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from lastword.log import Log
    from lastword.log.worker import Worker
    from lastword.operations.topics import OnProgress

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Opens(Protocol):
    """What the session does for it: opens the log in one of three ways, and runs what may use Spark."""

    @property
    def data_folder(self) -> Path: ...

    config: Path | None

    def read(self) -> Log: ...

    def write(self, *, create: bool = False) -> Log: ...

    def maintain(self) -> AbstractContextManager[Log]: ...

    def in_background(self, work: Callable[[], T]) -> T: ...


@dataclass(frozen=True, slots=True)
class Direct:
    """Calls lastword.operations on a log of its own."""

    session: Opens

    def topics(self) -> list[Json]:
        from lastword.operations import topics

        with self.session.read() as log:
            return topics.list_topics(log)

    def create_topic(self, name: str, *, partitions: int, config: dict[str, str]) -> Json:
        from lastword.operations import topics

        with self.session.write(create=True) as log:
            return topics.create_topic(log, name, partitions=partitions, config=config)

    def describe_topic(self, name: str) -> Json:
        from lastword.operations.describing import describe_topic

        with self.session.read() as log:
            return describe_topic(log, name)

    def alter_topic(
        self, name: str, *, set_config: dict[str, str], unset: list[str], partitions: int | None
    ) -> Json:
        from lastword.operations import topics

        with self.session.write() as log:
            return topics.alter_topic(log, name, set_config=set_config, unset=unset, partitions=partitions)

    def delete_topic(self, name: str) -> Json:
        from lastword.operations import topics

        with self.session.write() as log:
            return topics.delete_topic(log, name)

    def repair_plan(self, name: str) -> Json:
        from lastword.operations import topics

        with self.session.read() as log:
            return topics.repair_plan(log, name)

    def repair_topic(self, name: str) -> Json:
        from lastword.operations import topics

        with self.session.write() as log:
            return topics.repair_topic(log, name)

    def delete_records(self, name: str, *, partition: int, before: int) -> Json:
        from lastword.operations import topics

        with self.session.write() as log:
            return topics.delete_records(log, name, partition=partition, before=before)

    def history(self, name: str) -> Json:
        from lastword.operations import topics

        with self.session.read() as log:
            return topics.history(log, name)

    def settings(self, topic: str | None) -> list[Json]:
        from dataclasses import asdict

        if topic is not None:
            from lastword.operations import topics

            with self.session.read() as log:
                return topics.settings(log, topic)
        # Not by opening the log: the settings can be looked at before there is one.
        from lastword.config import BrokerConfig

        own = self.session.data_folder / CONFIG_FILE
        config = BrokerConfig.load(self.session.config or (own if own.exists() else None))
        return [asdict(each) for each in config.explain()]

    # --------------------------------------------------------------------------------------- maintenance

    def seal(self, name: str, *, progress: OnProgress) -> Json:
        from lastword.operations import topics

        with self.session.maintain() as log:
            return topics.seal(log, name, progress=progress)

    def plan_topic(self, name: str, *, partitions: list[int] | None, force: bool, seal: bool) -> Json:
        from lastword.operations import compaction

        with self.session.read() as log:
            return compaction.plan_topic(log, name, partitions=partitions, force=force, seal=seal)

    def compact_topic(
        self, name: str, *, partitions: list[int] | None, force: bool, seal: bool, progress: OnProgress
    ) -> Json:
        from lastword.operations import compaction

        def work() -> Json:
            with self.session.maintain() as log:
                return compaction.compact_topic(
                    log, name, partitions=partitions, force=force, seal=seal, progress=progress
                )

        return self.session.in_background(work)

    def plan_all(self, *, all_dirty: bool) -> Json:
        from lastword.operations import compaction

        with self.session.read() as log:
            return compaction.plan_all(log, all_dirty=all_dirty)

    def compact_all(self, *, all_dirty: bool, progress: OnProgress) -> Json:
        from lastword.operations import compaction

        def work() -> Json:
            with self.session.maintain() as log:
                return compaction.compact_all(log, all_dirty=all_dirty, progress=progress)

        return self.session.in_background(work)

    def verify(self, name: str, *, before: int | None, after: int | None) -> Json:
        from lastword.operations import compaction

        def work() -> Json:
            with self.session.read() as log:
                return compaction.verify(log, name, before=before, after=after)

        return self.session.in_background(work)

    def erase(self, name: str, keys: list[bytes], *, progress: OnProgress) -> Json:
        from lastword.operations import compaction

        with self.session.maintain() as log:
            return compaction.erase(log, name, keys, progress=progress)

    def make_backup(
        self, to: str, *, keep: int | None, properties: dict[str, str], progress: OnProgress
    ) -> Json:
        from lastword.operations.backups import make_backup

        with self.session.read() as log:
            return make_backup(log, to, keep=keep, properties=properties, progress=progress)

    def run_retention(self, *, dry_run: bool, topics: list[str] | None) -> Json:
        from lastword.operations.cleaning import run_retention

        with self.session.read() if dry_run else self.session.maintain() as log:
            return run_retention(log, dry_run=dry_run, topics=topics)

    # ---------------------------------------------------------------------------------- WAL and records

    def show_wal(self, name: str | None) -> list[Json]:
        from lastword.operations import wal

        with self.session.read() as log:
            return wal.show_wal(log, name)

    def wal_damage(self, name: str) -> Json:
        from lastword.operations import wal

        with self.session.read() as log:
            return wal.wal_damage(log, name)

    def skip_wal_damage(self, name: str) -> Json:
        from lastword.broker.groups.replay import GROUPS_TOPIC, write_again
        from lastword.operations import wal

        with self.session.write() as log:
            if name == GROUPS_TOPIC:
                write_again(log)
            return wal.skip_wal_damage(log, name)

    @contextmanager
    def appender(self, name: str) -> Iterator[Appender]:
        with self.session.write() as log:
            # A topic that is not there is told before any line is read.
            log.topic(name)
            yield _DirectAppender(log, name)

    # ------------------------------------------------------------------------------------------ sources

    def connectors(self) -> list[Json]:
        from lastword.clock import SystemClock
        from lastword.connect.states import load_statuses

        # An error if there is no log.
        with self.session.read():
            return load_statuses(self.session.data_folder, SystemClock())

    def pause_connector(self, name: str) -> Json:
        from lastword.connect import states

        return states.pause(self.session.data_folder, name)

    def resume_connector(self, name: str) -> Json:
        from lastword.connect import states

        return states.resume(self.session.data_folder, name)

    # ------------------------------------------------------------------------------------------- groups

    def groups(self) -> list[Json]:
        from lastword.broker.groups.stored import StoredGroups

        with self.session.read() as log:
            return StoredGroups(log).list_groups()

    def describe_group(self, name: str) -> Json:
        from lastword.broker.groups.stored import StoredGroups

        with self.session.read() as log:
            return StoredGroups(log).describe_group(name)

    def delete_group(self, name: str) -> Json:
        from lastword.broker.groups.stored import StoredGroups

        with self.session.write() as log:
            StoredGroups(log).delete_group(name)
        return {"group": name, "deleted": True}

    # --------------------------------------------------------------------------------------- the worker

    def run_worker_once(self) -> Json:
        import lastword
        from lastword.clock import SystemClock
        from lastword.folder.locks import Role, RoleLock
        from lastword.operations.working import run_worker_once
        from lastword.serve.priority import give_way

        with lastword.open(
            self.session.data_folder, config=self.session.config, maintain_only=True, create=False
        ) as log:
            give_way(log.config.worker_nice)
            worker = log.worker()
            with RoleLock.acquire(log.path, Role.WORKER, SystemClock()):
                return run_until_signal(lambda: run_worker_once(worker), worker, code=1)

    def status(self) -> Json:
        from dataclasses import asdict

        from lastword.clock import SystemClock
        from lastword.connect.states import load_statuses
        from lastword.folder import running
        from lastword.folder.locks import Role, holder
        from lastword.operations.working import worker_status

        folder = self.session.data_folder
        problem = "no server is running on this data folder"
        if (starting := running.load_starting(folder)) is not None:
            problem = (
                f"the server is being started (process {starting.pid}): it waits for {starting.waits_for}"
            )
        else:
            # An error if there is no log. A server that is being started may not have begun it yet.
            with self.session.read():
                pass
        return {
            "server": None,
            "starting": None if starting is None else asdict(starting),
            "writer": holder(folder, Role.WRITER),
            "worker": worker_status(folder),
            "ready": False,
            "problems": [problem],
            "sources": {
                "states": {each["source"]: each["state"] for each in load_statuses(folder, SystemClock())},
                "problem": None,
            },
        }


@dataclass(frozen=True, slots=True)
class _DirectAppender:
    log: Log
    name: str

    def append(
        self, records: Sequence[Parsed], *, partition: int | None, compression: str
    ) -> list[tuple[int, int]]:
        from lastword.operations.records import append_records

        found = append_records(self.log, self.name, records, partition=partition, compression=compression)
        return [(each["partition"], each["offset"]) for each in found["positions"]]

    def check(self, records: Sequence[Parsed], *, partition: int | None) -> None:
        from lastword.operations.records import append_records

        append_records(self.log, self.name, records, partition=partition, check_only=True)


def run_until_signal(run: Callable[[], T], worker: Worker, *, code: int) -> T:
    """Run in a thread, so that Ctrl-C and SIGTERM find the main thread free: they ask the worker to end.

    Where a job does not, because it waits for Spark, the process ends without it, with the exit code `code`.
    """
    from lastword.serve.ending import STOP_S, StopRequest, in_thread

    if threading.current_thread() is not threading.main_thread():
        return run()
    stop = StopRequest()
    with stop.on_signals():
        running = in_thread(run, "lastword-worker")
        running.add_done_callback(stop.ask)
        stop.wait()
        worker.stop()
        try:
            return running.result(STOP_S)
        except TimeoutError:
            if running.done():
                raise
            logger.warning(
                "A job did not end within %d s and was broken off; nothing of it was committed.", STOP_S
            )
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
