"""The worker's process: the background work, and what the admin API asks for, on one log.

The work runs in threads, so that signals find the main thread free. What is asked for runs in a thread of its own and
waits for a job of the worker where both need the same lane (lanes.py). On SIGTERM, or when the supervisor is gone, all
of it ends between two commits, in bounded time (ending.py).
"""

from __future__ import annotations

import base64
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
from lastword.operations import backups, cleaning, compaction, explaining, topics, working
from lastword.operations.maintaining import wait_for_maintenance
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
        # Before it is said that this is the worker: another one may be there.
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
        # What ended it is raised below.
        running.exception()
        log.close()

    ending = in_thread(end, "lastword-ending")
    try:
        ending.result(STOP_S)
    except TimeoutError:
        if ending.done():
            raise
        logger.warning("a job did not end within %d s and is broken off; nothing of it was committed", STOP_S)
        return
    error = running.exception()
    if isinstance(error, LastwordError):
        raise error
    if error is not None:
        logger.error("the worker met an unexpected error", exc_info=error)
        raise SystemExit(1)


class _Requests:
    """What can be asked of the worker."""

    def __init__(self, log: Log, worker: Worker) -> None:
        self._log = log
        self._worker = worker

    def handle(self, request: dict[str, Any], progress: ReportProgress, gone: Stop) -> Any:
        match request:
            case {"do": "ping"}:
                return "pong"
            case {"do": "metrics"}:
                return metrics.exposition()
            case {"do": "engine"}:
                return self._log.compaction.engine_state()
            case {"do": "compact_topic", "dry_run": True, "topic": topic}:
                return compaction.plan_topic(
                    self._log,
                    topic,
                    partitions=request["partitions"],
                    force=request["force"],
                    seal=request["seal"],
                )
            case {"do": "compact_all", "dry_run": True}:
                return compaction.plan_all(self._log, all_dirty=request["all_dirty"])
            case {"do": "retention", "dry_run": True}:
                return cleaning.run_retention(self._log, dry_run=True, topics=request["topics"])
            case {"do": "verify", "topic": topic}:
                return compaction.verify(self._log, topic, before=request["before"], after=request["after"])
            case {"do": "explain", "topic": topic}:
                key = request["key_base64"]
                return explaining.explain(
                    self._log,
                    topic,
                    partition=request["partition"],
                    key=None if key is None else base64.b64decode(key),
                    from_offset=request["from_offset"],
                    limit=request["limit"],
                    run=request["run"],
                    seal=request["seal"],
                )
            case {"do": "backup", "to": to}:
                # Not under the maintenance role: sealing and all the rest go on beside it.
                return backups.make_backup(
                    self._log,
                    to,
                    keep=request["keep"],
                    properties=request["properties"],
                    progress=progress,
                    stop=gone,
                )
            case {"do": "run_all"}:
                return working.run_worker_once(self._worker)
        with wait_for_maintenance(self._log):
            return self._maintain(request, progress, gone)

    def _maintain(self, request: dict[str, Any], progress: ReportProgress, gone: Stop) -> Any:
        match request:
            case {"do": "seal", "topic": topic}:
                return topics.seal(self._log, topic, progress=progress)
            case {"do": "compact_topic", "topic": topic}:
                return self._compacted(
                    compaction.compact_topic(
                        self._log,
                        topic,
                        partitions=request["partitions"],
                        force=request["force"],
                        seal=request["seal"],
                        progress=progress,
                        stop=gone,
                    )
                )
            case {"do": "compact_all"}:
                return self._compacted(
                    compaction.compact_all(
                        self._log, all_dirty=request["all_dirty"], progress=progress, stop=gone
                    )
                )
            case {"do": "erase", "topic": topic, "keys_base64": keys}:
                decoded = [base64.b64decode(each) for each in keys]
                return compaction.erase(self._log, topic, decoded, progress=progress)
            case {"do": "retention"}:
                return cleaning.run_retention(self._log, dry_run=False, topics=request["topics"])
        raise InvalidError(f"the worker can't do {request.get('do')!r}")

    def _compacted(self, report: Json) -> Json:
        done = [each for each in report["partitions"] if each["problem"] is None]
        self._worker.compacted([(each["topic"], each["partition"]) for each in done])
        return report
