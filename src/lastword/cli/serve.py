"""`lastword serve`: the server, in the foreground of a terminal or a service."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli.options import Session, command, option
from lastword.cli.output import facts
from lastword.errors import InvalidConfigError, InvalidError
from lastword.folder.paths import CONFIG_FILE

if TYPE_CHECKING:
    from lastword.serve.child import ServeOptions
    from lastword.serve.supervisor import Started


def register(app: typer.Typer) -> None:
    command(
        app,
        "serve",
        examples=[
            "lastword serve",
            "lastword serve --data /var/lib/lastword --config /etc/lastword/lastword.yaml",
            "lastword serve --kafka 0.0.0.0:9092",
            "lastword serve --connect sources.yaml",
            "lastword serve --kafka 127.0.0.1:0 --admin 127.0.0.1:0 --json",
        ],
    )(serve)


def serve(
    session: Session,
    kafka: Annotated[
        str | None,
        option(
            "--kafka",
            "HOST:PORT",
            "Address for Kafka clients [kafka.listen, 127.0.0.1:9092]. Port 0 is any free port.",
        ),
    ] = None,
    admin: Annotated[
        str | None,
        option(
            "--admin",
            "HOST:PORT",
            "Address of the admin API [admin.listen, 127.0.0.1:9644]. Port 0 is any free port.",
        ),
    ] = None,
    connect: Annotated[
        Path | None, option("--connect", "SOURCES", "Also run the sources of this file [connect.file].")
    ] = None,
) -> None:
    """Serve Kafka clients and the admin API, and run the worker.

    It runs two processes, the broker and the worker, and restarts one that ends by itself. Ctrl-C or SIGTERM stops
    them cleanly with exit code 0; a second one stops them at once. Actions are logged to stderr; -v logs more.
    """
    import asyncio

    from lastword.clock import SystemClock
    from lastword.serve.child import set_up_logging
    from lastword.serve.supervisor import Supervisor

    options = _options(session, kafka, admin, connect)
    set_up_logging("server", session.verbose)

    def ready(started: Started) -> None:
        _show_ready(session, options, started)

    if not session.output.json:
        session.output.show(
            None,
            facts(
                [
                    ("data folder", options.data),
                    (
                        "settings",
                        str(options.config or _own_settings(session) or "none (all defaults)"),
                    ),
                ]
            ),
        )
        sys.stdout.flush()
    supervisor = Supervisor(options, SystemClock(), ready=ready)
    code = asyncio.run(supervisor.run())
    if not session.output.json:
        session.output.show(None, "Stopped.")
    if code:
        raise typer.Exit(code)


def _options(session: Session, kafka: str | None, admin: str | None, connect: Path | None) -> ServeOptions:
    from lastword.config import BrokerConfig
    from lastword.config.values import split_address
    from lastword.folder.identity import refuse_copy
    from lastword.serve.child import ServeOptions

    refuse_copy(session.data_folder)
    # Report errors in the settings before anything is started.
    if session.config is not None and not session.config.exists():
        raise InvalidConfigError(f"There is no settings file {session.config}.")
    config = BrokerConfig.load(session.config or _own_settings(session))
    kafka_host, kafka_port = split_address(address_of("--kafka", kafka) or config.kafka_listen)
    admin_host, admin_port = split_address(address_of("--admin", admin) or config.admin_listen)
    sources = connect or (None if config.connect_file is None else Path(config.connect_file))
    advertised = None if config.kafka_advertised is None else split_address(config.kafka_advertised)
    return ServeOptions(
        data=str(session.data_folder.absolute()),
        config=None if session.config is None else str(session.config.absolute()),
        kafka_host=kafka_host,
        kafka_port=kafka_port,
        advertised_host=None if advertised is None else advertised[0],
        advertised_port=None if advertised is None else advertised[1],
        admin_host=admin_host,
        admin_port=admin_port,
        token_file=config.admin_token_file,
        channel="",
        connect_file=None if sources is None else str(sources.absolute()),
        verbose=session.verbose,
    )


def _own_settings(session: Session) -> Path | None:
    own = session.data_folder.absolute() / CONFIG_FILE
    return own if session.config is None and own.exists() else None


def address_of(option: str, given: str | None) -> str | None:
    from lastword.config.values import Address

    if given is None:
        return None
    try:
        return Address().parse(given)
    except ValueError:
        allowed = Address().allowed.replace("`", "")
        raise InvalidError(f"{option} is {given!r}; allowed: {allowed}") from None


def _show_ready(session: Session, options: ServeOptions, started: Started) -> None:
    server = started.server
    session.output.show(
        {
            "ready": True,
            "data_folder": options.data,
            "kafka": server.kafka,
            "admin": server.admin,
            "pid": server.pid,
            "processes": started.pids,
        },
        facts(
            [
                ("Kafka", server.kafka),
                ("dashboard", server.admin_url),
                ("admin API", f"{server.admin_url} (reference: {server.admin_url}/docs)"),
                (
                    "processes",
                    f"{os.getpid()} supervisor, "
                    + ", ".join(f"{pid} {name}" for name, pid in started.pids.items()),
                ),
            ]
        ),
        "Ready. Ctrl-C or SIGTERM stops it.",
    )
    # The process that started this one may be waiting for it.
    sys.stdout.flush()
