"""`lastword retention run`: one round of all jobs that keep the disk bounded."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lastword.cli.options import Session, command, group, option
from lastword.cli.output import age, heading, offsets, size, styled, table

app = group(
    "retention",
    help="Remove data that is older or larger than the settings allow.",
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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed; change nothing.")
    ] = False,
    topic: Annotated[list[str] | None, option("--topic", "NAME", "Only this topic; can be repeated.")] = None,
) -> None:
    """Run one round of retention.

    It removes sealed segments, WAL files, old snapshots and unreferenced files, as set in the settings. Only sealed
    records are removed. The exit code is 1 if something could not be done; the rest still is.
    """
    from lastword.operations.table import RETENTION

    report = session.backend.run(RETENTION, dry_run=dry_run, topics=topic or None)
    session.output.show(report, *_parts(report))
    if report["problems"]:
        raise typer.Exit(1)


def _parts(report: dict[str, Any]) -> list[Any]:
    parts: list[Any] = []
    if rows := _rows(report):
        parts += [table(["what", "topic", ">partition", ">offsets", ">size", ">age", "rule"], rows), ""]
    totals = _totals(report)
    if any(number for _, number, _, _ in totals):
        parts += [
            styled("Would be removed in total:" if report["dry_run"] else "Removed in total:", "bold"),
            table(["what", ">number", ">size", "why"], totals),
        ]
    else:
        parts.append("There is nothing to remove.")
    if report["segments"]:
        parts.append("The file of a segment is removed when no snapshot refers to it any more.")
    if problems := report["problems"]:
        parts += [
            heading("Problems"),
            table(
                ["topic", "problem"],
                [(each["topic"] or "(WAL)", styled(each["problem"], "red")) for each in problems],
            ),
        ]
    return parts


def _rows(report: dict[str, Any]) -> list[tuple[object, ...]]:
    segments = [("segment", each, each["last_offset"] + 1) for each in report["segments"]]
    wal_files = [
        ("WAL file", each, each["end_offset"] or each["first_offset"]) for each in report["wal_files"]
    ]
    return [
        (
            what,
            each["topic"],
            each["partition"],
            offsets(each["first_offset"], end),
            size(each["size_bytes"]),
            age(each["age_ms"]),
            each["rule"],
        )
        for what, each, end in [*segments, *wal_files]
    ]


def _totals(report: dict[str, Any]) -> list[tuple[str, int, str | None, str]]:
    collected = report["files"].values()
    return [
        (
            "segments",
            len(report["segments"]),
            size(sum(each["size_bytes"] for each in report["segments"])),
            "retention.ms, retention.bytes, below the log start",
        ),
        (
            "WAL files",
            len(report["wal_files"]),
            size(sum(each["size_bytes"] or 0 for each in report["wal_files"])),
            "sealed, and local.retention.* or wal.max.bytes",
        ),
        ("snapshots", sum(report["snapshots"].values()), None, "snapshot.retention.ms"),
        (
            "files",
            sum(len(each["files"]) for each in collected),
            size(sum(each["size_bytes"] for each in collected)),
            "no snapshot refers to them, collect.grace.ms",
        ),
    ]
