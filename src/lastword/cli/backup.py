"""`lastword backup` and `lastword restore`: back up the whole log, and make a new log from a backup."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lastword.cli.options import Session, argument, command, group, option
from lastword.cli.output import count, facts, heading, size, styled, table
from lastword.errors import InvalidError

PropertyOption = Annotated[
    list[str] | None,
    option(
        "--property",
        "KEY=VALUE",
        "A property of the object store, as under `catalog:` in the settings; can be repeated.",
    ),
]


class _Group(TyperGroup):
    """Reads `lastword backup TO` as `lastword backup create TO`, with options before or after TO."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Also without arguments: a cron job whose variable for TO is not set must not end with 0.
        if not {*self.commands, *self.get_help_option_names(ctx)} & {*args}:
            args = ["create", *args]
        return super().parse_args(ctx, args)


app = group(
    "backup",
    help="Back up the whole log, in use or not: `lastword backup TO`.",
    examples=[
        "lastword backup /mnt/backups/log",
        "lastword backup s3://backups/log --keep 7",
        "lastword backup list s3://backups/log",
    ],
)
app.info.cls = _Group


def register(root: typer.Typer) -> None:
    root.add_typer(app)
    command(
        root,
        "restore",
        examples=[
            "lastword restore /mnt/backups/log --data ./restored",
            "lastword restore s3://backups/log --data ./restored --warehouse s3://lake/restored",
            "lastword restore /mnt/backups/log --data ./restored --backup 20250101T000000000-0123abcd",
        ],
    )(restore)


@command(
    app,
    "create",
    examples=[
        "lastword backup create /mnt/backups/log",
        "lastword backup create s3://backups/log --keep 7",
        "lastword backup create s3://backups/log --property s3.endpoint=http://127.0.0.1:9000",
    ],
    shown=["lastword.maintenance.backup.make"],
)
def create(
    session: Session,
    to: Annotated[str, argument("TO", "A folder, or s3://bucket/path.")],
    keep: Annotated[
        int | None, option("--keep", "N", "Keep the newest N backups there, and remove older ones.", min=1)
    ] = None,
    properties: PropertyOption = None,
) -> None:
    """Back up the whole log. The word `create` can be left out.

    The backup is consistent, and the log can stay in use. Files that are already there are not copied again. The exit
    code is 1 if a topic could not be copied; the other topics still are.
    """
    from lastword.operations.table import BACKUP

    with session.output.stages({"backup": (f"Backing up to {to}", "bytes")}) as progress:
        report = session.backend.run(
            BACKUP, _whole(to), keep=keep, properties=_properties(properties), progress=progress
        )
    session.output.show(report, *_backup_parts(report))
    if report["problems"]:
        raise typer.Exit(1)


@command(
    app,
    "list",
    examples=["lastword backup list /mnt/backups/log", "lastword backup list s3://backups/log --json"],
)
def list_backups(
    session: Session,
    place: Annotated[str, argument("TO", "The folder or address of the backups.")],
    properties: PropertyOption = None,
) -> None:
    """List the backups in a folder or at an address, oldest first."""
    from lastword.operations import backups

    found = backups.list_backups(_whole(place), properties=_known(session) | _properties(properties))
    session.output.show(found, *_list_parts(found))
    if found["problems"]:
        raise typer.Exit(1)


def restore(
    session: Session,
    source: Annotated[str, argument("FROM", "The folder or address of the backups.")],
    backup: Annotated[str | None, option("--backup", "ID", "The backup to restore [newest].")] = None,
    warehouse: Annotated[
        str | None, option("--warehouse", "PLACE", "Where to put sealed segments [in the data folder].")
    ] = None,
    properties: PropertyOption = None,
) -> None:
    """Restore a backup to a new data folder.

    It can be at another path or on another host. It must be empty, or hold an unfinished restore of the same backup,
    which resumes. It shares nothing with the original: it has its own catalog and warehouse.
    """
    from lastword.operations import backups

    folder = session.data_folder
    with session.output.stages({"restore": (f"Restoring to {folder}", "bytes")}) as progress:
        report = backups.restore_backup(
            _whole(source),
            folder,
            backup=backup,
            warehouse=None if warehouse is None else _whole(warehouse),
            config=session.config,
            properties=_properties(properties),
            progress=progress,
        )
    session.output.show(report, *_restore_parts(report))


def _whole(place: str) -> str:
    """Make a path absolute, so that the server's process finds it, too."""
    if not place.strip():
        # Otherwise it would be the current folder.
        raise InvalidError(
            "The name of the place is empty. Name a folder, or an address such as s3://bucket/path."
        )
    return place if "://" in place else str(Path(place).absolute())


def _properties(given: Sequence[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in given or ():
        key, equals, value = each.partition("=")
        if not equals or not key:
            # The message leaves out the value, which may be a secret.
            raise InvalidError(f"--property {key!r} must be KEY=VALUE, such as s3.region=us-east-1.")
        found[key] = value
    return found


def _known(session: Session) -> dict[str, str]:
    """Return the properties of the object store in the settings of the data folder, if there is one."""
    from lastword.config import BrokerConfig
    from lastword.folder.paths import CONFIG_FILE
    from lastword.segments.fileio import io_properties

    own = session.data_folder / CONFIG_FILE
    return io_properties(BrokerConfig.load(session.config or (own if own.exists() else None)).catalog)


def _backup_parts(report: dict[str, Any]) -> list[Any]:
    parts: list[Any] = [
        f"Made the backup {report['backup']} in {report['place']}.",
        facts(
            [
                ("topics", f"{len(report['topics']):,}"),
                ("size", size(report["size_bytes"]) or "0 B"),
                ("copied", f"{count(report['copied_files'], 'file')}, {size(report['copied_bytes'])}"),
                ("already there", count(report["reused_files"], "file")),
                (
                    "removed",
                    f"{count(len(report['removed_backups']), 'backup')}, {count(report['removed_files'], 'file')}",
                ),
                ("took", f"{report['duration_s']:.1f} s"),
            ]
        ),
    ]
    return [*parts, *_problem_parts(report["problems"])]


def _list_parts(found: dict[str, Any]) -> list[Any]:
    if not found["backups"] and not found["problems"]:
        return [f"There are no backups in {found['place']}."]
    rows = [
        (
            each["backup"],
            datetime.fromtimestamp(each["made_ms"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            len(each["topics"]),
            size(each["size_bytes"]),
            f"{each['host']}:{each['folder']}",
            "; ".join(each["problems"]) or None,
        )
        for each in found["backups"]
    ]
    shown: list[Any] = (
        [table(["backup", "made", ">topics", ">size", "source", "missing"], rows)] if rows else []
    )
    return [*shown, *_problem_parts(found["problems"])]


def _restore_parts(report: dict[str, Any]) -> list[Any]:
    rows = [
        (each["topic"], len(each["partitions"]), size(each["sealed_bytes"]), size(each["wal_bytes"]))
        for each in report["topics"]
    ]
    return [
        f"Restored the backup {report['backup']} to {report['data']}.",
        table(["topic", ">partitions", ">sealed", ">WAL"], rows),
        f"Sealed segments are in {report['warehouse']}.",
        *_problem_parts(report["problems"]),
    ]


def _problem_parts(problems: Sequence[str]) -> list[Any]:
    return [heading("Missing"), *(styled(each, "red") for each in problems)] if problems else []
