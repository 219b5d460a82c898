"""`lastword wal`: what is in the write-ahead logs, and the way out when one is damaged."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli.options import Session, TopicArgument, YesOption, command, group
from lastword.cli.output import age, count, facts, heading, offsets, size, styled, table

if TYPE_CHECKING:
    from lastword.topic import Topic
    from lastword.wal.deleter import LocalFile, LocalWal
    from lastword.wal.repair import DamagedRange

app = group(
    "wal",
    help="Look into the write-ahead logs, and repair them.",
    examples=["lastword wal show users", "lastword wal repair users"],
)


# ------------------------------------------------------------------------------------------------- show


@command(app, "show", examples=["lastword wal show", "lastword wal show users --json"])
def show(
    session: Session,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The topic; without one, all.", show_default=False)
    ] = None,
) -> None:
    """Show the WAL files of each partition, what is kept aside, and known damage."""
    now_ms = time.time_ns() // 1_000_000
    with session.read() as log:
        found = [_look(log.topic(each), now_ms) for each in ([name] if name is not None else log.topics())]
    if not found:
        session.output.show(found, f"There are no topics in {session.data_folder}.")
        return
    parts: list[Any] = []
    for index, each in enumerate(found):
        parts += [*([""] if index else []), *_topic_parts(each)]
    session.output.show(found, *parts)


def _look(topic: Topic, now_ms: int) -> dict[str, Any]:
    extents = topic.extents()
    return {
        "topic": topic.name,
        "partitions": [
            _look_at_partition(wal, extents[wal.partition].log_end, now_ms) for wal in topic.local_wals()
        ],
    }


def _look_at_partition(wal: LocalWal, log_end: int, now_ms: int) -> dict[str, Any]:
    from lastword.wal import checkpoint as checkpoints
    from lastword.wal.files import ASIDE_FOLDER, file_name

    saved = checkpoints.load_writer(wal.folder)
    opened_ms = {file.seq: file.opened_ms for file in saved.files} if saved else {}
    aside = wal.folder / ASIDE_FOLDER
    return {
        "partition": wal.partition,
        "folder": str(wal.folder),
        "sealed_end": wal.sealed_end,
        "log_end": log_end,
        "size_bytes": wal.size_bytes,
        "files": [
            {
                "seq": file.seq,
                "file": file_name(file.seq),
                "first_offset": file.first_offset,
                "end_offset": file.end_offset if file.end_offset is not None else log_end,
                "size_bytes": file.size_bytes,
                "age_ms": now_ms - (file.rolled_ms or opened_ms.get(file.seq, now_ms)),
                "state": _state(file, wal.sealed_end),
            }
            for file in wal.files
        ],
        "aside": [
            {"file": path.name, "size_bytes": path.stat().st_size}
            for path in (sorted(aside.iterdir()) if aside.exists() else [])
        ],
        "damage": [asdict(each) for each in saved.damage] if saved else [],
    }


def _state(file: LocalFile, sealed_end: int) -> str:
    if file.size_bytes is None:
        return "gone"
    if file.end_offset is None:
        return "active"
    if file.end_offset <= sealed_end:
        return "sealed"
    return "partly sealed" if file.first_offset < sealed_end else "not sealed"


def _file_offsets(file: dict[str, Any]) -> str:
    if file["end_offset"] <= file["first_offset"]:
        return f"{file['first_offset']} is next" if file["state"] == "active" else "none"
    return offsets(file["first_offset"], file["end_offset"])


_STYLES = {"gone": "bold red", "active": "green", "not sealed": "yellow", "partly sealed": "yellow"}


def _topic_parts(found: dict[str, Any]) -> list[Any]:
    partitions = found["partitions"]
    files = [(each["partition"], file) for each in partitions for file in each["files"]]
    aside = [(each, file) for each in partitions for file in each["aside"]]
    damage = [(each["partition"], damaged) for each in partitions for damaged in each["damage"]]
    if not partitions:
        return [f"{found['topic']} has no WAL yet: nothing was ever appended here."]
    total = size(sum(each["size_bytes"] for each in partitions))
    parts: list[Any] = [
        styled(f"{found['topic']}: {count(len(files), 'WAL file')}, {total}", "bold"),
        f"in {Path(partitions[0]['folder']).parent}",
        table(
            [">partition", "file", ">offsets", ">size", ">age", "state"],
            [
                (
                    partition,
                    file["file"],
                    _file_offsets(file),
                    size(file["size_bytes"]),
                    age(file["age_ms"]),
                    styled(file["state"], _STYLES.get(file["state"], "dim")),
                )
                for partition, file in files
            ],
        ),
    ]
    if aside:
        parts += [
            heading("Kept aside, for people to look at"),
            table(
                [">partition", "file", ">size"],
                [
                    (each["partition"], f"aside/{file['file']}", size(file["size_bytes"]))
                    for each, file in aside
                ],
            ),
        ]
    if damage:
        parts += [
            heading("Damaged"),
            table(
                [">partition", ">file", ">from byte", ">offsets"],
                [
                    (
                        partition,
                        each["seq"],
                        each["position"],
                        offsets(each["first_offset"], each["end_offset"]),
                    )
                    for partition, each in damage
                ],
            ),
            f"`lastword wal repair {found['topic']}` shows what can be kept.",
        ]
    return parts


# ----------------------------------------------------------------------------------------------- repair


@command(
    app,
    "repair",
    examples=[
        "lastword wal repair users",
        "lastword wal repair users --skip",
        "lastword wal repair users --skip --yes",
    ],
    shown=["lastword.wal.repair"],
)
def repair(
    session: Session,
    name: TopicArgument,
    skip: Annotated[
        bool,
        typer.Option("--skip", help="Leave the damaged ranges behind; the rest can then be read and sealed."),
    ] = False,
    yes: YesOption = False,
) -> None:
    """Show the damaged ranges of a topic's WAL; with --skip, leave them behind.

    Without --skip nothing is changed, and the exit code is 1 if there is damage. The damaged files are kept aside.
    """
    with session.read() as log:
        found = log.topic(name).wal_damage()
    if not found:
        session.output.show(_data(name, found, skipped=False), f"The WAL of {name} is not damaged.")
        return
    if not skip:
        session.output.show(_data(name, found, skipped=False), *_range_parts(name, found))
        raise typer.Exit(1)
    lost = sum(each.end_offset - each.first_offset for _, each in found)
    if not yes and not session.output.json:
        session.output.show(None, *_range_parts(name, found))
    question = (
        f"Leave {count(len(found), 'damaged range')} with {count(lost, 'offset')} of {name} behind, for ever?"
    )
    if not session.confirm(question, yes=yes):
        session.output.show(_data(name, found, skipped=False), "Nothing was changed.")
        raise typer.Exit(1)
    with session.write() as log:
        skipped = log.topic(name).skip_wal_damage()
    session.output.show(
        _data(name, skipped, skipped=True),
        table(_COLUMNS, [_row(partition, each) for partition, each in skipped]),
        f"Left {count(len(skipped), 'damaged range')} behind. The damaged files are kept in aside/ for a week.",
    )


_COLUMNS = [">partition", "file", ">bytes", ">offsets"]


def _range_parts(name: str, found: list[tuple[int, DamagedRange]]) -> list[Any]:
    parts: list[Any] = [styled(f"The WAL of {name} has {count(len(found), 'damaged range')}:", "bold")]
    for partition, each in found:
        parts += [
            "",
            facts(
                [
                    ("partition", str(partition)),
                    ("file", str(each.path)),
                    ("bytes", "none: a whole file is missing" if each.is_hole else _bytes(each)),
                    ("offsets", offsets(each.first_offset, each.end_offset)),
                    ("problem", styled(each.problem.partition(" `lastword wal repair`")[0], "red")),
                ]
            ),
        ]
    return [*parts, "", f"`lastword wal repair {name} --skip` leaves them behind; what is around them stays."]


def _row(partition: int, damaged: DamagedRange) -> tuple[object, ...]:
    return partition, damaged.path.name, _bytes(damaged), offsets(damaged.first_offset, damaged.end_offset)


def _bytes(damaged: DamagedRange) -> str:
    return offsets(damaged.position, damaged.end_position)


def _data(name: str, found: list[tuple[int, DamagedRange]], *, skipped: bool) -> dict[str, Any]:
    return {
        "topic": name,
        "skipped": skipped,
        "damage": [
            {"partition": partition, **asdict(each), "path": str(each.path)} for partition, each in found
        ],
    }
