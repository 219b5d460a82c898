"""The entry point, and the only place that turns errors into messages and exit codes.

Exit codes: 0 done; 1 done in part, or declined; 2 the input is wrong; 3 unavailable for now; 4 stored bytes are
damaged; 70 a bug; 128 + n ended by signal n (Ctrl-C 130, a closed pipe 141, SIGTERM 143).
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer
from typer.main import get_command

from lastword.cli import (
    backup,
    compact,
    config,
    connect,
    consume,
    describe,
    erase,
    explain,
    group,
    history,
    produce,
    relocate,
    retention,
    scene,
    serve,
    status,
    takeover,
    topic,
    verify,
    wal,
    worker,
)
from lastword.cli.options import (
    DEBUG_VARIABLE,
    ConfigOption,
    DataOption,
    JsonOption,
    Session,
    VerboseOption,
    command,
    epilog,
    show_help_without_command,
)
from lastword.errors import CorruptError, InvalidError, LastwordError, UnavailableError

FAILED = 1
INVALID = 2
UNAVAILABLE = 3
CORRUPT = 4
BUG = 70

app = typer.Typer(
    name="lastword",
    help="A topic log that keeps the last word on every key.",
    epilog=epilog(
        [
            "lastword topic create users --cleanup-policy compact",
            "echo 'alice:Oslo' | lastword produce users",
            "lastword consume users",
            "lastword topic describe users",
        ]
    ),
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(topic.app)
describe.register(topic.app)
history.register(topic.app)
explain.register(topic.app)
produce.register(app)
consume.register(app)
app.add_typer(config.app)
app.add_typer(connect.app)
app.add_typer(group.app)
app.add_typer(wal.app)
app.add_typer(retention.app)
compact.register(app, topic.app)
verify.register(app)
erase.register(app)
relocate.register(app)
takeover.register(app)
backup.register(app)
worker.register(app)
serve.register(app)
scene.register(app)
status.register(app)


class Terminated(BaseException):
    """SIGTERM was received. Not an Exception, so that no handler on the way takes it for an error."""


def main() -> NoReturn:
    """Run the command `lastword`."""
    signal.signal(signal.SIGTERM, _terminate)
    logging.captureWarnings(True)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    code = run(sys.argv[1:])
    # Everything is closed or abandoned. A regular shutdown of the interpreter would wait for abandoned threads, and
    # spend a third of the time of a short command on libraries that have nothing left to do.
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        # It is None if it was closed before the start.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def run(arguments: Sequence[str], session: Session | None = None) -> int:
    """Run one command line, and return its exit code."""
    session = session or Session()
    try:
        with get_command(app).make_context("lastword", list(arguments), obj=session) as context:
            context.command.invoke(context)
        sys.stdout.flush()
        return 0
    except typer.Exit as stop:
        try:
            sys.stdout.flush()
        except OSError as error:
            return _report(error, session)
        return stop.exit_code
    except typer.TyperException as error:
        session.output.json = session.output.json or "--json" in arguments
        return _report_usage(error, session)
    except BaseException as error:  # noqa: BLE001
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exc()
        return _report(error, session)


def _report_usage(error: typer.TyperException, session: Session) -> int:
    context = getattr(error, "ctx", None)
    hint = f" See `{context.command_path} --help`." if context is not None else ""
    message = error.format_message()
    session.output.fail("UsageError", f"{message}{'' if message.endswith(('.', '?')) else '.'}{hint}")
    return INVALID


def _report(error: BaseException, session: Session) -> int:
    match error:
        case KeyboardInterrupt():
            return 128 + signal.SIGINT
        case Terminated():
            return 128 + signal.SIGTERM
        case BrokenPipeError():
            _silence_stdout()
            return 128 + signal.SIGPIPE
        case LastwordError():
            session.output.fail(type(error).__name__, str(error))
            return _code_of(error)
        case OSError():
            # stdout itself may have failed, and would fail again when the interpreter flushes it.
            _silence_stdout()
            place = f"{error.filename}: " if error.filename else ""
            session.output.fail(type(error).__name__, f"{place}{error.strerror or error}")
            return UNAVAILABLE
        case Exception():
            session.output.fail(
                type(error).__name__,
                f"unexpected {type(error).__name__}: {error} (a bug; {DEBUG_VARIABLE}=1 shows the traceback)",
            )
            return BUG
    raise error


def _code_of(error: LastwordError) -> int:
    match error:
        case InvalidError():
            return INVALID
        case UnavailableError():
            return UNAVAILABLE
        case CorruptError():
            return CORRUPT
    return FAILED


def _terminate(_signal: int, _frame: object) -> NoReturn:
    raise Terminated


def _silence_stdout() -> None:
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _version() -> str:
    from importlib.metadata import version

    return version("lastword")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lastword {_version()}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    data: DataOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
    verbose: VerboseOption = 0,
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    session = ctx.ensure_object(Session)
    session.take({"data": data, "config": config, "json": json, "verbose": verbose})
    show_help_without_command(ctx)


@command(app, "version", examples=["lastword version"])
def version(session: Session) -> None:
    """Print the version."""
    import platform

    found = _version()
    session.output.show({"version": found, "python": platform.python_version()}, f"lastword {found}")
