"""The only place that prints: tables for people, JSON for programs.

A command builds its result once, as data, and defines how people see it. Results go to stdout; warnings, errors,
questions and progress go to stderr.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TextIO

from lastword.operations.text import age as age

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

Unit = Literal["bytes", "records", "segments", "time"]
"""The unit of a progress bar. `records` shows records and bytes; `time` shows a spinner and the elapsed time."""

UNBOUNDED_WIDTH = 4000
"""The width of output that is not a terminal: a table that is cut to 80 columns is of no use in a file."""


@dataclass(slots=True)
class Output:
    """Prints results, as JSON if requested."""

    json: bool = False
    _stop_bar: Callable[[], None] | None = None

    def show(self, data: object, *parts: RenderableType) -> None:
        """Print a result: `data` as one JSON document, or the parts one below the other."""
        if self.json:
            sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
            return
        from rich.text import Text

        console = make_console(sys.stdout)
        for part in parts:
            with console.capture() as captured:
                console.print(part, soft_wrap=isinstance(part, str | Text))
            sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))

    def warn(self, message: str) -> None:
        sys.stderr.write(f"warning: {message}\n")

    def fail(self, kind: str, message: str) -> None:
        """Print an error on one line."""
        if self.json:
            sys.stderr.write(
                json.dumps({"error": {"type": kind, "message": message}}, ensure_ascii=False) + "\n"
            )
        else:
            sys.stderr.write(f"error: {' '.join(message.split())}\n")

    @contextmanager
    def progress(self, title: str, *, unit: Unit = "bytes") -> Iterator[ProgressBar]:
        """Show a progress bar on stderr, if that is a terminal and JSON was not requested."""
        if self.json or not sys.stderr.isatty():
            yield ProgressBar()
            return
        # Through its own descriptor: while Spark starts, stderr is redirected to Spark's log.
        with os.fdopen(os.dup(sys.stderr.fileno()), "w") as terminal, _bar(title, unit, terminal) as bar:
            self._stop_bar = bar.stop
            yield bar
        self._stop_bar = None

    @contextmanager
    def stages(self, titles: dict[str, tuple[str, Unit]]) -> Iterator[Callable[..., None]]:
        """Show one bar per stage, one after the other: call it with the name of a stage and its numbers."""
        with ExitStack() as shown:
            current: list[tuple[str, ProgressBar]] = []

            def report(stage: str, *numbers: Any) -> None:
                if not current or current[0][0] != stage:
                    shown.close()
                    title, unit = titles[stage]
                    current[:] = [(stage, shown.enter_context(self.progress(title, unit=unit)))]
                bar = current[0][1]
                if titles[stage][1] == "records":
                    bar.update_records(*numbers)
                else:
                    bar.update(*numbers)

            yield report

    def stop_progress(self) -> None:
        """Remove the bar of another thread from the terminal."""
        if self._stop_bar is not None:
            self._stop_bar()


@contextmanager
def _bar(title: str, unit: Unit, terminal: TextIO) -> Iterator[ProgressBar]:
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bar

    bar_of: dict[str, tuple[Any, ...]] = {
        "bytes": (BarColumn(), TaskProgressColumn(), DownloadColumn(), TransferSpeedColumn()),
        "records": (
            BarColumn(16),
            TaskProgressColumn(),
            TextColumn("{task.fields[records]}"),
            DownloadColumn(),
        ),
        "segments": (BarColumn(), TaskProgressColumn(), MofNCompleteColumn()),
        "time": (SpinnerColumn(),),
    }
    columns = (TextColumn("{task.description}"), *bar_of[unit], TimeElapsedColumn())
    with Bar(*columns, console=make_console(terminal), transient=True) as bar:
        yield _BarProgress(bar, bar.add_task(title, total=None, records=""))


class ProgressBar:
    """Reports the progress of a job. The base class shows nothing."""

    def update(self, done: int, total: int | None) -> None: ...

    def update_records(self, records: int, all_records: int, done: int, total: int) -> None:
        """Update a bar of `records`: records and bytes, done and in total."""

    def stop(self) -> None: ...


class _BarProgress(ProgressBar):
    def __init__(self, bar: Any, task: Any) -> None:
        self._bar = bar
        self._task = task

    def update(self, done: int, total: int | None) -> None:
        self._bar.update(self._task, completed=done, total=total)

    def update_records(self, records: int, all_records: int, done: int, total: int) -> None:
        shown = f"{records:,}/{all_records:,} records"
        self._bar.update(self._task, completed=done, total=total, records=shown)

    def stop(self) -> None:
        self._bar.stop()


def make_console(stream: TextIO) -> Console:
    from rich.console import Console

    width = None if stream.isatty() else UNBOUNDED_WIDTH
    # No markup: a record or a path may contain square brackets.
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, total: Sequence[Any] | None = None
) -> Table:
    """Make a table without lines. A column whose name begins with '>' is right-aligned, as for numbers."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_edge=False)
    for column in columns:
        made.add_column(
            column.removeprefix(">"),
            justify="right" if column.startswith(">") else "left",
            overflow="fold",
            vertical="top",
        )
    for row in rows:
        made.add_row(*map(cell, row))
    if total is not None:
        made.add_row(*map(cell, total), style="bold")
    return made


def facts(pairs: Sequence[tuple[str, str | Text]]) -> Text:
    """Make a list of names and values. Not wrapped, so that a path can be copied from a narrow terminal."""
    from rich.text import Text

    width = max(len(name) for name, _ in pairs)
    lines = [Text.assemble((name.ljust(width + 2), "bold"), value) for name, value in pairs]
    return Text("\n").join(lines)


def heading(title: str) -> Text:
    from rich.text import Text

    return Text(f"\n{title}", style="bold underline")


def styled(text: str, style: str) -> Text:
    from rich.text import Text

    return Text(text, style=style)


def cell(value: Any) -> Any:
    if value is None:
        return styled("-", "dim")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value


def size(size_bytes: int | None) -> str | None:
    """Format a number of bytes for people."""
    if size_bytes is None:
        return None
    amount = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 999.95 or unit == "TB":
            return f"{size_bytes} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    raise AssertionError


def offsets(first: int, end: int) -> str:
    """Format a range of offsets with both ends included, as people count."""
    if end <= first:
        return "none"
    return str(first) if end == first + 1 else f"{first} to {end - 1}"


def count(number: int, noun: str) -> str:
    """Format a number with its noun: 1 record, 2 records."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
