"""`lastword topic`: create, alter, list, delete, repair, seal, delete-records. `describe` has its own file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lastword.cli.options import Session, TopicArgument, YesOption, command, group, option
from lastword.cli.output import count, heading, offsets, size, styled, table
from lastword.errors import InvalidConfigError, InvalidError, UnknownTopicError

POLICY = "cleanup.policy"

app = group(
    "topic",
    help="Create, change, inspect and delete topics.",
    examples=[
        "lastword topic create users --cleanup-policy compact",
        "lastword topic list",
        "lastword topic describe users",
    ],
)

SettingsOption = Annotated[
    list[str] | None,
    option(
        "--config",
        "KEY=VALUE",
        "A setting of the topic; can be repeated. A value without '=' is the settings file.",
    ),
]


# ------------------------------------------------------------------------------------- create and alter


@command(
    app,
    "create",
    examples=[
        "lastword topic create users --cleanup-policy compact",
        "lastword topic create user-profiles --partitions 12 --config cleanup.policy=compact",
        "lastword topic create clicks --config retention.ms=3600000 --config segment.bytes=1000000",
    ],
)
def create(
    session: Session,
    name: TopicArgument,
    partitions: Annotated[int, typer.Option("--partitions", metavar="N", help="Number of partitions.")] = 1,
    cleanup_policy: Annotated[
        str | None, option("--cleanup-policy", "POLICY", "delete, compact or compact,delete.")
    ] = None,
    config: SettingsOption = None,
) -> None:
    """Create a topic. The data folder is created if it does not exist yet."""
    from lastword.operations.table import CREATE_TOPIC

    settings = take_settings(session, config or [], cleanup_policy)
    made = session.backend.run(CREATE_TOPIC, name, partitions=partitions, config=settings)
    session.output.show(
        made,
        f"Created topic {name}: {count(made['partitions'], 'partition')}, {POLICY} {made['cleanup_policy']}.",
    )


@command(
    app,
    "alter",
    examples=[
        "lastword topic alter users --config min.cleanable.dirty.ratio=0.3",
        "lastword topic alter users --delete-config retention.ms",
        "lastword topic alter users --partitions 24",
    ],
    shown=["lastword.log"],
)
def alter(
    session: Session,
    name: TopicArgument,
    config: SettingsOption = None,
    delete_config: Annotated[
        list[str] | None,
        option(
            "--delete-config",
            "KEY",
            "Remove a setting of the topic, so that it is inherited again; can be repeated.",
        ),
    ] = None,
    partitions: Annotated[
        int | None, option("--partitions", "N", "The new, larger number of partitions.")
    ] = None,
) -> None:
    """Change settings of a topic, or add partitions. Either all changes are applied or none."""
    from lastword.operations.table import ALTER_TOPIC

    settings = take_settings(session, config or [], None)
    unset = delete_config or []
    if not settings and not unset and partitions is None:
        raise InvalidError("There is nothing to change; give --config, --delete-config or --partitions.")
    if both := sorted(set(settings) & set(unset)):
        raise InvalidConfigError(f"{both[0]!r} is both set and deleted; do one of them")
    done = session.backend.run(ALTER_TOPIC, name, set_config=settings, unset=unset, partitions=partitions)
    if done["warning"] is not None:
        session.output.warn(done["warning"])
    rows = [
        (key, _with_source(change["before"]), _with_source(change["after"]))
        for key, change in done["changed"].items()
    ]
    if done["partitions"]["before"] != done["partitions"]["after"]:
        rows.append(("partitions", str(done["partitions"]["before"]), str(done["partitions"]["after"])))
    session.output.show(
        done,
        f"Changed topic {name}." if rows else f"Topic {name} is unchanged.",
        *([table(["setting", "before", "now"], rows)] if rows else []),
    )


def take_settings(session: Session, given: list[str], cleanup_policy: str | None) -> dict[str, str]:
    """Return the settings among the values of --config. The value without a '=' is the settings file."""
    settings = {} if cleanup_policy is None else {POLICY: cleanup_policy}
    files: list[str] = []
    for each in given:
        key, equals, value = each.partition("=")
        if not equals:
            files.append(each)
        elif key in settings:
            raise InvalidConfigError(f"{key!r} is given twice")
        else:
            settings[key] = value
    if len(files) > 1:
        raise InvalidConfigError(f"two settings files are given: {files[0]} and {files[1]}")
    if files:
        session.config = Path(files[0])
        if not session.config.exists():
            raise InvalidConfigError(
                f"There is no settings file {files[0]}. A setting is given as --config KEY=VALUE."
            )
    return settings


def _with_source(setting: dict[str, str]) -> str:
    return f"{setting['value'] or 'not set'} ({setting['source']})"


# ------------------------------------------------------------------------------------------------ list


@command(app, "list", examples=["lastword topic list", "lastword topic list --json"])
def list_topics(session: Session) -> None:
    """List the topics."""
    from lastword.operations.table import LIST_TOPICS

    found = session.backend.run(LIST_TOPICS)
    if not found:
        session.output.show(found, f"There are no topics in {session.data_folder}.")
        return
    has_foreign = any(each["foreign_owner"] for each in found)
    shown = table(
        ["topic", ">partitions", POLICY, "own settings", *(["belongs to"] if has_foreign else [])],
        [
            (
                each["name"],
                each["partitions"],
                each["cleanup_policy"] or styled(each["state"], "bold red"),
                ", ".join(f"{key}={value}" for key, value in sorted(each["config"].items()) if key != POLICY)
                or None,
                *([each["foreign_owner"] or "this folder"] if has_foreign else []),
            )
            for each in found
        ],
    )
    problems = [styled(f"{each['name']}: {each['problem']}", "red") for each in found if each["problem"]]
    session.output.show(found, shown, *([heading("Problems"), *problems] if problems else []))


# ------------------------------------------------------------------------- delete, seal, delete-records


@command(app, "delete", examples=["lastword topic delete users", "lastword topic delete users --yes"])
def delete(session: Session, name: TopicArgument, yes: YesOption = False) -> None:
    """Delete a topic, with its records and its readers' positions."""
    from lastword.operations.table import DELETE_TOPIC, LIST_TOPICS

    # Ask before locking the log: no other process should have to wait for an answer.
    backend = session.backend
    found = next((each for each in backend.run(LIST_TOPICS) if each["name"] == name), None)
    if found is None:
        raise UnknownTopicError(f"there is no topic {name!r}")
    what = "unreadable" if found["partitions"] is None else count(found["partitions"], "partition")
    question = f"Permanently delete topic {name} ({what}) with everything in it?"
    if not session.confirm(question, yes=yes):
        session.output.show({"topic": name, "deleted": False}, "Nothing was deleted.")
        raise typer.Exit(1)
    session.output.show(backend.run(DELETE_TOPIC, name), f"Deleted topic {name}.")


