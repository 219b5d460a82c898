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
            "Seal: turn the write-ahead log into Parquet files of an Iceberg table",
            "lastword topic seal users",
        )
        with progress("sealing", "bytes") as show:
            users.seal(progress=lambda done, total: show(done, total))
        before = show_partitions(users)

        say("4", "Compact on Spark: only the newest record of each key stays", "lastword topic compact users")
        with progress("compacting", "records") as show:
            report = log.compact(
                ["users"], asked_for=True, progress=lambda done, total, *_: show(done, total)
            )
        show_report(report)
        after = show_partitions(users)
        console.print(
            f"  {before[0]:,} records became {after[0]:,}; {mebibytes(before[1])} became {mebibytes(after[1])}. "
            f"Offsets and the log end did not change."
        )

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
            "Prove it: compare the snapshots before and after, record by record, on Spark",
            "lastword verify users",
        )
        proof = log.verify("users")
        for rule, count in sorted(proof.gone.items()):
            console.print(f"  {count:>9,} records gone: {rule}")
        console.print(f"  {proof.keys:,} keys compared, {proof.problem_count} problems.")
        console.print(
            "  [green]Nothing was lost.[/green]" if proof.holds else "  [red]Records were lost![/red]"
        )
        return proof.holds


def write(users: Topic, records: int) -> None:
    written = 0
    with progress("writing", "records") as show:
        for table in changelog(records):
            users.append_arrow(table)
            written += table.num_rows
            show(written, records)


def say(step: str, what: str, command: str) -> None:
    console.print(f"\n[b]{step}. {what}[/b]")
    console.print(f"   [dim]$ {command}[/dim]")


def show_partitions(topic: Topic) -> tuple[int, int]:
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
    return sum(each.sealed_records for each in partitions), sum(each.sealed_bytes for each in partitions)


def show_report(report: lastword.CompactionReport) -> None:
    reclaimed = sum(each.reclaimed_bytes for each in report.partitions)
    console.print(
        f"  {len(report.partitions)} partitions in {report.duration_s:.1f} s on {report.engine} "
        f"(the first run starts Spark), {mebibytes(reclaimed)} reclaimed."
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
