"""`lastword topic explain`: why each record stays or goes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli.options import Session, TopicArgument, command, option
from lastword.cli.output import offsets, styled, table
from lastword.cli.record_lines import EMPTY, NULL, TOMBSTONE, text
from lastword.errors import InvalidError
from lastword.operations.options import on_command_line, one_key
from lastword.record_json import bytes_of

if TYPE_CHECKING:
    from lastword.explain import Run

VALUE_WIDTH = 32
HIDDEN = "<deleted>"


def register(group: typer.Typer) -> None:
    command(
        group,
        "explain",
        examples=[
            "lastword topic explain users",
            "lastword topic explain users --key alice",
            "lastword topic explain users --partition 0 --from 1000 --limit 20",
            "lastword topic explain users --worker --json",
        ],
    )(explain)


def explain(
    session: Session,
    name: TopicArgument,
    partition: Annotated[int | None, option("--partition", "P", "Only this partition [all].")] = None,
    key: Annotated[str | None, option("--key", "KEY", "Only records of this key, as text.")] = None,
    key_base64: Annotated[
        str | None, option("--key-base64", "BASE64", "Only records of this key, in base64.")
    ] = None,
    from_offset: Annotated[
        int, typer.Option("--from", metavar="OFFSET", help="Start at this offset.", min=0)
    ] = 0,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", help="Show at most this many records.", min=1)
    ] = 100,
    worker: Annotated[
        bool,
        typer.Option(
            "--worker", help="Explain the worker's next round, which seals and compacts only what is due."
        ),
    ] = False,
    no_seal: Annotated[
        bool, typer.Option("--no-seal", help="Explain a run that does not seal the WAL first.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Explain `topic compact --force`, which compacts every partition.")
    ] = False,
) -> None:
    """Show why each record stays or goes in the next compaction.

    It also shows where each record is. The explained run is the one that `lastword topic compact` would make now: it
    seals the WAL first and compacts everything that is dirty. Nothing is locked or changed.
    """
    if worker and force:
        raise InvalidError("--worker and --force contradict each other; give one of them.")
    run: Run = "worker" if worker else "forced" if force else "asked for"
    from lastword.operations.table import EXPLAIN

    found = session.backend.run(
        EXPLAIN,
        name,
        partition=partition,
        key=one_key(None if key is None else os.fsencode(key), key_base64, on_command_line),
        from_offset=from_offset,
        limit=limit,
        run=run,
        seal=not no_seal,
    )
    for each in found["partitions"]:
        if each["problem"]:
            session.output.warn(f"partition {each['partition']} can't be shown completely: {each['problem']}")
    session.output.show(found, *_parts(found))


def _parts(found: dict[str, Any]) -> list[Any]:
    records = [(each["partition"], record) for each in found["partitions"] for record in each["records"]]
    parts: list[Any] = [
        f"There is no run in partition {each['partition']}: {each['not_due']}."
        for each in found["partitions"]
        if each["due"] is None
    ]
    if not records:
        return [*parts, "There are no such records."]
    parts.append(
        table(
            [">p", ">offset", "key", "value", "where", "next run", "why"],
            [
                (
                    partition,
                    record["offset"],
                    _shown(record, "key"),
                    _shown(record, "value"),
                    _where(record["place"]),
                    styled("goes", "red") if record["goes"] else styled("stays", "green"),
                    record["reason"],
                )
                for partition, record in records
            ],
        )
    )
    if following := found["next"]:
        parts.append(
            f"There are more: continue with --partition {following['partition']} --from {following['offset']}."
        )
    return parts


def _shown(record: dict[str, Any], name: str) -> Any:
    if record["is_hidden"]:
        return styled(HIDDEN, "dim")
    data = bytes_of(record, name)
    shown = text(data, str, null=TOMBSTONE if record["is_tombstone"] and name == "value" else NULL)
    if len(shown) > VALUE_WIDTH:
        return f"{shown[: VALUE_WIDTH - 1]}…"
    return styled(shown, "dim") if shown in (TOMBSTONE, NULL, EMPTY) else shown


def _where(place: dict[str, Any]) -> str:
    kind = place["kind"].replace("wal", "WAL")
    if place["kind"].startswith("wal"):
        return f"{kind}, {place['file']}"
    return f"{kind}, {offsets(place['first_offset'], place['last_offset'] + 1)}"
