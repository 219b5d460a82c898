"""`lastword topic compact` and `lastword compact`: keep the last record of each key, now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from lastword.cli.options import Session, TopicArgument, command, option
from lastword.cli.output import Unit, count, heading, size, styled, table
from lastword.errors import InvalidError

_SHOWN = ["lastword.compaction.job", "lastword.maintenance.tiering"]

DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Show the plan and an estimate of what it would reclaim; change nothing."),
]

Partition = dict[str, Any]
"""The report or the plan of one partition."""


def register(app: typer.Typer, topic_group: typer.Typer) -> None:
    command(
        topic_group,
        "compact",
        examples=[
            "lastword topic compact users",
            "lastword topic compact users --dry-run",
            "lastword topic compact users --partition 0 --partition 3",
        ],
        shown=_SHOWN,
    )(compact_topic)
    command(
        app,
        "compact",
        examples=["lastword compact", "lastword compact --all", "lastword compact --all --dry-run"],
        shown=_SHOWN,
    )(compact)


# ---------------------------------------------------------------------------------------- topic compact


def compact_topic(
    session: Session,
    name: TopicArgument,
    partition: Annotated[
        list[int] | None, option("--partition", "P", "Only this partition; can be repeated [all].")
    ] = None,
    dry_run: DryRunOption = False,
    no_seal: Annotated[
        bool, typer.Option("--no-seal", help="Don't seal the WAL; compact only what is sealed.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Compact every partition, even if nothing is dirty.")
    ] = False,
) -> None:
    """Compact a topic now, whatever its dirty ratio.

    Records that are only in the WAL are sealed first. The exit code is 1 if a partition could not be compacted, or
    Spark could not be started; everything else is still done.
    """
    from lastword.operations.table import COMPACT_TOPIC

    if dry_run:
        planned = session.backend.run(
            COMPACT_TOPIC, name, partitions=partition, force=force, seal=not no_seal, dry_run=True
        )
        unsealed = count(planned["unsealed_records"], "record")
        last = [f"{unsealed} in the WAL would be sealed first; this does not include the WAL."]
        _show_plans(
            session, planned, planned["nothing_to_compact"], last if planned["unsealed_records"] else []
        )
        return
    stages: dict[str, tuple[str, Unit]] = {
        "seal": (f"Sealing {name}", "bytes"),
        "compact": (f"Compacting {name}", "records"),
    }
    with session.output.stages(stages) as progress:
        report = session.backend.run(
            COMPACT_TOPIC, name, partitions=partition, force=force, seal=not no_seal, progress=progress
        )
    sealed = report["sealed"]
    _show_report(
        session,
        report,
        [_sealed_line(sealed)] if sealed and sealed["records"] else [],
        report["nothing_to_compact"],
    )
    if report["not_sealed"] or _problems(report):
        raise typer.Exit(1)


# ---------------------------------------------------------------------------------------------- compact


def compact(
    session: Session,
    all_dirty: Annotated[
        bool, typer.Option("--all", help="Compact everything that is dirty, whatever its ratio.")
    ] = False,
    due: Annotated[
        bool, typer.Option("--due", help="Compact what is due by the settings (the default).")
    ] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Compact what is due in all topics, as one job.

    Only sealed records are compacted. The exit code is 1 if a topic or a partition could not be compacted; the others
    still are.
    """
    from lastword.operations.table import COMPACT_ALL

    if all_dirty and due:
        raise InvalidError("--all and --due contradict each other; give one of them.")
    reason = (
        "no sealed record is dirty, or none may be compacted yet (min.compaction.lag.ms)."
        if all_dirty
        else "nothing is due; `lastword compact --all` compacts everything that is dirty."
    )
    if dry_run:
        _show_plans(session, session.backend.run(COMPACT_ALL, all_dirty=all_dirty, dry_run=True), reason)
        return
    with session.output.stages({"compact": ("Compacting", "records")}) as progress:
        report = session.backend.run(COMPACT_ALL, all_dirty=all_dirty, progress=progress)
    _show_report(session, report, [], reason)
    if _problems(report):
        raise typer.Exit(1)


# ----------------------------------------------------------------------------------------------- output


def _show_plans(
    session: Session, planned: dict[str, Any], reason: str | None, last: Sequence[Any] = ()
) -> None:
    plans = planned["partitions"]
    shown: list[Any] = [f"There is nothing to compact: {reason}"]
    if plans:
        shown = [
            f"A run would compact {count(len(plans), 'partition')}, the most urgent first:",
            _plan_table(plans, with_topic="topic" not in planned),
        ]
    session.output.show(planned, *shown, *last)


def _plan_table(plans: Sequence[Partition], *, with_topic: bool) -> Any:
    estimates = [plan["estimate"] for plan in plans if plan["estimate"] is not None]
    total = (
        *(["all"] if with_topic else []),
        "" if with_topic else "all",
        "",
        "",
        _sum(plans, "segments"),
        _sum(plans, "records"),
        size(_sum(plans, "size_bytes")),
        _sum(estimates, "garbage_records"),
        size(_sum(estimates, "reclaimed_bytes")),
    )
    return table(
        [
            *(["\ntopic"] if with_topic else []),
            ">\np",
            "\nreason",
            ">dirty\nratio",
            ">seg-\nments",
            ">\nrecords",
            ">\nsize",
            ">garbage\n(est.)",
            ">reclaimed\n(est.)",
        ],
        [
            (
                *([plan["topic"]] if with_topic else []),
                plan["partition"],
                plan["reason"],
                f"{plan['dirty_ratio']:.2f}",
                plan["segments"],
                plan["records"],
                size(plan["size_bytes"]),
                plan["estimate"]["garbage_records"] if plan["estimate"] else None,
                size(plan["estimate"]["reclaimed_bytes"]) if plan["estimate"] else None,
            )
            for plan in plans
        ],
        total=total if len(plans) > 1 else None,
    )


