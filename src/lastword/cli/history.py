"""`lastword topic history`: the snapshots that are kept, and what each did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from lastword.cli.options import Session, TopicArgument, command
from lastword.cli.output import size, table
from lastword.cli.record_lines import time_text

if TYPE_CHECKING:
    from lastword.segments.table import Snapshot


def register(group: typer.Typer) -> None:
    command(
        group,
        "history",
        examples=["lastword topic history users", "lastword topic history users --json"],
    )(history)


def history(session: Session, name: TopicArgument) -> None:
    """List the snapshots of a topic that are kept, oldest first, and what each did.

    The offsets of all partitions are added up; --json has them by partition. `consume --as-of snapshot:ID` reads
    one, `verify` compares two.
    """
    with session.read() as log:
        found = log.topic(name).history()
    session.output.show(
        {"topic": name, "snapshots": [_data(each) for each in found]},
        table(
            ["snapshot", "operation", ">first\ndirty", ">sealed\nend", "what it did"],
            [
                (
                    f"{each.id}\n{time_text(each.committed_ms)}",
                    each.operation,
                    sum(at.first_dirty for at in each.positions),
                    sum(at.sealed_end for at in each.positions),
                    _what(each) or None,
                )
                for each in found
            ],
        ),
    )


def _what(snapshot: Snapshot) -> str:
    if snapshot.operation == "delete-records":
        return ", ".join(
            f"log start of partition {partition}: {offset}" for partition, offset in snapshot.details.items()
        )
    return ", ".join(f"{name}: {_amount(name, text)}" for name, text in snapshot.details.items())


def _amount(name: str, text: str) -> str:
    if name != "bytes":
        return text
    return " -> ".join(size(int(each)) or "" if each.isdigit() else each for each in text.split(" -> "))


def _data(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "snapshot_id": snapshot.id,
        "parent_id": snapshot.parent_id,
        "committed_ms": snapshot.committed_ms,
        "operation": snapshot.operation,
        "details": dict(snapshot.details),
        "partitions": [
            {
                "partition": partition,
                "log_start": at.log_start,
                "first_dirty": at.first_dirty,
                "sealed_end": at.sealed_end,
            }
            for partition, at in enumerate(snapshot.positions)
        ],
    }
