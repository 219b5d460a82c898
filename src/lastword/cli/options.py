"""The parts that all commands share: options, the session that they make, and the declaration of commands.

Each command takes `--data`, `--config`, `--json` and `-v`, also before the command or between a group and its
command. The last one wins.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from lastword.cli.output import Output
from lastword.errors import InvalidError
from lastword.folder.locks import name_command
from lastword.folder.paths import CONFIG_FILE

if TYPE_CHECKING:
    from lastword.cli.backend import Backend
    from lastword.log import Log

T = TypeVar("T")

DATA_VARIABLE = "LASTWORD_DATA"
DEBUG_VARIABLE = "LASTWORD_DEBUG"
DEFAULT_DATA = "lastword-data"


def option(name: str, metavar: str, help: str, **own: Any) -> Any:  # noqa: A002
    """Declare an option with a value. Its help describes the default."""
    return typer.Option(name, metavar=metavar, help=help, show_default=False, **own)


def argument(metavar: str, help: str, **own: Any) -> Any:  # noqa: A002
    return typer.Argument(metavar=metavar, help=help, show_default=False, **own)


DataOption = Annotated[
    Path | None, option("--data", "DIR", f"Data folder [${DATA_VARIABLE}, else ./{DEFAULT_DATA}].")
]
ConfigOption = Annotated[
    Path | None,
    option("--config", "FILE", f"Settings file [{CONFIG_FILE} in the data folder, if there is one]."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
VerboseOption = Annotated[
    int,
    typer.Option(
        "-v", "--verbose", count=True, help="Log each action to stderr; -vv logs more.", show_default=False
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask for confirmation.")]
TopicArgument = Annotated[str, argument("NAME", "The topic.")]

_SHARED: dict[str, tuple[Any, object]] = {
    "data": (DataOption, None),
    "config": (ConfigOption, None),
    "json": (JsonOption, False),
    "verbose": (VerboseOption, 0),
}

_SPARKS_OWN = ("py4j", "pyspark")
"""Spark's loggers. They log interruptions, and errors that we report anyway."""

Body = Callable[..., None]


@dataclass(slots=True)
class Session:
    """One run of the command line: the values of the shared options, and the output."""

    data: Path | None = None
    config: Path | None = None
    output: Output = field(default_factory=Output)
    verbose: int = 0

    @property
    def data_folder(self) -> Path:
        return self.data or Path(os.environ.get(DATA_VARIABLE) or DEFAULT_DATA)

    @property
    def backend(self) -> Backend:
        """The backend of the commands: the server that holds the data folder, else this process."""
        from lastword.cli.direct import Direct
        from lastword.cli.remote import Remote
        from lastword.folder import running
        from lastword.folder.identity import refuse_copy

        refuse_copy(self.data_folder)
        server = running.load(self.data_folder)
        if server is None:
            return Direct(self)
        if self.config is not None:
            self.output.warn(
                f"a server holds {self.data_folder} (process {server.pid}): its settings apply, not {self.config}"
            )
        return Remote(server)

    def read(self) -> Log:
        """Open the log for reading. Nothing is locked, and another process may be writing to it."""
        return self._open(read_only=True, create=False)

    def write(self, *, create: bool = False) -> Log:
        """Open the log as its writer."""
        return self._open(create=create)

    @contextmanager
    def maintain(self) -> Iterator[Log]:
        """Open the log to seal, compact and so on, with the maintenance role.

        This process does not become the writer, because an application may already be, or become, the writer. The writer
        is asked to roll its files. If there is none, this process becomes the writer for a moment.
        """
        from lastword.operations.maintaining import wait_for_maintenance

        with (
            self._open(maintain_only=True, create=False) as log,
            wait_for_maintenance(log),
        ):
            yield log

    def _open(self, *, create: bool, read_only: bool = False, maintain_only: bool = False) -> Log:
        from lastword.loading import load_arrow_without_pandas

        load_arrow_without_pandas()
        import lastword

        return lastword.open(
            self.data_folder,
            config=self.config,
            create=create,
            read_only=read_only,
            maintain_only=maintain_only,
        )

    def in_background(self, work: Callable[[], T]) -> T:
        """Do work that may use Spark in its own thread, including the opening of the log, and wait for it.

        Spark takes over Ctrl-C if the main thread starts it, and a signal that interrupts a call to Spark only causes
        noise. So the main thread only waits. If a signal ends the wait, the thread is abandoned and the process exits
        in the middle of its work, which is as safe as any kill.
        """
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(work())
            except BaseException as error:  # noqa: BLE001
                result.set_exception(error)

        threading.Thread(target=run, name="lastword-command", daemon=True).start()
        try:
            wait([result])
        except BaseException:
            self.output.stop_progress()
            raise
        return result.result()

    def confirm(self, question: str, *, yes: bool) -> bool:
        """Return whether to do something irreversible. Ask on the terminal; without one, `--yes` is required."""
        if yes:
            return True
        if not sys.stdin.isatty():
            raise InvalidError(f"{question} There is no terminal to ask on; confirm with --yes.")
        sys.stderr.write(f"{question} [y/N] ")
        sys.stderr.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def take(self, given: dict[str, Any]) -> None:
        """Take the shared options of one level of the command. They override those of earlier levels."""
        self.data = given.get("data") or self.data
        self.config = given.get("config") or self.config
        self.output.json = given.get("json", False) or self.output.json
        self.verbose += given.get("verbose", 0)


