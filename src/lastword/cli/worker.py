"""`lastword worker`: all background jobs, run in the foreground of a terminal or a service.

The loop runs in its own thread, so that the main thread is always free to handle a signal: the signal asks the loop to
stop, which it does between two commits. Spark takes over Ctrl-C if the main thread starts it; here it does not.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli.direct import run_until_signal
from lastword.cli.options import Session, command, set_up_logging
from lastword.cli.output import age, facts, heading, styled, table

if TYPE_CHECKING:
    from lastword.config import BrokerConfig
    from lastword.log import Log


def register(app: typer.Typer) -> None:
    command(
        app,
        "worker",
        examples=["lastword worker", "lastword worker -v", "lastword worker --once"],
    )(worker)


def worker(
    session: Session,
    once: Annotated[
        bool,
        typer.Option("--once", help="Run every job once, then exit: with 1 if a job failed or was not run."),
    ] = False,
) -> None:
    """Seal, compact and apply retention in the background.

    Each job has its own schedule. The worker runs beside the process that writes the log, until Ctrl-C or SIGTERM,
    which stop it between two commits with exit code 0. There is one worker at a time. -v logs each action.
    """
    import lastword
    from lastword.clock import SystemClock
    from lastword.folder.locks import Role, RoleLock
    from lastword.operations.table import RUN_WORKER
    from lastword.serve.priority import give_way

    if once:
        # Its errors are in the result.
        set_up_logging(session.verbose, ["lastword.log.worker", "lastword.log", "lastword.compaction.job"])
        _show_status(session, session.backend.run(RUN_WORKER))
        return
    with lastword.open(session.data_folder, config=session.config, maintain_only=True, create=False) as log:
        give_way(log.config.worker_nice)
        made = log.worker()
        # Before any output: another worker may be running.
        RoleLock.acquire(log.path, Role.WORKER, SystemClock(), brief=True).release()
        _show_start(session, log)
        run_until_signal(made.run, made, code=0)
    if not session.output.json:
        session.output.show(None, "Stopped.")


def _show_start(session: Session, log: Log) -> None:
    jobs = _jobs(log.config)
    session.output.show(
        {
            "data_folder": str(log.path),
            "pid": os.getpid(),
            "jobs": {name: {"first_ms": first, "every_ms": every} for name, _, first, every in jobs},
        },
        facts([("data folder", str(log.path)), ("process", str(os.getpid()))]),
        "",
        table(
            ["job", "what it does", ">first within", ">then every"],
            [(name, what, _duration(first), _duration(every)) for name, what, first, every in jobs],
        ),
        "",
        "Ctrl-C or SIGTERM stops it between two commits.",
    )
    # The process that started this one may be waiting for it.
    sys.stdout.flush()


_WHAT = {
    "seal": "rolls and seals what is due",
    "compact": "compacts what is due",
    "retention": "removes segments by retention.*",
    "delete": "removes sealed WAL files by local.retention.*",
    "expire": "expires old snapshots",
    "collect": "removes unreferenced files",
    "measure": "measures sizes and lags for metrics",
}


def _jobs(config: BrokerConfig) -> list[tuple[str, str, int, int]]:
    from lastword.log.worker import schedule

    return [(name, _WHAT[name], first, every) for name, (first, every) in schedule(config).items()]


def _duration(duration_ms: int) -> str | None:
    return age(duration_ms) if duration_ms % 1000 == 0 else f"{duration_ms} ms"


def _show_status(session: Session, status: dict[str, Any]) -> None:
    not_run = [name for name, job in status["jobs"].items() if job["last_run_ms"] is None]
    stopped: list[Any] = (
        ["", styled(f"Stopped before these had run: {', '.join(not_run)}.", "red")] if not_run else []
    )
    session.output.show(status, *job_parts(status), *stopped)
    failed = any(job["last_error"] for job in status["jobs"].values())
    if not_run or failed or status["failing"] or status["erasures_left"]:
        raise typer.Exit(1)


def job_parts(status: dict[str, Any]) -> list[Any]:
    """Show the result of each job that has run, and what could not be compacted or erased."""
    ran = {name: job for name, job in status["jobs"].items() if job["last_run_ms"] is not None}
    parts: list[Any] = [
        table(
            ["job", ">time", "result"],
            [
                (
                    name,
                    f"{job['last_duration_s'] or 0:.1f} s",
                    _result(name, job, status),
                )
                for name, job in ran.items()
            ],
        )
    ]
    if status["failing"]:
        parts += [
            heading("Not compacted"),
            table(
                ["topic", ">partition", "problem"],
                [
                    (
                        each["topic"],
                        "all" if each["partition"] is None else each["partition"],
                        styled(each["message"], "red"),
                    )
                    for each in status["failing"]
                ],
            ),
        ]
    if status["erasures_left"]:
        parts += [heading("Not erased"), *(styled(each, "red") for each in status["erasures_left"])]
    return parts


def _result(name: str, job: dict[str, Any], status: dict[str, Any]) -> Any:
    if job["last_error"]:
        return styled(f"failed: {job['last_error']}", "red")
    if name == "compact" and (status["failing"] or status["erasures_left"]):
        return styled("done, except for what is listed below", "red")
    return "done"
