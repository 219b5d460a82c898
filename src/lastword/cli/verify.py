"""`lastword verify`: prove that compaction lost nothing."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lastword.cli.options import Session, TopicArgument, command, option
from lastword.cli.output import count, facts, styled, table
from lastword.cli.record_lines import text, time_text
from lastword.record_json import bytes_of


def register(app: typer.Typer) -> None:
    command(
        app,
        "verify",
        examples=[
            "lastword verify users",
            "lastword verify users --before 4471208133019458341",
            "lastword verify users --json",
        ],
    )(verify)


def verify(
    session: Session,
    name: TopicArgument,
    before: Annotated[
        int | None,
        option("--before", "SNAPSHOT", "The earlier snapshot [the one before the later snapshot]."),
    ] = None,
    after: Annotated[
        int | None,
        option("--after", "SNAPSHOT", "The later snapshot [the last compaction; with --before, the newest]."),
    ] = None,
) -> None:
    """Prove on Spark that compaction lost nothing.

    It compares two snapshots: every key must have the same winner, removed records must have been allowed to go, and
    nothing else may have changed. What was compacted while it was sealed is compared with the WAL, as long as that has
    it. The exit code is 1 if something is wrong. `topic history` lists the snapshots.
    """
    from lastword.operations.table import VERIFY

    with session.output.progress(f"Comparing snapshots of {name}", unit="time"):
        report = session.backend.run(VERIFY, name, before=before, after=after)
    session.output.show(report, *_parts(report))
    if not report["holds"]:
        raise typer.Exit(1)


def _parts(report: dict[str, Any]) -> list[Any]:
    gone = sum(report["gone"].values())
    parts: list[Any] = [
        facts(
            [
                ("topic", report["topic"]),
                ("before", _snapshot_text(report["before"])),
                *([("", f"{report['wal_records']:,} of them from the WAL")] if report["wal_records"] else []),
                ("after", _snapshot_text(report["after"])),
                ("keys", f"{report['keys']:,}"),
            ]
        ),
        "",
    ]
    if report["gone"]:
        parts += [
            table(
                ["reason for removal", ">records"],
                sorted(report["gone"].items()),
                total=("all", gone) if len(report["gone"]) > 1 else None,
            ),
            "",
        ]
    else:
        parts += ["No record was removed.", ""]
    if report["unproven"]:
        spans = ", ".join(
            f"{each['first_offset']} to {each['last_offset']} of partition {each['partition']}"
            for each in report["unproven"]
        )
        parts += [
            f"Not compared: the sealing of offsets {spans}. Their WAL files are gone, or Spark can't read them.",
            "",
        ]
    if report["holds"]:
        return [*parts, styled("Nothing was lost.", "bold green")]
    parts += [
        styled(f"{count(report['problem_count'], 'problem')}:", "bold red"),
        table(
            [">partition", ">offset", "key", "problem"],
            [
                (
                    each["partition"],
                    each["offset"],
                    text(bytes_of(each, "key"), str),
                    styled(each["problem"], "red"),
                )
                for each in report["problems"]
            ],
        ),
    ]
    if report["problem_count"] > len(report["problems"]):
        parts.append(f"Only the first {len(report['problems'])} are shown.")
    return parts


def _snapshot_text(snapshot: dict[str, Any]) -> str:
    return (
        f"snapshot {snapshot['snapshot_id']}, {snapshot['operation']} of {time_text(snapshot['committed_ms'])}, "
        f"{count(snapshot['records'], 'record')}"
    )
