"""`lastword topic history`: the retained snapshots, and what each changed."""

from __future__ import annotations

from typing import Any

import typer

from lastword.cli.options import Session, TopicArgument, command
from lastword.cli.output import size, table
from lastword.cli.record_lines import time_text


def register(group: typer.Typer) -> None:
    command(
        group,
        "history",
        examples=["lastword topic history users", "lastword topic history users --json"],
    )(history)


def history(session: Session, name: TopicArgument) -> None:
    """List the retained snapshots of a topic, oldest first.

    It shows what each one changed. Offsets are summed over all partitions; --json has them by partition. `consume
    --as-of snapshot:ID` reads a snapshot, `verify` compares two.
    """
    from lastword.operations.table import HISTORY

    found = session.backend.run(HISTORY, name)
    session.output.show(
        found,
        table(
            ["snapshot", "operation", ">first\ndirty", ">sealed\nend", "what it did"],
            [
                (
                    f"{each['snapshot_id']}\n{time_text(each['committed_ms'])}",
                    each["operation"],
                    sum(at["first_dirty"] for at in each["partitions"]),
                    sum(at["sealed_end"] for at in each["partitions"]),
                    _what(each) or None,
                )
                for each in found["snapshots"]
            ],
        ),
    )


def _what(snapshot: dict[str, Any]) -> str:
    details = snapshot["details"].items()
    if snapshot["operation"] == "delete-records":
        return ", ".join(f"log start of partition {partition}: {offset}" for partition, offset in details)
    # The job that it belongs to is for `lastword verify`.
    return ", ".join(f"{name}: {_amount(name, text)}" for name, text in details if name != "job")


def _amount(name: str, text: str) -> str:
    if name != "bytes":
        return text
    return " -> ".join(size(int(each)) or "" if each.isdigit() else each for each in text.split(" -> "))
