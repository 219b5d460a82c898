"""The backend without a server: each command opens the log in the role that it needs, and closes it."""

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

from lastword.cli.backend import Appender, P, R
from lastword.folder.paths import CONFIG_FILE
from lastword.record_json import Json, Parsed

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from lastword.log import Log
    from lastword.log.worker import Worker
    from lastword.operations.table import Operation, Role

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Opens(Protocol):
    """The session, as this backend uses it: it opens the log in one of three ways, and runs work that may use Spark."""

    @property
    def data_folder(self) -> Path: ...

    config: Path | None

    def read(self) -> Log: ...

    def write(self, *, create: bool = False) -> Log: ...

    def maintain(self) -> AbstractContextManager[Log]: ...

    def in_background(self, work: Callable[[], T]) -> T: ...


@dataclass(frozen=True, slots=True)
class Direct:
    """Calls lastword.operations on a log that it opens."""

    session: Opens

    def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        request = operation.request(*args, **kwargs)

        def work() -> R:
            with self._opened(operation.role_for(request)) as log:
                return operation.function(log, *args, **kwargs)

        if operation.may_use_spark and not request.get("dry_run"):
            return self.session.in_background(work)
        return work()

    def _opened(self, role: Role) -> AbstractContextManager[Log]:
        match role:
            case "read":
                return self.session.read()
            case "maintain":
                return self.session.maintain()
            case "write" | "create":
                return self.session.write(create=role == "create")

    def broker_settings(self) -> list[Json]:
        # Without opening the log: the settings can be shown before there is one.
        from dataclasses import asdict

        from lastword.config import BrokerConfig

        own = self.session.data_folder / CONFIG_FILE
        config = BrokerConfig.load(self.session.config or (own if own.exists() else None))
        return [asdict(each) for each in config.explain()]

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
            # Report a missing topic before any line is read.
            log.topic(name)
            yield _DirectAppender(log, name)

    # ------------------------------------------------------------------------------------------ sources

    def connectors(self) -> list[Json]:
        from lastword.clock import SystemClock
        from lastword.connect.states import load_statuses

        # Raises if there is no log.
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
            problem = f"the server is starting (process {starting.pid}): it waits for {starting.waits_for}"
        else:
            # Raises if there is no log. A server that is starting may not have created it yet.
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
    """Run in a thread, so that the main thread is free to handle Ctrl-C and SIGTERM, which ask the worker to stop.

    If a job does not stop because it waits for Spark, the process exits without it, with the exit code `code`.
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
                "A job did not stop within %d s and was abandoned; nothing of it was committed.", STOP_S
            )
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
