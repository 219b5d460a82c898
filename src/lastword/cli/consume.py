"""`lastword consume`: print the records of a topic, or its state, even while another process writes to it."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from lastword.cli.options import Session, TopicArgument, command, option
from lastword.cli.record_lines import header_line, json_line, text_line
from lastword.errors import InvalidError
from lastword.operations.options import check_together, on_command_line

if TYPE_CHECKING:
    import pyarrow as pa

    from lastword.log.topic import Topic
    from lastword.reading.streaming import Start
    from lastword.record import Record

POLL_RECORDS = 500
FOLLOW_WAIT_S = 0.25


def register(app: typer.Typer) -> None:
    command(
        app,
        "consume",
        examples=[
            "lastword consume users",
            "lastword consume users --from latest --follow",
            "lastword consume users --partition 0 --from 1000 --max 10",
            "lastword consume users --from-time 2026-01-31T12:00:00Z --json",
            "lastword consume users --reader nightly-export",
            "lastword consume users --state",
            "lastword consume users --state --as-of 2026-01-31T12:00:00Z",
        ],
    )(consume)


def consume(
    session: Session,
    name: TopicArgument,
    start: Annotated[
        str | None,
        option(
            "--from", "WHERE", "earliest, latest or an offset [earliest; for a named reader, its position]."
        ),
    ] = None,
    from_time: Annotated[
        str | None,
        option(
            "--from-time",
            "TIME",
            "Start at the first record not older than this: ISO 8601 (UTC if without zone) or milliseconds.",
        ),
    ] = None,
    partition: Annotated[int | None, option("--partition", "P", "Only this partition [all].")] = None,
    max_records: Annotated[int | None, option("--max", "N", "Stop after this many records.", min=1)] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing records as they are appended.")
    ] = False,
    reader: Annotated[
        str | None,
        option("--reader", "NAME", "A named reader: resume at its saved position, and save the new one."),
    ] = None,
    state: Annotated[
        bool, typer.Option("--state", help="Print the newest record of each key, without deleted keys.")
    ] = False,
    as_of: Annotated[
        str | None,
        option(
            "--as-of",
            "POINT",
            "Print the records, or with --state the state, as of an offset, a time (ISO 8601) "
            "or snapshot:ID.",
        ),
    ] = None,
    compacted: Annotated[
        bool,
        typer.Option(
            "--compacted", help="Read compacted records from the compaction service, the rest as usual."
        ),
    ] = False,
) -> None:
    """Print the records of a topic, or its state.

    Each line has partition, offset, time, key and value. There is no order between partitions. With --json each line
    is an object that `produce --jsonl` accepts.
    """
    from lastword.operations.records import point_of, start_of

    if reader is not None and partition is not None:
        raise InvalidError("A named reader reads every partition; --partition can't be used with --reader.")
    check_together(
        {
            "from": start,
            "from_time": from_time,
            "partition": partition,
            "max": max_records,
            "follow": follow,
            "reader": reader,
            "state": state,
            "as_of": as_of,
            "compacted": compacted,
        },
        on_command_line,
    )
    if compacted and (follow or reader):
        raise InvalidError(
            "--compacted reads what has been compacted; --follow and --reader can't be used with it."
        )
    with session.read() as log:
        topic = log.topic(name)
        printer = _Printer(json=session.output.json, partitions=topic.partitions)
        point = None if as_of is None else point_of(topic, as_of, partition, on_command_line)
        if state:
            view = topic.state(as_of=point)
            _print_batches(view.to_batches(max_chunksize=POLL_RECORDS), printer, max_records)
            return
        if point is not None:
            _print_batches(topic.read_as_of(point, partition=partition), printer, max_records)
            return
        begin = start_of(topic, start, from_time, partition, on_command_line)
        if compacted:
            batches = topic.read_arrow(begin, partition=partition, compacted=True)
            _print_batches(batches, printer, max_records)
            return
        _print_records(
            topic,
            printer,
            begin,
            partition=partition,
            reader_name=reader,
            max_records=max_records,
            follow=follow,
        )


def _print_records(
    topic: Topic,
    printer: _Printer,
    start: Start | Mapping[int, Start],
    *,
    partition: int | None,
    reader_name: str | None,
    max_records: int | None,
    follow: bool,
) -> None:
    left = max_records
    with topic.reader(reader_name, start=start, partition=partition) as reader:
        ends = {each: extent.log_end for each, extent in topic.extents().items()}
        while left is None or left > 0:
            if not follow and all(offset >= ends[each] for each, offset in reader.positions.items()):
                return
            records = reader.poll(
                max_records=POLL_RECORDS if left is None else min(POLL_RECORDS, left),
                timeout_s=FOLLOW_WAIT_S if follow else 0,
            )
            if not records:
                if not follow:
                    return
                _check_pipe()
                continue
            printer.print(records)
            if reader_name is not None:
                # Only once printed: a reader that stops here sees these records again, and loses none.
                reader.commit()
            if left is not None:
                left -= len(records)


def _print_batches(batches: Iterable[pa.RecordBatch], printer: _Printer, max_records: int | None) -> None:
    from lastword.segments.rows import to_records

    left = max_records
    for batch in batches:
        printer.print(to_records(batch.slice(0, left)))
        if left is not None:
            left = max(0, left - batch.num_rows)
            if left == 0:
                return


def _check_pipe() -> None:
    """Raise BrokenPipeError if the reader of our output is gone: without records to write we would never notice."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
    except (OSError, ValueError):
        return
    if any(event & select.POLLERR for _, event in poll.poll(0)):
        raise BrokenPipeError


class _Printer:
    """Prints records, one per line, and flushes after each run of them."""

    def __init__(self, *, json: bool, partitions: int) -> None:
        self._json = json
        self._partitions = partitions
        is_terminal = sys.stdout.isatty()
        self._mark: Callable[[str], str] = _dim if is_terminal and "NO_COLOR" not in os.environ else str
        self._header_due = is_terminal and not json

    def print(self, records: Iterable[Record]) -> None:
        if self._header_due:
            sys.stdout.write(f"{self._mark(header_line(self._partitions))}\n")
            self._header_due = False
        lines = (
            json_line(each) if self._json else text_line(each, self._partitions, self._mark)
            for each in records
        )
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()


def _dim(text: str) -> str:
    return f"\x1b[2m{text}\x1b[0m"
