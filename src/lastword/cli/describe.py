"""`lastword topic describe`: a topic's offsets, storage, compaction, settings, readers and problems."""

from __future__ import annotations

import time
from typing import Any

import typer

from lastword.cli.options import Session, TopicArgument, command
from lastword.cli.output import age, facts, heading, size, styled, table


def register(group: typer.Typer) -> None:
    command(
        group,
        "describe",
        examples=["lastword topic describe users", "lastword topic describe users --json"],
    )(describe)


def describe(session: Session, name: TopicArgument) -> None:
    """Show a topic's offsets, storage, settings and problems.

    It also shows compaction and named readers. The exit code is 1 if the topic's table can't be read.
    """
    from lastword.operations.table import DESCRIBE_TOPIC

    found = session.backend.run(DESCRIBE_TOPIC, name)
    if found["state"] == "unreadable":
        session.output.show(found, *_unreadable_parts(found))
        raise typer.Exit(1)
    if found["estimate_problem"] is not None:
        session.output.warn(f"garbage can't be estimated: {found['estimate_problem']}")
    session.output.show(found, *_description_parts(found), *_failing_parts(found["failing_compactions"]))


def _unreadable_parts(found: dict[str, Any]) -> list[Any]:
    name = found["topic"]
    return [
        facts(
            [
                ("topic", name),
                ("id", found["id"]),
                ("state", styled("unreadable", "bold red")),
                ("sealed in", found["location"]),
                ("WAL in", found["wal_folder"]),
            ]
        ),
        heading("Problem"),
        styled(found["problem"], "red"),
        _way_out(name),
    ]


def _way_out(name: str) -> str:
    return (
        f"`lastword topic repair {name}` shows which older states of its table can be used; "
        f"`lastword topic delete {name}` deletes the topic."
    )


def _description_parts(found: dict[str, Any]) -> list[Any]:
    given = [each for each in found["settings"] if each["source"] != "default"]
    parts: list[Any] = [
        facts(
            [
                ("topic", found["topic"]),
                ("id", found["id"]),
                ("cleanup.policy", found["cleanup_policy"]),
                ("partitions", str(len(found["partitions"]))),
                ("sealed in", found["location"]),
                *(
                    [("WAL in", found["wal_folder"])]
                    if found["foreign"] is None
                    else [("owner", styled(found["foreign"], "yellow"))]
                ),
                ("worker", found["worker"] or "none is running"),
            ]
        ),
        heading("Offsets"),
        table(
            [">partition", ">log start", ">first dirty", ">sealed end", ">log end", ">leader epoch", ""],
            [
                (
                    each["partition"],
                    each["log_start"],
                    each["first_dirty"],
                    each["sealed_end"],
                    each["log_end"],
                    each["leader_epoch"],
                    styled("PROBLEM, see below", "bold red") if each["problem"] else "",
                )
                for each in found["partitions"]
            ],
        ),
        heading("Storage"),
        _storage_table(found["partitions"]),
        *_compaction_parts(found["partitions"]),
        heading("Settings"),
    ]
    if given:
        parts.append(table(["setting", "value", "from"], [_setting_row(each) for each in given]))
    parts.append(
        f"{'Other settings' if given else 'All settings'} have their defaults: "
        f"`lastword config show --topic {found['topic']}`"
    )
    if found["readers"]:
        parts += [
            heading("Named readers"),
            table(
                ["reader", ">records behind"],
                [(name, reader["behind"]) for name, reader in found["readers"].items()],
            ),
        ]
    if problems := [each for each in found["partitions"] if each["problem"]]:
        parts += [
            heading("Problems"),
            table(
                [">partition", "problem"],
                [(each["partition"], styled(each["problem"], "red")) for each in problems],
            ),
        ]
    return parts


def _storage_table(partitions: list[dict[str, Any]]) -> Any:
    numbers = (
        ("segments", None),
        ("sealed_records", None),
        ("sealed_bytes", size),
        ("unsealed_records", None),
        ("wal_files", None),
        ("wal_bytes", size),
    )

    def cells(own: list[dict[str, Any]]) -> list[object]:
        sums = [(sum(each[name] for each in own), shown) for name, shown in numbers]
        return [number if shown is None else shown(number) for number, shown in sums]

    columns = [
        ">\npartition",
        ">\nsegments",
        ">sealed\nrecords",
        ">sealed\nsize",
        ">unsealed\nrecords",
        ">WAL\nfiles",
        ">WAL\nsize",
    ]
    return table(
        columns,
        [(each["partition"], *cells([each])) for each in partitions],
        total=("all", *cells(partitions)) if len(partitions) > 1 else None,
    )


def _compaction_parts(partitions: list[dict[str, Any]]) -> list[Any]:
    """Return how dirty each partition is, its last run and which are due; nothing if compaction doesn't concern it."""
    if not any(each["dirty_ratio"] is not None or each["due"] or each["last_run"] for each in partitions):
        return []
    now_ms = time.time_ns() // 1_000_000
    columns = [
        ">\npartition",
        ">dirty\nratio",
        ">garbage\n(est.)",
        ">\n",
        ">last\ncompacted",
        ">\ntook",
        ">\nreclaimed",
        "\n",
    ]
    parts: list[Any] = [
        heading("Compaction"),
        table(columns, [_compaction_row(each, now_ms) for each in partitions]),
    ]
    for reason in dict.fromkeys(each["due"] for each in partitions if each["due"]):
        which = ", ".join(str(each["partition"]) for each in partitions if each["due"] == reason)
        parts.append(f"Due because of {reason}: partition {which}.")
    return parts


def _compaction_row(partition: dict[str, Any], now_ms: int) -> tuple[object, ...]:
    # A clean partition has no garbage, whatever an estimate says.
    garbage = partition["estimate"] if partition["first_dirty"] < partition["sealed_end"] else None
    last = partition["last_run"]
    return (
        partition["partition"],
        None if partition["dirty_ratio"] is None else f"{partition['dirty_ratio']:.2f}",
        None if garbage is None else garbage["garbage_records"],
        None if garbage is None else size(garbage["reclaimed_bytes"]),
        None if last is None else f"{age(now_ms - last['time_ms'])} ago",
        None if last is None else f"{last['duration_ms'] / 1000:.1f} s",
        None if last is None else size(max(0, last["reclaimed_bytes"])),
        styled("due", "bold yellow") if partition["due"] else "",
    )


def _failing_parts(failing: list[dict[str, Any]]) -> list[Any]:
    if not failing:
        return []
    now_ms = time.time_ns() // 1_000_000
    return [
        heading("Compaction keeps failing"),
        table(
            [">partition", ">times", ">next try in", "problem"],
            [
                (
                    "all" if each["partition"] is None else each["partition"],
                    each["failures"],
                    age(each["retry_ms"] - now_ms),
                    styled(each["message"], "red"),
                )
                for each in failing
            ],
        ),
    ]


def _setting_row(setting: dict[str, Any]) -> tuple[str, str, str]:
    where = " ".join(filter(None, (setting["source"], setting["where"])))
    return setting["key"], setting["value"] or "not set", where
