"""The worker's process: the background work, and requests from the admin API, on one log.

The work runs in threads, so that the main thread is free for signals. Each request runs in its own thread and waits
for a job of the worker if both need the same lane (lanes.py). On SIGTERM, or when the supervisor is gone, all work ends
between two commits, in bounded time (ending.py).
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lastword import metrics
from lastword.clock import SystemClock
from lastword.errors import InvalidError, LastwordError
from lastword.folder.channel import JobServer, ReportProgress
from lastword.folder.locks import Role, RoleLock
from lastword.log import Log
from lastword.log import open as open_log
from lastword.log.worker import Worker
from lastword.operations.maintaining import wait_for_maintenance
from lastword.operations.table import COMPACT_ALL, COMPACT_TOPIC, OPERATIONS
from lastword.record_json import Json
from lastword.serve.child import Leash, ServeOptions
from lastword.serve.ending import STOP_S, StopRequest, in_thread
from lastword.serve.priority import give_way

logger = logging.getLogger("lastword.serve.worker")

Stop = Callable[[], bool]


def serve(options: ServeOptions, leash: Leash) -> None:
    stop = StopRequest()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop.ask)
    leash.watch(stop.ask)
    log = open_log(options.data, config=options.config, maintain_only=True, create=False)
    try:
        give_way(log.config.worker_nice)
        # Check for another worker before this one reports that it is ready.
        RoleLock.acquire(log.path, Role.WORKER, SystemClock(), brief=True).release()
        worker = log.worker()
        jobs = JobServer(Path(options.channel), _Requests(log, worker).handle)
        jobs.start()
    except BaseException:
        log.close()
        raise
    running = in_thread(worker.run, "lastword-worker")
    running.add_done_callback(stop.ask)
    leash.ready()
    stop.wait()
    logger.info("stopping")
    worker.stop()
    jobs.close()

    def end() -> None:
        # The worker's error is raised below.
        running.exception()
        log.close()

    ending = in_thread(end, "lastword-ending")
    try:
        ending.result(STOP_S)
    except TimeoutError:
        if ending.done():
            raise
        logger.warning("a job did not end within %d s and is aborted; nothing of it was committed", STOP_S)
        return
    error = running.exception()
    if isinstance(error, LastwordError):
        raise error
    if error is not None:
        logger.error("unexpected error in the worker", exc_info=error)
        raise SystemExit(1)


class _Requests:
    """The requests that the worker handles."""

    def __init__(self, log: Log, worker: Worker) -> None:
        self._log = log
        self._worker = worker

    def handle(self, request: dict[str, Any], progress: ReportProgress, gone: Stop) -> Any:
        do = request.get("do")
        match do:
            case "ping":
                return "pong"
            case "metrics":
                return metrics.exposition()
            case "engine":
                return self._log.compaction.engine_state()
        operation = OPERATIONS.get(str(do))
        if operation is None:
            raise InvalidError(f"The worker has no operation {do!r}.")
        asked = {name: value for name, value in request.items() if name != "do"}
        if operation.role == "work":
            return operation.call(self._worker, asked, progress, gone)
        if operation.role_for(asked) != "maintain":
            return operation.call(self._log, asked, progress, gone)
        with wait_for_maintenance(self._log):
            done = operation.call(self._log, asked, progress, gone)
            return self._compacted(done) if operation in (COMPACT_TOPIC, COMPACT_ALL) else done

    def _compacted(self, report: Json) -> Json:
        done = [each for each in report["partitions"] if each["problem"] is None]
        self._worker.compacted([(each["topic"], each["partition"]) for each in done])
        return report
