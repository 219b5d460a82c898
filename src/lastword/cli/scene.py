"""`lastword scene`: a temporary server with a topic `users`, and the page that shows a compaction step by step."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli.options import Session, command
from lastword.cli.output import facts
from lastword.cli.serve import address_of
from lastword.folder.paths import CONFIG_FILE

if TYPE_CHECKING:
    from lastword.serve.child import ServeOptions
    from lastword.serve.supervisor import Started

TOPIC = "users"

# It compacts in the worker's own process: no one should wait for Java to look at seven records.
_SETTINGS = """\
compaction.service.factory: lastword.compaction.inline:InlineCompactionServiceFactory
seal.interval.ms: 3600000
worker.interval.ms: 3600000
worker.initial.delay.ms: 3600000
group.initial.rebalance.delay.ms: 0
"""
_RECORDS = (
    ("alice", "Oslo"),
    ("bob", "Rome"),
    ("carol", "Lima"),
    ("alice", "Bergen"),
    ("bob", "Milan"),
    ("carol", None),
    ("alice", "Paris"),
)


def register(app: typer.Typer) -> None:
    command(app, "scene", examples=["lastword scene", "lastword scene --no-open --admin 127.0.0.1:9700"])(
        scene
    )


def scene(
    session: Session,
    admin: Annotated[
        str,
        typer.Option("--admin", metavar="HOST:PORT", help="Address of the page. Port 0 is any free port."),
    ] = "127.0.0.1:0",
    kafka: Annotated[
        str,
        typer.Option(
            "--kafka", metavar="HOST:PORT", help="Address for Kafka clients. Port 0 is any free port."
        ),
    ] = "127.0.0.1:0",
    browse: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
) -> None:
    """Watch a compaction, step by step, on a temporary server.

    Its data folder is temporary, too, and --data is ignored. Ctrl-C stops the server and deletes everything.
    """
    import asyncio

    from lastword.clock import SystemClock
    from lastword.serve.child import set_up_logging
    from lastword.serve.supervisor import Supervisor

    with tempfile.TemporaryDirectory(prefix="lastword-scene-") as folder:
        data = Path(folder)
        (data / CONFIG_FILE).write_text(_SETTINGS)
        options = _options(data, kafka, admin, session.verbose)
        _make_topic(data)
        set_up_logging("server", session.verbose)

        def ready(started: Started) -> None:
            _show_ready(session, started, browse=browse)

        code = asyncio.run(Supervisor(options, SystemClock(), ready=ready).run())
    if code:
        raise typer.Exit(code)


def _options(data: Path, kafka: str, admin: str, verbose: int) -> ServeOptions:
    from lastword.config.values import split_address
    from lastword.serve.child import ServeOptions

    kafka_host, kafka_port = split_address(address_of("--kafka", kafka) or kafka)
    admin_host, admin_port = split_address(address_of("--admin", admin) or admin)
    return ServeOptions(
        data=str(data),
        config=None,
        kafka_host=kafka_host,
        kafka_port=kafka_port,
        advertised_host=None,
        advertised_port=None,
        admin_host=admin_host,
        admin_port=admin_port,
        token_file=None,
        channel="",
        verbose=verbose,
    )


def _make_topic(data: Path) -> None:
    import lastword.log
    from lastword.record import NewRecord

    with lastword.log.open(data) as log:
        topic = log.create_topic(TOPIC, config={"cleanup.policy": "compact"})
        topic.append_many(
            NewRecord(key=key.encode(), value=None if value is None else value.encode())
            for key, value in _RECORDS
        )


def _show_ready(session: Session, started: Started, *, browse: bool) -> None:
    server = started.server
    url = f"{server.admin_url}/scene"
    session.output.show(
        {"ready": True, "scene": url, "kafka": server.kafka, "admin": server.admin, "topic": TOPIC},
        facts(
            [
                ("scene", url),
                ("its topic", f"{server.admin_url}/scene?topic={TOPIC}"),
                ("Kafka", server.kafka),
            ]
        ),
        "Ctrl-C stops the server and deletes everything in it.",
    )
    sys.stdout.flush()
    if browse:
        _browse(url)


def _browse(url: str) -> None:
    """Open a page, if there is a browser. Nothing waits for it, or for its output."""
    import threading
    import webbrowser

    threading.Thread(target=lambda: webbrowser.open(url), name="lastword-browse", daemon=True).start()