def command(
    app: typer.Typer, name: str, *, examples: Sequence[str], shown: Sequence[str] = ()
) -> Callable[[Body], Body]:
    """Declare a command. Its body gets the session first, then its own arguments and options.

    The loggers in `shown` are silenced, because the command's result has everything that they log.
    """

    def declare(body: Body) -> Body:
        def call(session: Session, ctx: typer.Context, own: dict[str, Any]) -> None:
            name_command(ctx.command_path)
            set_up_logging(session.verbose, shown)
            body(session, **own)

        app.command(name, epilog=epilog(examples))(_with_shared_options(body, call))
        return body

    return declare


def group(name: str | None, *, help: str, examples: Sequence[str]) -> typer.Typer:  # noqa: A002
    """Declare a group of commands. Without a command it prints its help."""

    def body(session: Session) -> None: ...

    def call(_session: Session, ctx: typer.Context, _own: dict[str, Any]) -> None:
        show_help_without_command(ctx)

    return typer.Typer(
        name=name,
        help=help,
        epilog=epilog(examples),
        callback=_with_shared_options(body, call),
        invoke_without_command=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )


def show_help_without_command(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit


def _with_shared_options(body: Body, call: Callable[[Session, typer.Context, dict[str, Any]], None]) -> Body:
    """Make a function with the signature that typer reads: the body's own parameters and the shared ones."""
    own = list(inspect.signature(body, eval_str=True).parameters.values())[1:]
    # `topic create --config key=value` has a --config of its own.
    shared = {name: each for name, each in _SHARED.items() if name not in {param.name for param in own}}

    @functools.wraps(body)
    def called(ctx: typer.Context, **given: Any) -> None:
        session = ctx.ensure_object(Session)
        session.take({name: given.pop(name) for name in shared})
        call(session, ctx, given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
        *(param.replace(kind=keyword) for param in own),
        *(
            inspect.Parameter(name, keyword, annotation=annotation, default=default)
            for name, (annotation, default) in shared.items()
        ),
    ]
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {param.name: param.annotation for param in parameters}
    del called.__wrapped__
    return called


def epilog(examples: Sequence[str]) -> str:
    """Return the end of a help page."""
    # click does not rewrap lines after \b.
    return "\b\nExamples:\n" + "\n".join(f"  {example}" for example in examples)


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {super().format(record)}"


def set_up_logging(verbose: int, shown: Sequence[str]) -> None:
    """Log Lastword's warnings to stderr; with -v its actions, with -vv its steps and the warnings of libraries."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter())
    logging.basicConfig(
        handlers=[handler], level=logging.WARNING if verbose > 1 else logging.ERROR, force=True
    )
    logging.getLogger("lastword").setLevel((logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)])
    if verbose < 2:
        for name in _SPARKS_OWN:
            logging.getLogger(name).setLevel(logging.CRITICAL)
    for name in shown:
        logging.getLogger(name).setLevel(logging.NOTSET if verbose else logging.CRITICAL)
