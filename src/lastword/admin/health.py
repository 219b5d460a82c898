"""Readiness, and the problems that prevent it."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from lastword.admin.context import AdminContext
from lastword.broker.server import Broker
from lastword.errors import UnavailableError
from lastword.folder import running
from lastword.folder.locks import Role, holder
from lastword.maintenance.worker_state import load_status
from lastword.operations.working import worker_status

LOOP_S = 2.0
MOST_NAMED = 10
MOST_CHARACTERS = 1_000

_JOBS = {
    "seal": "sealing",
    "compact": "the compaction job",
    "retention": "retention",
    "delete": "the deletion of WAL files",
    "expire": "the expiry of snapshots",
    "collect": "the collection of files",
}


def problems(
    context: AdminContext, broker: Broker | None, loop: asyncio.AbstractEventLoop | None
) -> list[str]:
    """Return the problems that keep the server from being ready. Block for some seconds at most."""
    return [*_broker_problems(broker, loop), *_wal_problems(context), *_worker_problems(context)]


def status(
    context: AdminContext, broker: Broker | None, loop: asyncio.AbstractEventLoop | None
) -> dict[str, Any]:
    """Return the server's processes, the worker's status, and the problems."""
    server = running.load(context.log.path)
    found = problems(context, broker, loop)
    return {
        "server": None
        if server is None
        else {
            "pid": server.pid,
            "since_ms": server.since_ms,
            "kafka": server.kafka,
            "admin": server.admin,
            "processes": {
                name: {
                    "pid": child.pid,
                    "since_ms": child.since_ms,
                    "restarts": child.restarts,
                    "last_end": child.last_end,
                }
                for name, child in server.children.items()
            },
        },
        # A server that answers this has started.
        "starting": None,
        "writer": holder(context.log.path, Role.WRITER),
        "worker": worker_status(context.log.path),
        "ready": not found,
        "problems": found,
    }


def _broker_problems(broker: Broker | None, loop: asyncio.AbstractEventLoop | None) -> list[str]:
    if broker is None or loop is None:
        return ["the broker is not listening for Kafka clients"]
    try:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(LOOP_S)
    except (TimeoutError, RuntimeError):
        return [f"the broker's loop has not answered within {LOOP_S:g} s"]
    return broker.group_problems()[:MOST_NAMED]


def _wal_problems(context: AdminContext) -> list[str]:
    found = [
        f"{name} partition {partition.number} refuses appends: {partition.failed}"
        for name, topic in list(context.log.opened_topics().items())
        for partition in topic.open_partitions()
        if partition.failed
    ]
    if not os.access(context.log.path, os.W_OK):
        found.append(f"the data folder {context.log.path} can't be written to")
    left = os.statvfs(context.log.path)
    if left.f_bavail == 0:
        found.append(f"there is no space left on the disk of {context.log.path}")
    return found[:MOST_NAMED]


def _worker_problems(context: AdminContext) -> list[str]:
    # From a file in the data folder: these problems exist whether or not the worker answers.
    found = job_problems(context.log.path)
    try:
        context.worker.ping()
    except UnavailableError as error:
        # The error distinguishes a worker that is gone from one that is slow.
        return [f"the worker{str(error).removeprefix('The worker').removesuffix('.')}", *found]
    return found


def job_problems(data_folder: Path) -> list[str]:
    """Return the jobs of the worker that fail. Compactions have one line per reason: topics that share it are grouped."""
    status = load_status(data_folder)
    if status is None:
        return []
    erasures = [f"an erasure is not done: {each}" for each in status.erasures_left]
    jobs = [
        f"{_JOBS[name]} fails: {_cut(job.last_error.removesuffix('.'))}"
        for name, job in status.jobs.items()
        if name in _JOBS and job.last_error
    ]
    by_reason: dict[str, list[str]] = {}
    for each in status.failing:
        name = each.topic if each.partition is None else f"{each.topic} partition {each.partition}"
        by_reason.setdefault(each.message, []).append(name)
    compactions = [
        f"compaction of {_named(names)} fails: {reason.removesuffix('.')}"
        for reason, names in by_reason.items()
    ]
    return [*compactions, *jobs, *erasures][:MOST_NAMED]


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


def _named(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:MOST_NAMED])} and {more} more"