@command(
    app,
    "repair",
    examples=["lastword topic repair users", "lastword topic repair users --yes"],
    shown=["lastword.log"],
)
def repair(
    session: Session,
    name: TopicArgument,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Go back to the newest older state that is usable.")
    ] = False,
) -> None:
    """Repair a topic whose table can't be read.

    Without --yes, show the older states of the table and change nothing; the exit code is 1. With --yes, go back to the
    newest usable one: records that were sealed since are sealed again from the WAL. The repair is refused if records
    would be lost.
    """
    from lastword.operations.table import REPAIR_PLAN, REPAIR_TOPIC

    if yes:
        done = session.backend.run(REPAIR_TOPIC, name)
        session.output.show(
            done, f"{name} has gone back to {done['chosen']}. The records in the WAL are sealed again later."
        )
        return
    plan = session.backend.run(REPAIR_PLAN, name)
    session.output.show(plan, *_repair_parts(plan))
    raise typer.Exit(1)


def _repair_parts(plan: dict[str, Any]) -> list[Any]:
    parts: list[Any] = [styled(f"The table of {plan['topic']} can't be read: {plan['problem']}", "red")]
    if plan["states"]:
        parts += [
            heading("Older states, newest first"),
            table(
                ["metadata file", "committed by", ""],
                [
                    (
                        each["metadata_location"].rpartition("/")[2],
                        each["operation"],
                        styled(each["problem"], "red") if each["problem"] else "usable",
                    )
                    for each in plan["states"]
                ],
            ),
        ]
    if plan["chosen"] is None:
        return [*parts, "None is usable. Restore the metadata file from a backup, or delete the topic."]
    if plan["lost"]:
        return [
            *parts,
            heading("Offsets that the newest usable state would lose"),
            table(
                [">partition", ">offsets"],
                [
                    (each["partition"], offsets(each["first_offset"], each["end_offset"]))
                    for each in plan["lost"]
                ],
            ),
            "So the repair is refused. Restore the metadata file from a backup, or delete the topic.",
        ]
    way_out = (
        f"`lastword topic repair {plan['topic']} --yes` goes back to the newest usable state. No record is lost. "
        f"Later changes of settings and deletions of records are undone."
    )
    return [*parts, way_out]


