"""`lastword connect`: run sources that feed topics, check their file, show their status, pause and reset them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli.options import Session, YesOption, argument, command, group, option
from lastword.cli.output import age, facts, styled, table
from lastword.errors import InvalidError, LockedError, UnavailableError

if TYPE_CHECKING:
    from lastword.connect.destination import Destination

FileArgument = Annotated[Path, argument("FILE", "The YAML file of the sources.")]
NameArgument = Annotated[str, argument("NAME", "The source.")]

app = group(
    "connect",
    help="Feed topics from databases, files and other logs.",
    examples=["lastword connect run sources.yaml", "lastword connect status"],
)


@command(app, "run", examples=["lastword connect run sources.yaml", "lastword connect run sources.yaml -v"])
def run(
    session: Session,
    file: FileArgument,
    metrics: Annotated[
        str | None, option("--metrics", "HOST:PORT", "Serve /metrics for Prometheus at this address.")
    ] = None,
) -> None:
    """Run the sources of a file.

    Ctrl-C or SIGTERM stops each one after its current chunk. If a server or another process has the log open, the
    sources run beside it and hand it the records that they read. A source that fails is restarted after a while;
    `connect status` shows the error.
    """
    from lastword.connect import ConnectConfig, Connectors
    from lastword.serve.ending import StopRequest

    config = ConnectConfig.load(file)
    if metrics is not None:
        _answer_metrics(metrics)
    stop = StopRequest()
    with (
        stop.on_signals(),
        _destination(session, create=True) as destination,
        Connectors(destination, config),
    ):
        session.output.show(
            {"data_folder": str(destination.path), "sources": list(config.sources)},
            facts([("data folder", str(destination.path)), ("sources", ", ".join(config.sources))]),
            "",
            "Ctrl-C or SIGTERM stops it.",
        )
        # The process that started this one may be waiting for it.
        sys.stdout.flush()
        stop.wait()


@command(app, "check", examples=["lastword connect check sources.yaml"])
def check(session: Session, file: FileArgument) -> None:
    """Check a file of sources, and the databases and files that it names. Nothing is changed.

    The exit code is 1 if a source is not ready to run.
    """
    from lastword.clock import SystemClock
    from lastword.connect import ConnectConfig
    from lastword.connect.destination import NoDestination, RemoteDestination
    from lastword.connect.runner import check as check_sources

    config = ConnectConfig.load(file)
    if session.data_folder.exists():
        with session.read() as log:
            problems = check_sources(config, RemoteDestination(log, _refuse_to_create))
    else:
        problems = check_sources(config, NoDestination(session.data_folder, SystemClock()))
    session.output.show(
        problems,
        table(
            ["source", "connector", "result"],
            [
                (name, config.sources[name].connector, styled("; ".join(found), "red") if found else "ready")
                for name, found in problems.items()
            ],
        ),
    )
    if any(problems.values()):
        raise typer.Exit(1)


@command(app, "status", examples=["lastword connect status", "lastword connect status --json"])
def status(session: Session) -> None:
    """Show the state, progress and problems of all sources.

    These are the sources that have run on this data folder. The exit code is 1 if a source is failing.
    """
    from lastword.clock import SystemClock
    from lastword.operations.table import LIST_CONNECTORS

    found = session.backend.run(LIST_CONNECTORS)
    session.output.show(found, *_status_parts(found, SystemClock().now_ms()))
    if any(each["state"] == "failing" for each in found):
        raise typer.Exit(1)


@command(app, "pause", examples=["lastword connect pause users"])
def pause(session: Session, name: NameArgument) -> None:
    """Pause a source. It stays paused, even across restarts, until it is resumed."""
    from lastword.operations.table import PAUSE_CONNECTOR

    session.output.show(session.backend.run(PAUSE_CONNECTOR, name), f"{name} is paused.")


@command(app, "resume", examples=["lastword connect resume users"])
def resume(session: Session, name: NameArgument) -> None:
    """Resume a paused source."""
    from lastword.operations.table import RESUME_CONNECTOR

    session.output.show(session.backend.run(RESUME_CONNECTOR, name), f"{name} is resumed.")


@command(app, "reset", examples=["lastword connect reset users --yes"])
def reset(session: Session, name: NameArgument, yes: YesOption = False) -> None:
    """Forget the position of a source, so that it starts over.

    The source must be paused or not running. Records that it has appended stay, and it appends them again. With a
    PostgreSQL table, keys in the topic that have no row in the table then get a tombstone. A slot in PostgreSQL stays.
    """
    from lastword.connect import states
    from lastword.folder.identity import refuse_copy

    refuse_copy(session.data_folder)
    if not session.confirm(
        f"Forget the position of the source {name!r}, and read everything again?", yes=yes
    ):
        raise typer.Exit(1)
    had_one = states.reset(session.data_folder, name)
    session.output.show(
        {"source": name, "reset": had_one},
        f"{name} starts over the next time it runs." if had_one else f"{name} had no position.",
    )


@contextmanager
def _destination(session: Session, *, create: bool) -> Iterator[Destination]:
    """Open the log as its writer, or for reading beside the process that is its writer."""
    import lastword
    from lastword.connect.destination import OwnDestination, RemoteDestination
    from lastword.folder import running
    from lastword.folder.locks import writer_channel

    log = None
    # A server's broker may be restarting: its role is not free.
    if running.load(session.data_folder) is None:
        try:
            log = lastword.open(session.data_folder, config=session.config, create=create)
        except LockedError:
            if writer_channel(session.data_folder) is None:
                raise
    if log is not None:
        with log:
            yield OwnDestination(log)
        return
    with session.read() as beside:
        yield RemoteDestination(beside, lambda *given: _create_by_server(session, *given))


def _answer_metrics(address: str) -> None:
    from prometheus_client import start_http_server

    from lastword.config.values import Address
    from lastword.metrics import REGISTRY

    try:
        host, _, port = Address().parse(address).rpartition(":")
    except ValueError:
        raise InvalidError(f"--metrics is {address!r}; allowed: {Address().allowed}") from None
    try:
        start_http_server(int(port), addr=host.strip("[]"), registry=REGISTRY)
    except OSError as error:
        raise UnavailableError(f"--metrics {address}: {error.strerror or error}") from error


def _create_by_server(session: Session, name: str, partitions: int, config: Mapping[str, str]) -> object:
    from lastword.folder import running
    from lastword.operations.table import CREATE_TOPIC

    if running.load(session.data_folder) is None:
        raise InvalidError(
            f"The topic {name!r} must be created by the process that has the log open. Create it there, stop that "
            f"process, or run `lastword serve` in its place."
        )
    return session.backend.run(CREATE_TOPIC, name, partitions=partitions, config=dict(config))


def _refuse_to_create(name: str, _partitions: int, _config: Mapping[str, str]) -> object:
    raise InvalidError(f"there is no topic {name!r}")


_STYLES = {"running": "green", "failing": "red", "paused": "yellow"}


def _status_parts(found: list[dict[str, Any]], now_ms: int) -> list[Any]:
    if not found:
        return ["No source has run on this data folder yet."]
    rows = [
        (
            each["source"],
            each.get("connector"),
            each.get("topic"),
            styled(each["state"], _STYLES.get(each["state"], "dim")),
            f"{each['records']:,}",
            None if each.get("last_append_ms") is None else f"{age(now_ms - each['last_append_ms'])} ago",
            "; ".join(_remarks(each)),
        )
        for each in found
    ]
    return [table(["source", "connector", "topic", "state", ">records", ">last", "remarks"], rows)]


def _remarks(status: dict[str, Any]) -> Iterator[str]:
    details = status.get("details") or {}
    if status.get("error"):
        yield str(status["error"])
    if details.get("phase") not in (None, "snapshot", "stream"):
        yield str(details["phase"])
    for name, progress in (details.get("tables") or {}).items():
        if not progress["done"]:
            total = progress["estimated_rows"]
            share = f" of about {total:,}" if total else ""
            yield f"reading {name}: {progress['rows']:,} rows{share}"
    if details.get("warning"):
        yield str(details["warning"])
    elif details.get("slot_lag_bytes") is not None:
        yield f"slot lag {details['slot_lag_bytes'] >> 10:,} KiB"
    if details.get("last_change"):
        yield f"file was {details['last_change']}"
