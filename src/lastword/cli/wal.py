"""`lastword wal`: show the write-ahead logs, export records that only they have, and repair damaged ones."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from lastword.cli.options import Session, TopicArgument, YesOption, argument, command, group, option
from lastword.cli.output import age, count, facts, heading, offsets, size, styled, table
from lastword.cli.record_lines import json_line
from lastword.errors import CorruptError, InvalidError

app = group(
    "wal",
    help="Show, export and repair the write-ahead logs.",
    examples=["lastword wal show users", "lastword wal repair users", "lastword wal export users"],
)


# ------------------------------------------------------------------------------------------------- show


@command(app, "show", examples=["lastword wal show", "lastword wal show users --json"])
def show(
    session: Session,
    name: Annotated[str | None, argument("NAME", "The topic [all].")] = None,
) -> None:
    """Show WAL files by partition, files kept aside, and known damage."""
    from lastword.operations.table import SHOW_WAL

    found = session.backend.run(SHOW_WAL, name)
    if not found:
        session.output.show(found, f"There are no topics in {session.data_folder}.")
        return
    parts: list[Any] = []
    for index, each in enumerate(found):
        parts += [*([""] if index else []), *_topic_parts(each)]
    session.output.show(found, *parts)


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
    if found["problem"]:
        return [styled(f"{found['topic']}: {found['problem']}", "red")]
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
            heading("Kept aside for inspection"),
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


# ----------------------------------------------------------------------------------------------- export


@command(
    app,
    "export",
    examples=[
        "lastword wal export users > rescued.jsonl",
        "lastword wal export users --from-offset 0 --file everything.jsonl",
        "lastword wal export users --data old-folder | lastword produce users --jsonl",
    ],
)
def export(
    session: Session,
    name: TopicArgument,
    from_offset: Annotated[
        int | None,
        option(
            "--from-offset",
            "N",
            "Start at this offset, sealed or not [only unsealed records]. Needs no catalog.",
            min=0,
        ),
    ] = None,
    file: Annotated[
        Path | None, option("--file", "FILE", "Write to this new file instead of standard output.")
    ] = None,
) -> None:
    """Print the records that only this data folder's WAL has.

    They are printed as JSON lines for `lastword produce --jsonl`. This also works for a topic that another folder has
    taken over: it prints the records that this folder acknowledged but had not sealed. Nothing is locked or changed. The
    exit code is 1 if some records are damaged.
    """
    from lastword.clock import SystemClock
    from lastword.maintenance.rescue import local_records
    from lastword.segments.storage import Storage, check_folder, load_config

    folder = session.data_folder.absolute()
    check_folder(folder, create=False)
    storage = Storage.of(folder, load_config(folder, session.config))
    wals = local_records(storage, name, SystemClock(), from_offset=from_offset)
    written, problems = 0, []
    with _output(file) as lines:
        for wal in wals:
            try:
                for record in wal.read():
                    lines.write(json_line(record) + "\n")
                    written += 1
            except CorruptError as error:
                problems.append(f"partition {wal.partition}: {error}")
    for problem in problems:
        session.output.warn(problem)
    if file is not None:
        session.output.show(
            {"topic": name, "records": written, "file": str(file), "problems": problems},
            f"Wrote {count(written, 'record')} of {name} to {file}.",
        )
    if problems:
        raise typer.Exit(1)


@contextmanager
def _output(file: Path | None) -> Iterator[TextIO]:
    if file is None:
        yield sys.stdout
        return
    try:
        with file.open("x", encoding="utf-8") as lines:
            yield lines
    except FileExistsError:
        raise InvalidError(f"{file} already exists; name a new file.") from None


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
        typer.Option("--skip", help="Skip the damaged ranges, so that the rest can be read and sealed."),
    ] = False,
    yes: YesOption = False,
) -> None:
    """Show the damaged ranges of a topic's WAL, or skip them.

    With --skip they are skipped permanently, and the damaged files are kept aside. Without --skip nothing is changed,
    and the exit code is 1 if there is damage.
    """
    from lastword.operations.table import SKIP_DAMAGE, WAL_DAMAGE

    backend = session.backend
    found = backend.run(WAL_DAMAGE, name)
    damage = found["damage"]
    if not damage:
        session.output.show(found, f"The WAL of {name} is not damaged.")
        return
    if not skip:
        session.output.show(found, *_range_parts(name, damage))
        raise typer.Exit(1)
    lost = sum(each["end_offset"] - each["first_offset"] for each in damage)
    if not yes and not session.output.json:
        session.output.show(None, *_range_parts(name, damage))
    question = (
        f"Permanently skip {count(len(damage), 'damaged range')} with {count(lost, 'offset')} of {name}?"
    )
    if not session.confirm(question, yes=yes):
        session.output.show(found, "Nothing was changed.")
        raise typer.Exit(1)
    skipped = backend.run(SKIP_DAMAGE, name)
    session.output.show(
        skipped,
        table(_COLUMNS, [_row(each) for each in skipped["damage"]]),
        f"Skipped {count(len(skipped['damage']), 'damaged range')}. "
        f"The damaged files are kept in aside/ for a week.",
    )


_COLUMNS = [">partition", "file", ">bytes", ">offsets"]


def _range_parts(name: str, damage: list[dict[str, Any]]) -> list[Any]:
    parts: list[Any] = [styled(f"The WAL of {name} has {count(len(damage), 'damaged range')}:", "bold")]
    for each in damage:
        parts += [
            "",
            facts(
                [
                    ("partition", str(each["partition"])),
                    ("file", each["path"]),
                    ("bytes", "none: a whole file is missing" if each["is_hole"] else _bytes(each)),
                    ("offsets", offsets(each["first_offset"], each["end_offset"])),
                    ("problem", styled(each["problem"].partition(" `lastword wal repair`")[0], "red")),
                ]
            ),
        ]
    return [*parts, "", f"`lastword wal repair {name} --skip` skips them; the records around them stay."]


def _row(damaged: dict[str, Any]) -> tuple[object, ...]:
    return (
        damaged["partition"],
        Path(damaged["path"]).name,
        _bytes(damaged),
        offsets(damaged["first_offset"], damaged["end_offset"]),
    )


def _bytes(damaged: dict[str, Any]) -> str:
    return offsets(damaged["position"], damaged["end_position"])