def _show_report(session: Session, report: dict[str, Any], first: list[Any], reason: str | None) -> None:
    done = [each for each in report["partitions"] if each["problem"] is None]
    problems = _problems(report)
    with_topic = "topic" not in report
    parts: list[Any] = [*first]
    if done:
        parts += [
            f"Compacted {count(len(done), 'partition')} in {report['duration_s']:.1f} s:",
            _kept_table(done, with_topic=with_topic),
            heading("Work"),
            _work_table(done, with_topic=with_topic),
            "",
            *_reasons(done, with_topic=with_topic),
        ]
    elif not problems:
        parts.append(f"There is nothing to compact: {reason}")
    if problems:
        parts += [
            heading("Not compacted"),
            table(
                ["topic", ">p", "problem"],
                [
                    (each["topic"], each.get("partition", "all"), styled(each["problem"], "red"))
                    for each in problems
                ],
            ),
        ]
    if not_sealed := report.get("not_sealed"):
        parts += [
            heading("Not sealed, so not compacted"),
            table(
                [">p", "problem"],
                [(each["partition"], styled(each["problem"], "red")) for each in not_sealed],
            ),
        ]
    session.output.show(report, *parts)


def _problems(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the failures: topics, which have no partition, and partitions."""
    partitions = [each for each in report["partitions"] if each["problem"] is not None]
    return [*report["failed_topics"], *partitions]


def _sum(reports: Sequence[Partition], name: str) -> int:
    return sum(each[name] for each in reports)


def _kept_table(done: Sequence[Partition], *, with_topic: bool) -> Any:
    """Make the table of records and bytes before and after."""

    def numbers(own: Sequence[Partition]) -> tuple[object, ...]:
        return (
            _sum(own, "records_before"),
            _sum(own, "records_after"),
            size(_sum(own, "bytes_before")),
            size(_sum(own, "bytes_after")),
            _signed_size(_sum(own, "reclaimed_bytes")),
            _sum(own, "tombstones_kept"),
            _sum(own, "tombstones_removed"),
        )

    columns = [
        ">records\nbefore",
        ">\nafter",
        ">size\nbefore",
        ">\nafter",
        ">\nreclaimed",
        ">tombstones\nkept",
        ">\nremoved",
    ]
    return _partition_table(
        columns, [(each, numbers([each])) for each in done], numbers(done), with_topic=with_topic
    )


def _work_table(done: Sequence[Partition], *, with_topic: bool) -> Any:
    """Make the table of the segments compacted, the bytes read and written, and the time."""

    def numbers(own: Sequence[Partition]) -> tuple[object, ...]:
        return (
            _sum(own, "segments_before"),
            _sum(own, "segments_compacted"),
            _sum(own, "segments_after"),
            size(_sum(own, "read_bytes")),
            size(_sum(own, "written_bytes")),
        )

    columns = [
        "\nway",
        ">segments\nbefore",
        ">com-\npacted",
        ">\nafter",
        ">\nread",
        ">\nwritten",
        ">\ntime",
    ]
    rows = [(each, (each["way"], *numbers([each]), f"{each['duration_s']:.1f} s")) for each in done]
    return _partition_table(columns, rows, ("", *numbers(done), ""), with_topic=with_topic)


def _partition_table(
    columns: list[str],
    rows: Sequence[tuple[Partition, tuple[object, ...]]],
    total: tuple[object, ...],
    *,
    with_topic: bool,
) -> Any:
    return table(
        [*(["\ntopic"] if with_topic else []), ">\np", *columns],
        [(*([each["topic"]] if with_topic else []), each["partition"], *cells) for each, cells in rows],
        total=(*(["all", ""] if with_topic else ["all"]), *total) if len(rows) > 1 else None,
    )


def _reasons(done: Sequence[Partition], *, with_topic: bool) -> list[str]:
    """Return the reasons for the run, one line each."""
    lines = []
    for reason in dict.fromkeys(each["reason"] for each in done):
        own = [each for each in done if each["reason"] == reason]
        which = ", ".join(
            f"{each['topic']} {each['partition']}" if with_topic else str(each["partition"]) for each in own
        )
        lines.append(f"Because of {reason}: {which if with_topic else f'partition {which}'}.")
    return lines


def _signed_size(size_bytes: int) -> str | None:
    """Format a size that may be negative: a rewritten file can be larger than before."""
    return f"-{size(-size_bytes)}" if size_bytes < 0 else size(size_bytes)


def _sealed_line(sealed: dict[str, Any]) -> str:
    left_out = f", {sealed['beaten']:,} of them superseded and left out" if sealed["beaten"] else ""
    return f"Sealed {count(sealed['records'] + sealed['beaten'], 'record')} first{left_out}."
