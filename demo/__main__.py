"""Run the demo in a temporary folder, which is removed at the end. `python -m demo --records N --keep`."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import lastword
from demo.changelog import changelog
from lastword.log.topic import Topic

console = Console(highlight=False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="number of changes to write")
    parser.add_argument("--keep", action="store_true", help="keep the data folder")
    args = parser.parse_args()
    started = time.monotonic()
    path = Path(tempfile.mkdtemp(prefix="lastword-demo-"))
    try:
        held = run(path / "data", args.records)
    finally:
        if args.keep:
            console.print(
                f"\nThe data is in {path / 'data'}. Try [b]lastword topic describe users --data {path / 'data'}[/b]"
            )
        else:
            shutil.rmtree(path, ignore_errors=True)
    console.print(f"\nDone in {time.monotonic() - started:.0f} s.")
    return 0 if held else 1


def run(path: Path, records: int) -> bool:
    with lastword.open(path) as log:
        say(
            "1",
            "Create a topic that keeps the last word on every key",
            "lastword topic create users --partitions 4 --cleanup-policy compact",
        )
        users = log.create_topic("users", partitions=4, config={"cleanup.policy": "compact"})

        say(
            "2",
            f"Write {records:,} changes: inserts, updates, deletes. Each is on disk before it is acknowledged",
            "lastword produce users --file changes.jsonl --jsonl",
        )
        write(users, records)

        say(
            "3",
            "Seal: the write-ahead log becomes Parquet files of an Iceberg table, without the records that newer ones replace",
            "lastword topic seal users",
        )
        with progress("sealing", "bytes") as show:
            sealed = users.seal(progress=lambda done, total: show(done, total))
        show_partitions(users)
        console.print(
            f"  {sealed.records + sealed.beaten:,} records of the log became {sealed.records:,} in the table "
            f"({mebibytes(sealed.wal_bytes)} became {mebibytes(sealed.size_bytes)})."
        )

        say(
            "4",
            f"Write {records // 100:,} more changes, and compact on Spark: only the newest record of each key stays",
            "lastword topic compact users",
        )
        write(users, records // 100, seed=8)
        with progress("compacting", "records") as show:
            report = log.compact(
                ["users"], seal=True, asked_for=True, progress=lambda done, total, *_: show(done, total)
            )
        show_report(report)
        show_partitions(users)
        console.print("  Offsets and the log end did not change.")

        say(
            "5",
            "Read the state: a table with the newest record of each live key",
            "lastword consume users --state",
        )
        state = users.state()
        hottest = state.sort_by([("offset", "descending")]).slice(0, 3)
        for row in hottest.to_pylist():
            console.print(f"  {row['key'].decode()}  offset {row['offset']:>9,}  {row['value'].decode()}")
        console.print(f"  … {state.num_rows:,} live keys.")

        say(
            "6",
            "Prove it: compare every record of the log with what is left, on Spark",
            "lastword verify users",
        )
        proof = log.verify("users")
        for rule, count in sorted(proof.gone.items()):
            console.print(f"  {count:>9,} records gone: {rule}")
        console.print(
            f"  {proof.records_before:,} records and {proof.keys:,} keys compared, {proof.problem_count} problems."
        )
        console.print(
            "  [green]Nothing was lost.[/green]" if proof.holds else "  [red]Records were lost![/red]"
        )
        return proof.holds


def write(users: Topic, records: int, seed: int = 7) -> None:
    written = 0
    with progress("writing", "records") as show:
        for table in changelog(records, seed):
            users.append_arrow(table)
            written += table.num_rows
            show(written, records)


def say(step: str, what: str, command: str) -> None:
    console.print(f"\n[b]{step}. {what}[/b]")
    console.print(f"   [dim]$ {command}[/dim]")


def show_partitions(topic: Topic) -> None:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2))
    for name in ("partition", "log end", "segments", "records", "bytes", "dirty ratio", "due"):
        table.add_column(name, justify="left" if name == "due" else "right")
    partitions = topic.describe().partitions
    for each in partitions:
        table.add_row(
            str(each.partition),
            f"{each.log_end:,}",
            str(each.segments),
            f"{each.sealed_records:,}",
            mebibytes(each.sealed_bytes),
            f"{each.dirty_ratio or 0:.2f}",
            "yes" if each.due else "",
        )
    console.print(table)


def show_report(report: lastword.CompactionReport) -> None:
    removed = sum(each.records_before - each.records_after for each in report.partitions)
    written = sum(each.written_bytes for each in report.partitions)
    console.print(
        f"  {len(report.partitions)} partitions in {report.duration_s:.1f} s on {report.engine} (the first run starts Spark): "
        f"{removed:,} records gone, {mebibytes(written)} written."
    )


@contextmanager
def progress(what: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    columns = (
        TextColumn("  {task.description}"),
        BarColumn(30),
        TextColumn("{task.fields[shown]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(what, total=None, shown="")

        def show(done: int, total: int) -> None:
            text = (
                f"{mebibytes(done)} of {mebibytes(total)}"
                if unit == "bytes"
                else f"{done:,} of {total:,} {unit}"
            )
            bar.update(task, completed=done, total=max(total, 1), shown=text)

        yield show


def mebibytes(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.1f} MiB"


if __name__ == "__main__":
    sys.exit(main())
