"""The program that the connectors' kill tests kill: it runs the sources of a file on a log until it dies.

Its chunks are small, so that transactions are cut, and snapshots have many places to be killed at.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.crash_child import Speaker, run_child, serve

import lastword
from lastword.connect import ConnectConfig, Connectors
from lastword.connect.postgres import changes, snapshot
from lastword.folder import steps


@dataclass(frozen=True, kw_only=True)
class ConnectJob:
    """`kill_step` kills the process at the n-th time (`kill_count`) that the step is reached."""

    folder: str
    config: Mapping[str, Any]
    kill_step: str | None = None
    kill_count: int = 1
    says_to: str | None = None


class Child(Speaker):
    def __init__(self, job: ConnectJob, fd: int) -> None:
        super().__init__(fd, job.kill_step, job.kill_count)
        self.job = job

    def run(self) -> None:
        import signal

        changes.MAX_RECORDS = 60  # type: ignore[misc]
        snapshot.ROWS = 150  # type: ignore[misc]
        steps.install(self.reached)
        config = ConnectConfig.from_mapping(self.job.config)
        with lastword.open(self.job.folder) as log, Connectors(log, config):
            self.say("!", "started")
            signal.pause()


def run_job(job: dict[str, Any]) -> int:
    return run_child(ConnectJob(**job), Child)


if __name__ == "__main__":
    assert sys.argv[1:] == ["--serve"]
    serve(run_job)
