"""The backend without a server: each command opens the log in the role that it needs, and closes it."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from lastword.cli.backend import P, R
from lastword.folder.paths import CONFIG_FILE
from lastword.record_json import Json

if TYPE_CHECKING:
    from lastword.cli.options import Session
    from lastword.config import BrokerConfig
    from lastword.log import Log
    from lastword.log.worker import Worker
    from lastword.operations.table import Operation, Role

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Direct:
    """Calls lastword.operations on a log that it opens, or on one that is open."""

    session: Session
    log: Log | None = None

    def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        def work() -> R:
            with self._opened(operation.role_for(kwargs)) as target:
                call = partial(operation.function, target, *args, **kwargs)
                return run_until_signal(call, target, code=1) if operation.role == "work" else call()

        if operation.may_use_spark and not kwargs.get("dry_run"):
            return self.session.in_background(work)
        return work()

    @contextmanager
    def writing(self) -> Iterator[Direct]:
        with self.session.write() as log:
            yield replace(self, log=log)

    def _opened(self, role: Role) -> AbstractContextManager[Any]:
        if self.log is not None:
            return nullcontext(self.log)
        match role:
            case "read":
                return self.session.read()
            case "maintain":
                return self.session.maintain()
            case "write" | "create":
                return self.session.write(create=role == "create")
            case "work":
                return self._worker()
            case "folder":
                return nullcontext(self.session.data_folder)
            case "settings":
                return nullcontext(self._settings())

    @contextmanager
    def _worker(self) -> Iterator[Worker]:
        import lastword
        from lastword.clock import SystemClock
        from lastword.folder.locks import Role, RoleLock
        from lastword.serve.priority import give_way

        with lastword.open(
            self.session.data_folder, config=self.session.config, maintain_only=True, create=False
        ) as log:
            give_way(log.config.worker_nice)
            worker = log.worker()
            with RoleLock.acquire(log.path, Role.WORKER, SystemClock()):
                yield worker

    def _settings(self) -> BrokerConfig:
        from lastword.config import BrokerConfig

        own = self.session.data_folder / CONFIG_FILE
        return BrokerConfig.load(self.session.config or (own if own.exists() else None))

    def status(self) -> Json:
        from dataclasses import asdict

        from lastword.clock import SystemClock
        from lastword.folder import running
        from lastword.folder.locks import Role, holder
        from lastword.operations.connectors import summary
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
            "sources": summary(folder, SystemClock(), None),
        }


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