@command(
    app,
    "seal",
    examples=["lastword topic seal users", "lastword topic seal users --json"],
    shown=["lastword.maintenance.tiering"],
)
def seal(session: Session, name: TopicArgument) -> None:
    """Seal all records that are only in the WAL.

    They are committed as sealed segments, without those that others of them supersede (compaction.at.seal). The exit code is 1 if a partition could not be sealed; the others still are.
    """
    from lastword.operations.table import SEAL

    with session.output.stages({"seal": (f"Sealing {name}", "bytes")}) as progress:
        report = session.backend.run(SEAL, name, progress=progress)
    session.output.show(report, *_sealed_parts(report))
    if report["problems"]:
        raise typer.Exit(1)


def _sealed_parts(report: dict[str, Any]) -> list[Any]:
    topic, segments = report["topic"], report["segments"]
    parts: list[Any] = []
    if segments:
        parts += [
            f"Sealed {count(report['records'] + report['beaten'], 'record')} of {topic} in {report['duration_s']:.1f} s"
            + (f", {report['beaten']:,} of them superseded and left out:" if report["beaten"] else ":"),
            table(
                [">partition", ">offsets", ">records", ">size"],
                [
                    (
                        each["partition"],
                        offsets(each["first_offset"], each["last_offset"] + 1),
                        each["records"],
                        size(each["size_bytes"]),
                    )
                    for each in segments
                ],
                total=("all", "", report["records"], size(report["size_bytes"]))
                if len(segments) > 1
                else None,
            ),
        ]
    elif report["wal_files"]:
        parts.append(f"The WAL of {topic} had only records below the log start; there was nothing to seal.")
    elif not report["problems"]:
        parts.append(f"Everything in {topic} is already sealed.")
    if report["problems"]:
        parts += [
            heading("Not sealed") if parts else f"Nothing of {topic} was sealed.",
            table(
                [">partition", "problem"],
                [(each["partition"], styled(each["problem"], "red")) for each in report["problems"]],
            ),
        ]
    return parts


@command(
    app,
    "delete-records",
    examples=[
        "lastword topic delete-records users --partition 0 --before 1000",
        "lastword topic delete-records users --partition 0 --before -1",
    ],
)
def delete_records(
    session: Session,
    name: TopicArgument,
    partition: Annotated[int, option("--partition", "P", "The partition.")],
    before: Annotated[int, option("--before", "OFFSET", "The new log start; -1 deletes all records.")],
) -> None:
    """Delete the records of a partition before an offset. Reads no longer return them."""
    from lastword.operations.table import DELETE_RECORDS

    done = session.backend.run(DELETE_RECORDS, name, partition=partition, before=before)
    old_start, log_start = done["log_start_before"], done["log_start"]
    if log_start > old_start:
        said = f"Deleted offsets {offsets(old_start, log_start)} of {name} partition {partition}."
    else:
        said = f"There was nothing to delete: {name} partition {partition} starts at {log_start}."
    session.output.show(done, said)
