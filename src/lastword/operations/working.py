"""The worker: its status, and running every job once."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lastword.folder.locks import Role, holder
from lastword.maintenance.worker_state import load_status

if TYPE_CHECKING:
    from pathlib import Path

    from lastword.log.worker import Worker
    from lastword.maintenance.worker_state import WorkerStatus


def worker_status(data_folder: Path) -> dict[str, Any]:
    """Return the process that is the worker, and its last saved status. Does not open the log."""
    status = load_status(data_folder)
    return {
        "running": holder(data_folder, Role.WORKER),
        **({"jobs": {}, "failing": [], "erasures_left": []} if status is None else status_data(status)),
    }


def run_worker(worker: Worker) -> dict[str, Any]:
    """Run every job of the worker once, now."""
    worker.run_all()
    return status_data(worker.status)


def status_data(status: WorkerStatus) -> dict[str, Any]:
    return {
        "jobs": {name: asdict(job) for name, job in status.jobs.items()},
        "failing": [asdict(each) for each in status.failing],
        "erasures_left": status.erasures_left,
    }
