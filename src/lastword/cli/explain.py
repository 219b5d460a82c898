"""`lastword topic explain`: why each record stays or goes."""

from __future__ import annotations

import base64
import binascii
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lastword.cli.options import Session, TopicArgument, command
from lastword.cli.output import offsets, styled, table
from lastword.cli.record_lines import EMPTY, NULL, TOMBSTONE, text
from lastword.errors import InvalidError
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
    partition: Annotated[
        int | None,
        typer.Option("--partition", metavar="P", help="Only this partition [all].", show_default=False),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="KEY", help="Only records of this key, as text.", show_default=False),
    ] = None,
    key_base64: Annotated[
        str | None,
        typer.Option(
            "--key-base64", metavar="BASE64", help="Only records of this key, in base64.", show_default=False
        ),
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
    from lastword.operations.explaining import explain as explained

    with session.read() as log:
        found = explained(
            log,
            name,
            partition=partition,
            key=_key(key, key_base64),
            from_offset=from_offset,
            limit=limit,
            run=run,
            seal=not no_seal,
        )
    for each in found["partitions"]:
        if each["problem"]:
            session.output.warn(f"partition {each['partition']} can't be shown completely: {each['problem']}")
    session.output.show(found, *_parts(found))


def _key(given: str | None, encoded: str | None) -> bytes | None:
    if given is not None and encoded is not None:
        raise InvalidError("--key and --key-base64 name two keys; give one of them.")
    if encoded is None:
        return None if given is None else os.fsencode(given)
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidError(f"--key-base64 {encoded!r} is not base64: {error}") from None


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
