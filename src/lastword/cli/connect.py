"""`lastword connect`: run sources that feed topics, check their file, see how they are, pause them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli.options import Session, YesOption, command, group
from lastword.cli.output import age, facts, styled, table
from lastword.errors import InvalidError, LockedError, UnavailableError

if TYPE_CHECKING:
    from lastword.connect.target import Target

FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="The sources, as YAML.", show_default=False)
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The source.", show_default=False)]

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
        str | None,
        typer.Option(
            "--metrics",
            metavar="HOST:PORT",
            help="Answer /metrics there, for Prometheus.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run the sources of a file until Ctrl-C or SIGTERM, which end each one after the chunk that it is at.

    Where a server or another process has the log open, the sources run beside it and hand it what they read. A source
    that fails is started again after a while; `connect status` shows why.
    """
    from lastword.connect import ConnectConfig, Connectors
    from lastword.serve.ending import StopRequest

    config = ConnectConfig.load(file)
    if metrics is not None:
        _answer_metrics(metrics)
    stop = StopRequest()
    with stop.on_signals(), _target(session, create=True) as target, Connectors(target, config):
        session.output.show(
            {"data_folder": str(target.path), "sources": list(config.sources)},
            facts([("data folder", str(target.path)), ("sources", ", ".join(config.sources))]),
            "",
            "Ctrl-C or SIGTERM ends it.",
        )
        # Whoever started it may be waiting for this.
        sys.stdout.flush()
        stop.wait()


@command(app, "check", examples=["lastword connect check sources.yaml"])
def check(session: Session, file: FileArgument) -> None:
    """Check a file, and ask the databases and files that it names whether everything is there. Nothing is changed.

    The exit code is 1 if something is in the way.
    """
    from lastword.clock import SystemClock
    from lastword.connect import ConnectConfig
    from lastword.connect.runner import check as check_sources
    from lastword.connect.target import BesideTarget, NoTarget

    config = ConnectConfig.load(file)
    if session.data_folder.exists():
        with session.read() as log:
            problems = check_sources(config, BesideTarget(log, _refuse_to_create))
    else:
        problems = check_sources(config, NoTarget(session.data_folder, SystemClock()))
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
    """Show every source that was run on this data folder: how it is, how far it is, and what is wrong.

    The exit code is 1 if a source is failing.
    """
    from lastword.clock import SystemClock

    found = session.backend.connectors()
    session.output.show(found, *_status_parts(found, SystemClock().now_ms()))
    if any(each["state"] == "failing" for each in found):
        raise typer.Exit(1)


@command(app, "pause", examples=["lastword connect pause users"])
def pause(session: Session, name: NameArgument) -> None:
    """Pause a source. It stays paused, also when it is started again, until it is resumed."""
    session.output.show(session.backend.pause_connector(name), f"{name} is paused.")


@command(app, "resume", examples=["lastword connect resume users"])
def resume(session: Session, name: NameArgument) -> None:
    """Let a paused source go on."""
    session.output.show(session.backend.resume_connector(name), f"{name} goes on.")


@command(app, "reset", examples=["lastword connect reset users --yes"])
def reset(session: Session, name: NameArgument, yes: YesOption = False) -> None:
    """Forget the position of a source that is paused or not running, so that it begins again from the start.

    What it has appended stays; it appends it again. Of a PostgreSQL table, keys in the topic without a row in the table
    get a tombstone then. A slot in PostgreSQL stays.
    """
    from lastword.connect import states
    from lastword.folder.identity import refuse_copy

    refuse_copy(session.data_folder)
    if not session.confirm(
        f"Forget how far the source {name!r} has come, and read everything again?", yes=yes
    ):
        raise typer.Exit(1)
    had_one = states.reset(session.data_folder, name)
    session.output.show(
        {"source": name, "reset": had_one},
        f"{name} begins again at its next start." if had_one else f"{name} had no position.",
    )


@contextmanager
def _target(session: Session, *, create: bool) -> Iterator[Target]:
    """The log, opened here as its writer; where another process is that, read beside it."""
    import lastword
    from lastword.connect.target import BesideTarget, LogTarget
    from lastword.folder import running
    from lastword.folder.locks import writer_channel

    log = None
    # A server's broker may be just being started again: its role is not free.
    if running.load(session.data_folder) is None:
        try:
            log = lastword.open(session.data_folder, config=session.config, create=create)
        except LockedError:
            if writer_channel(session.data_folder) is None:
                raise
    if log is not None:
        with log:
            yield LogTarget(log)
        return
    with session.read() as beside:
        yield BesideTarget(beside, lambda *given: _create_by_server(session, *given))


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
            f"The topic {name!r} must be created by the process that has the log open; do that, or stop it, or let a "
            f"`lastword serve` hold the log."
        )
    return session.backend.run(CREATE_TOPIC, name, partitions=partitions, config=dict(config))


def _refuse_to_create(name: str, _partitions: int, _config: Mapping[str, str]) -> object:
    raise InvalidError(f"there is no topic {name!r}")


_STYLES = {"running": "green", "failing": "red", "paused": "yellow"}


def _status_parts(found: list[dict[str, Any]], now_ms: int) -> list[Any]:
    if not found:
        return ["No source was run on this data folder yet."]
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
