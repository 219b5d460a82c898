"""`lastword retention run`: one round of everything that keeps the disk bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli.options import Session, command, group
from lastword.cli.output import age, heading, offsets, size, styled, table

if TYPE_CHECKING:
    from lastword.log import MaintenanceReport

app = group(
    "retention",
    help="Let go of what is older or larger than the settings allow.",
    examples=["lastword retention run --dry-run", "lastword retention run"],
)


@command(
    app,
    "run",
    examples=[
        "lastword retention run --dry-run",
        "lastword retention run",
        "lastword retention run --topic clicks --topic views",
    ],
)
def run(
    session: Session,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would go; change nothing.")] = False,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="NAME", help="Only this topic; can be repeated.", show_default=False),
    ] = None,
) -> None:
    """Run one round of retention: sealed segments, WAL files, old snapshots, files that nothing names.

    Only what is sealed is touched. The exit code is 1 if something could not be done; the rest is.
    """
    with session.read() if dry_run else session.maintain() as log:
        report = log.run_retention(dry_run=dry_run, topics=topic or None)
    session.output.show(_data(report, dry_run=dry_run), *_parts(report, dry_run=dry_run))
    if report.problems or report.wal.errors:
        raise typer.Exit(1)


def _parts(report: MaintenanceReport, *, dry_run: bool) -> list[Any]:
    parts: list[Any] = []
    if rows := _rows(report):
        parts += [table(["what", "topic", ">partition", ">offsets", ">size", ">age", "rule"], rows), ""]
    totals = _totals(report)
    if any(number for _, number, _, _ in totals):
        parts += [
            styled("In all would go:" if dry_run else "Gone in all:", "bold"),
            table(["what", ">number", ">size", "why"], totals),
        ]
    else:
        parts.append("There is nothing to remove.")
    if any(plan.removals for plan in report.removed):
        parts.append("The file of a segment goes when no snapshot names it any more.")
    if problems := [*report.problems, *(("(WAL)", each) for each in report.wal.errors)]:
        parts += [
            heading("Problems"),
            table(["topic", "problem"], [(topic, styled(why, "red")) for topic, why in problems]),
        ]
    return parts


def _rows(report: MaintenanceReport) -> list[tuple[object, ...]]:
    segments = [
        (
            "segment",
            plan.topic,
            each.segment.partition,
            offsets(each.segment.first_offset, each.segment.last_offset + 1),
            size(each.segment.size_bytes),
            age(each.age_ms),
            each.rule,
        )
        for plan in report.removed
        for each in plan.removals
    ]
    wal_files = [
        (
            "WAL file",
            each.topic,
            each.partition,
            offsets(each.file.first_offset, each.file.end_offset or each.file.first_offset),
            size(each.file.size_bytes),
            age(each.age_ms),
            each.rule,
        )
        for each in report.wal.deletions
    ]
    return [*segments, *wal_files]


def _totals(report: MaintenanceReport) -> list[tuple[str, int, str | None, str]]:
    collected = report.collected.values()
    return [
        (
            "segments",
            sum(len(plan.removals) for plan in report.removed),
            size(sum(plan.size_bytes for plan in report.removed)),
            "retention.ms, retention.bytes, below the log start",
        ),
        (
            "WAL files",
            len(report.wal.deletions),
            size(report.wal.size_bytes),
            "sealed, and local.retention.* or wal.max.bytes",
        ),
        ("snapshots", sum(report.expired_snapshots.values()), None, "snapshot.retention.ms"),
        (
            "files",
            sum(len(each.files) for each in collected),
            size(sum(each.size_bytes for each in collected)),
            "no snapshot names them, collect.grace.ms",
        ),
    ]


def _data(report: MaintenanceReport, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "segments": [
            {
                "topic": plan.topic,
                "partition": each.segment.partition,
                "first_offset": each.segment.first_offset,
                "last_offset": each.segment.last_offset,
                "records": each.segment.records,
                "size_bytes": each.segment.size_bytes,
                "path": each.segment.path,
                "age_ms": each.age_ms,
                "rule": each.rule,
            }
            for plan in report.removed
            for each in plan.removals
        ],
        "log_starts": [
            {"topic": plan.topic, "partition": partition, "log_start": log_start}
            for plan in report.removed
            for partition, log_start in plan.log_starts
        ],
        "wal_files": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "path": str(each.path),
                "first_offset": each.file.first_offset,
                "end_offset": each.file.end_offset,
                "size_bytes": each.file.size_bytes,
                "age_ms": each.age_ms,
                "rule": each.rule,
            }
            for each in report.wal.deletions
        ],
        "snapshots": dict(report.expired_snapshots),
        "files": {
            topic: {"files": list(each.files), "size_bytes": each.size_bytes}
            for topic, each in report.collected.items()
        },
        "problems": [
            *({"topic": topic, "problem": why} for topic, why in report.problems),
            *({"topic": None, "problem": why} for why in report.wal.errors),
        ],
    }
