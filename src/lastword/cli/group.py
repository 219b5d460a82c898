"""`lastword group`: consumer groups of Kafka clients, and how far they are behind."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from lastword.cli.options import Session, YesOption, argument, command, group
from lastword.cli.output import age, count, facts, heading, table

NameArgument = Annotated[str, argument("NAME", "The group.")]

app = group(
    "group",
    help="Show and delete consumer groups.",
    examples=["lastword group list", "lastword group describe billing"],
)


@command(app, "list", examples=["lastword group list", "lastword group list --json"])
def list_groups(session: Session) -> None:
    """List the consumer groups, and how far each is behind.

    Behind is the number of offsets, summed over all partitions of a group.
    """
    from lastword.operations.table import LIST_GROUPS

    found = session.backend.run(LIST_GROUPS)
    if not found:
        session.output.show(found, "There are no consumer groups.")
        return
    session.output.show(
        found,
        table(
            ["group", "state", ">members", ">behind", "topics"],
            [
                (
                    each["group"],
                    each["state"],
                    each["members"],
                    each["behind"],
                    ", ".join(each["topics"]) or None,
                )
                for each in found
            ],
        ),
    )


@command(
    app, "describe", examples=["lastword group describe billing", "lastword group describe billing --json"]
)
def describe(session: Session, name: NameArgument) -> None:
    """Show a group's members, committed offsets and lag.

    Behind, the lag in a partition, is the log end minus the committed offset. It includes offsets whose records
    compaction has removed. Without a server, the members are those at the time the server stopped.
    """
    from lastword.operations.table import DESCRIBE_GROUP

    found = session.backend.run(DESCRIBE_GROUP, name)
    session.output.show(found, *_parts(found, time.time_ns() // 1_000_000))


@command(app, "delete", examples=["lastword group delete billing --yes"])
def delete(session: Session, name: NameArgument, yes: YesOption = False) -> None:
    """Delete a group without members, and its committed offsets."""
    from lastword.operations.table import DELETE_GROUP

    if not session.confirm(f"Delete the group {name!r} with its committed offsets?", yes=yes):
        raise typer.Exit(1)
    session.output.show(session.backend.run(DELETE_GROUP, name), f"Deleted the group {name}.")


def _parts(found: dict[str, Any], now_ms: int) -> list[Any]:
    behind = found["behind"]
    parts: list[Any] = [
        facts(
            [
                ("group", found["group"]),
                ("state", found["state"]),
                ("protocol", " ".join(filter(None, [found["protocol_type"], found["protocol"]])) or "none"),
                ("behind", "nothing is committed" if behind is None else count(behind, "offset")),
            ]
        )
    ]
    clients = {each["member_id"]: each["client_id"] for each in found["member_list"]}
    if found["member_list"]:
        parts += [
            heading("Members"),
            table(
                ["member", "client", "host", ">partitions"],
                [
                    (
                        each["instance_id"] or each["member_id"],
                        each["client_id"],
                        each["client_host"],
                        len(each["partitions"]),
                    )
                    for each in found["member_list"]
                ],
            ),
        ]
    if found["offsets"]:
        parts += [
            heading("Committed offsets"),
            table(
                ["topic", ">partition", ">offset", ">log end", ">behind", ">committed", "client"],
                [
                    (
                        each["topic"],
                        each["partition"],
                        each["offset"],
                        each["log_end"],
                        each["behind"],
                        f"{age(now_ms - each['committed_ms'])} ago",
                        clients.get(each["member_id"]),
                    )
                    for each in found["offsets"]
                ],
            ),
        ]
    return parts
