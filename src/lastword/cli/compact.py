"""`lastword topic compact` and `lastword compact`: keep the last record of each key, now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli.options import Session, TopicArgument, command
from lastword.cli.output import age, count, heading, size, styled, table
from lastword.errors import InvalidError, UnknownPartitionError

if TYPE_CHECKING:
    from lastword.compaction.job import CompactionReport, PartitionReport
    from lastword.compaction.plan import PartitionPlan
    from lastword.log import Log
    from lastword.tiering import SealReport
    from lastword.topic import Topic

_SHOWN = ["lastword.compaction.job", "lastword.tiering"]

DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done and about reclaimed; change nothing.")
]

_SUMMED = (
    "segments_before",
    "segments_compacted",
    "segments_after",
    "records_before",
    "records_after",
    "bytes_before",
    "bytes_after",
    "reclaimed_bytes",
    "tombstones_kept",
    "tombstones_removed",
    "read_bytes",
    "written_bytes",
)


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
        list[int] | None,
        typer.Option(
            "--partition",
            metavar="P",
            help="Only this partition; can be repeated [all].",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRunOption = False,
    no_seal: Annotated[
        bool, typer.Option("--no-seal", help="Leave what is only in the WAL for later.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Go through everything, also where nothing is dirty.")
    ] = False,
) -> None:
    """Compact a topic now, whatever its dirty ratio is.

    What is only in the WAL is sealed first. The exit code is 1 if a partition could not be compacted; the others
    are.
    """
    if dry_run:
        with session.read() as log:
            topic = log.topic(name)
            _check_partitions(topic, partition)
            plans = log.plan_compaction([name], partitions=partition, asked_for=True, force=force)
            reason = None if plans else _nothing_to_compact(topic, partition)
            unsealed = 0 if no_seal else _unsealed(topic, partition)
        last = (
            [f"{count(unsealed, 'record')} in the WAL would be sealed first, and can't be counted in here."]
            if unsealed
            else []
        )
        data = {"topic": name, "nothing_to_compact": reason, "unsealed_records": unsealed}
        _show_plans(session, plans, data, reason, last)
        return

    def work() -> tuple[SealReport | None, CompactionReport, str | None]:
        with session.maintain() as log:
            topic = log.topic(name)
            _check_partitions(topic, partition)
            sealed = None if no_seal else _seal(session, topic)
            report = _run(session, log, f"Compacting {name}", [name], partition, asked_for=True, force=force)
            return sealed, report, None if report.partitions else _nothing_to_compact(topic, partition)

    sealed, report, reason = session.in_background(work)
    problems = sealed.problems if sealed is not None else ()
    _show_report(
        session,
        report,
        {
            "topic": name,
            "sealed": None if sealed is None else {"records": sealed.records, "bytes": sealed.size_bytes},
            "not_sealed": [{"partition": each, "problem": why} for each, why in problems],
            "nothing_to_compact": reason,
        },
        [f"Sealed {count(sealed.records, 'record')} first."] if sealed is not None and sealed.records else [],
        reason,
        not_sealed=problems,
    )
    if problems or report.problems:
        raise typer.Exit(1)


def _check_partitions(topic: Topic, partitions: Sequence[int] | None) -> None:
    for each in partitions or ():
        if not 0 <= each < topic.partitions:
            raise UnknownPartitionError(
                f"Topic {topic.name!r} has no partition {each}; it has 0 to {topic.partitions - 1}."
            )


def _seal(session: Session, topic: Topic) -> SealReport:
    with session.output.progress(f"Sealing {topic.name}") as progress:
        return topic.seal(progress=progress.update)


def _unsealed(topic: Topic, partitions: Sequence[int] | None) -> int:
    return sum(
        max(0, each.log_end - max(each.sealed_end, each.log_start))
        for each in topic.describe().partitions
        if partitions is None or each.partition in partitions
    )


def _nothing_to_compact(topic: Topic, partitions: Sequence[int] | None) -> str:
    """Why a compaction that was asked for has nothing to do."""
    settings = topic.settings
    found = topic.describe()
    if not settings.compacts:
        return (
            f"{topic.name} has cleanup.policy={found.cleanup_policy}, so its records don't replace each other, "
            f"and it has too few small segments to join."
        )
    chosen = [each for each in found.partitions if partitions is None or each.partition in partitions]
    held_back = [each for each in chosen if max(each.first_dirty, each.log_start) < each.sealed_end]
    if held_back and settings.min_compaction_lag_ms:
        return (
            f"what is dirty in {topic.name} is held back: it has records younger than "
            f"min.compaction.lag.ms={settings.min_compaction_lag_ms} ({age(settings.min_compaction_lag_ms)})."
        )
    if not any(each.segments for each in chosen):
        return f"nothing of {topic.name} is sealed."
    return f"nothing in {topic.name} is dirty: everything that is sealed has been compacted."


# ---------------------------------------------------------------------------------------------- compact


def compact(
    session: Session,
    all_dirty: Annotated[
        bool, typer.Option("--all", help="Compact whatever is dirty, whatever its ratio.")
    ] = False,
    due: Annotated[
        bool, typer.Option("--due", help="Compact what is due by the settings; this is the default.")
    ] = False,
    dry_run: DryRunOption = False,
) -> None:
    """Compact all topics as one job: what is due, or whatever is dirty.

    Only what is sealed is compacted. The exit code is 1 if a partition could not be compacted; the others are.
    """
    if all_dirty and due:
        raise InvalidError("--all and --due say different things; give one of them.")
    reason = (
        "nothing that is sealed is dirty, or may be compacted yet (min.compaction.lag.ms)."
        if all_dirty
        else "nothing is due; `lastword compact --all` compacts whatever is dirty."
    )
    if dry_run:
        with session.read() as log:
            plans = log.plan_compaction(asked_for=all_dirty)
        _show_plans(session, plans, {}, reason)
        return

    def work() -> CompactionReport:
        with session.maintain() as log:
            return _run(session, log, "Compacting", None, None, asked_for=all_dirty, force=False)

    report = session.in_background(work)
    _show_report(session, report, {}, [], reason)
    if report.problems:
        raise typer.Exit(1)


# ------------------------------------------------------------------------------------------ what is shown


def _run(
    session: Session,
    log: Log,
    title: str,
    names: list[str] | None,
    partitions: list[int] | None,
    *,
    asked_for: bool,
    force: bool,
) -> CompactionReport:
    with session.output.progress(title, unit="records") as progress:
        return log.compact(
            names,
            partitions=partitions or None,
            asked_for=asked_for,
            force=force,
            progress=progress.update_records,
        )


def _show_plans(
    session: Session,
    plans: Sequence[PartitionPlan],
    data: dict[str, Any],
    reason: str | None,
    last: Sequence[Any] = (),
) -> None:
    shown: list[Any] = [f"There is nothing to compact: {reason}"]
    if plans:
        shown = [
            f"A run would compact {count(len(plans), 'partition')}, the most urgent first:",
            _plan_table(plans, with_topic="topic" not in data),
        ]
    session.output.show(
        {**data, "dry_run": True, "partitions": [_plan_data(plan) for plan in plans]}, *shown, *last
    )


def _plan_table(plans: Sequence[PartitionPlan], *, with_topic: bool) -> Any:
    estimates = [plan.estimate for plan in plans if plan.estimate is not None]
    total = (
        *(["all"] if with_topic else []),
        "" if with_topic else "all",
        "",
        "",
        sum(len(plan.segments) for plan in plans),
        sum(plan.records for plan in plans),
        size(sum(plan.size_bytes for plan in plans)),
        sum(each.garbage_records for each in estimates),
        size(sum(each.reclaimed_bytes for each in estimates)),
    )
    return table(
        [
            *(["\ntopic"] if with_topic else []),
            ">\np",
            "\nbecause of",
            ">dirty\nratio",
            ">seg-\nments",
            ">\nrecords",
            ">\nsize",
            ">garbage\n(about)",
            ">reclaimed\n(about)",
        ],
        [
            (
                *([plan.topic] if with_topic else []),
                plan.partition,
                plan.reason,
                f"{plan.dirty_ratio:.2f}",
                len(plan.segments),
                plan.records,
                size(plan.size_bytes),
                plan.estimate.garbage_records if plan.estimate else None,
                size(plan.estimate.reclaimed_bytes) if plan.estimate else None,
            )
            for plan in plans
        ],
        total=total if len(plans) > 1 else None,
    )


def _plan_data(plan: PartitionPlan) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "topic": plan.topic,
        "partition": plan.partition,
        "reason": plan.reason,
        "dirty_ratio": plan.dirty_ratio,
        "first_dirty": plan.positions.first_dirty,
        "compactable_end": plan.compactable_end,
        "segments": len(plan.segments),
        "records": plan.records,
        "dirty_records": plan.dirty_records,
        "size_bytes": plan.size_bytes,
        "estimate": None if plan.estimate is None else asdict(plan.estimate),
    }


def _show_report(
    session: Session,
    report: CompactionReport,
    data: dict[str, Any],
    first: list[Any],
    reason: str | None,
    *,
    not_sealed: Sequence[tuple[int, str]] = (),
) -> None:
    done = [each for each in report.partitions if each.problem is None]
    with_topic = "topic" not in data
    parts: list[Any] = [*first]
    if done:
        parts += [
            f"Compacted {count(len(done), 'partition')} in {report.duration_s:.1f} s:",
            _kept_table(done, with_topic=with_topic),
            heading("How"),
            _work_table(done, with_topic=with_topic),
            "",
            *_reasons(done, with_topic=with_topic),
        ]
    elif not report.problems:
        parts.append(f"There is nothing to compact: {reason}")
    if report.problems:
        parts += [
            heading("Not compacted"),
            table(
                ["topic", ">p", "problem"],
                [(each.topic, each.partition, styled(each.problem or "", "red")) for each in report.problems],
            ),
        ]
    if not_sealed:
        parts += [
            heading("Not sealed, and so not compacted"),
            table([">p", "problem"], [(partition, styled(why, "red")) for partition, why in not_sealed]),
        ]
    session.output.show(
        {
            **data,
            "engine": report.engine,
            "duration_s": round(report.duration_s, 3),
            "partitions": [_report_data(each) for each in report.partitions],
            "total": {name: _sum(done, name) for name in _SUMMED},
        },
        *parts,
    )


def _report_data(report: PartitionReport) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        **asdict(report),
        "reclaimed_bytes": report.reclaimed_bytes,
        "duration_s": round(report.duration_s, 3),
    }


def _sum(reports: Sequence[PartitionReport], name: str) -> int:
    return sum(getattr(each, name) for each in reports)


def _kept_table(done: Sequence[PartitionReport], *, with_topic: bool) -> Any:
    """What there was, and what is left of it."""

    def numbers(own: Sequence[PartitionReport]) -> tuple[object, ...]:
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


def _work_table(done: Sequence[PartitionReport], *, with_topic: bool) -> Any:
    """How it was done, and what that took."""

    def numbers(own: Sequence[PartitionReport]) -> tuple[object, ...]:
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
    rows = [(each, (each.way, *numbers([each]), f"{each.duration_s:.1f} s")) for each in done]
    return _partition_table(columns, rows, ("", *numbers(done), ""), with_topic=with_topic)


def _partition_table(
    columns: list[str],
    rows: Sequence[tuple[PartitionReport, tuple[object, ...]]],
    total: tuple[object, ...],
    *,
    with_topic: bool,
) -> Any:
    return table(
        [*(["\ntopic"] if with_topic else []), ">\np", *columns],
        [(*([each.topic] if with_topic else []), each.partition, *cells) for each, cells in rows],
        total=(*(["all", ""] if with_topic else ["all"]), *total) if len(rows) > 1 else None,
    )


def _reasons(done: Sequence[PartitionReport], *, with_topic: bool) -> list[str]:
    """Why it was done, a line a reason."""
    lines = []
    for reason in dict.fromkeys(each.reason for each in done):
        own = [each for each in done if each.reason == reason]
        which = ", ".join(
            f"{each.topic} {each.partition}" if with_topic else str(each.partition) for each in own
        )
        lines.append(f"Because of {reason}: {which if with_topic else f'partition {which}'}.")
    return lines


def _signed_size(size_bytes: int) -> str | None:
    """A file that is written anew may turn out larger."""
    return f"-{size(-size_bytes)}" if size_bytes < 0 else size(size_bytes)
