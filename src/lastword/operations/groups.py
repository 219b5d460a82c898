"""Consumer groups, as stored in the log. With a server, its coordinator answers instead: admin/groups.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastword.record_json import Json

if TYPE_CHECKING:
    from lastword.log import Log


def list_groups(log: Log) -> list[Json]:
    """List the consumer groups, and how far each is behind."""
    from lastword.broker.groups.stored import StoredGroups

    return StoredGroups(log).list_groups()


def describe_group(log: Log, group: str) -> Json:
    """Describe a consumer group: its state, members, committed offsets, and how far it is behind."""
    from lastword.broker.groups.stored import StoredGroups

    return StoredGroups(log).describe_group(group)


def delete_group(log: Log, group: str) -> Json:
    """Delete a consumer group without members, with its committed offsets."""
    from lastword.broker.groups.stored import StoredGroups

    StoredGroups(log).delete_group(group)
    return deleted(group)


def deleted(group: str) -> Json:
    return {"group": group, "deleted": True}
