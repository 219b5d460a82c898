"""`lastword status`: whether a server runs, the state of its processes, and problems."""

from __future__ import annotations

import time
from typing import Any

import typer

from lastword.cli.options import Session, command
from lastword.cli.output import age, facts, heading, styled, table
from lastword.cli.worker import job_parts


def register(app: typer.Typer) -> None:
    command(app, "status", examples=["lastword status", "lastword status --json"])(status)


def status(session: Session) -> None:
    """Show the server of the data folder, and its problems.

    This includes its processes, the last runs of its worker's jobs, and the sources. The exit code is 1 if no server is
    running, or if it is not ready. A server that is starting is not ready.
    """
    found = read_status(session)
    session.output.show(found, *_parts(found))
    if not found["ready"]:
        raise typer.Exit(1)


def read_status(session: Session) -> dict[str, Any]:
    from lastword.folder import running

    found = session.backend.status()
    if (
        found["server"] is None
        and found["starting"] is None
        and running.load(session.data_folder) is not None
    ):
        # A server has become ready since this process looked for one.
        return session.backend.status()
    return found


def _parts(found: dict[str, Any]) -> list[Any]:
    server = found["server"]
    parts: list[Any] = []
    if server is None:
        who = [("writer", found["writer"]), ("worker", found["worker"]["running"])]
        parts.append(facts([(role, name or "none is running") for role, name in who]))
        if (starting := found["starting"]) is not None:
            for_so_long = age(time.time_ns() // 1_000_000 - starting["since_ms"])
            parts += ["", f"A server has been starting for {for_so_long}, as process {starting['pid']}."]
    else:
        now_ms = time.time_ns() // 1_000_000
        parts += [
            facts([("Kafka", server["kafka"]), ("admin API", server["admin"])]),
            "",
            table(
                ["process", ">pid", ">up for", ">restarts", "last ended by"],
                [
                    ("supervisor", server["pid"], age(now_ms - server["since_ms"]), None, None),
                    *(
                        (
                            name,
                            each["pid"],
                            "starting" if each["since_ms"] is None else age(now_ms - each["since_ms"]),
                            each["restarts"],
                            each["last_end"],
                        )
                        for name, each in server["processes"].items()
                    ),
                ],
            ),
        ]
    if found["worker"]["jobs"]:
        parts += [heading("Last runs of the worker's jobs"), *job_parts(found["worker"])]
    else:
        parts += ["", _no_jobs(found)]
    parts += _source_parts(found["sources"])
    parts.append("")
    if found["ready"]:
        return [*parts, styled("Ready.", "bold green")]
    return [*parts, *(styled(f"Not ready: {each}", "red") for each in found["problems"])]


def _no_jobs(found: dict[str, Any]) -> str:
    server = found["server"]
    if server is None and found["worker"]["running"] is None:
        return "No worker has run on this data folder yet, so none has sealed or compacted anything."
    worker = None if server is None else server["processes"].get("worker")
    if worker is not None and worker["since_ms"] is None:
        return "The worker is starting, and has not run a job on this data folder yet."
    return "The worker has started, but has not finished a job yet."


def _source_parts(sources: dict[str, Any]) -> list[Any]:
    states = [f"{name} {state}" for name, state in sources["states"].items()]
    parts: list[Any] = ["", facts([("sources", ", ".join(states))])] if states else []
    if sources["problem"]:
        parts += ["", styled(f"The sources are not running: {sources['problem']}", "red")]
    return parts
