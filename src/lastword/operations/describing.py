"""The description of a topic: its positions, settings, readers, pending compaction, and problems."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lastword.errors import CorruptError, UnavailableError
from lastword.folder.locks import Role, holder
from lastword.folder.paths import wal_folder
from lastword.maintenance.worker_state import load_status

if TYPE_CHECKING:
    from lastword.log import Log
    from lastword.log.describing import TopicDescription
    from lastword.log.topic import Topic

MOST_FOOTERS = 256
"""Garbage is estimated from segment footers, each a small read. With more segments that would take too long."""


def describe_topic(log: Log, name: str) -> dict[str, Any]:
    """Describe a topic: its partitions, settings and readers, the work left for compaction, and any problems."""
    from lastword.reading.topic_reader import CommittedPositions

    try:
        topic = log.topic(name)
        found, problem = _described(topic)
    except CorruptError as error:
        return _unreadable(log, name, error)
    readers = {each: CommittedPositions(log.path, found.id.hex, each).load() for each in found.readers}
    status = load_status(log.path)
    failing = [each for each in status.failing if each.topic == name] if status is not None else []
    return {
        "topic": found.name,
        "id": str(found.id),
        "state": "ready",
        "problem": None,
        "cleanup_policy": found.cleanup_policy,
        "location": found.location,
        "wal_folder": found.wal_folder,
        "foreign": None if topic.foreign is None else str(topic.foreign),
        "partitions": [
            {
                **asdict(each),
                "last_run": None if each.last_run is None else each.last_run._asdict(),
            }
            for each in found.partitions
        ],
        "settings": [asdict(each) for each in found.settings],
        "readers": {
            reader: {
                "positions": {str(partition): offset for partition, offset in sorted(positions.items())},
                "behind": _behind(found, positions),
            }
            for reader, positions in readers.items()
        },
        "estimate_problem": problem,
        "worker": holder(log.path, Role.WORKER),
        "failing_compactions": [asdict(each) for each in failing],
    }


def _unreadable(log: Log, name: str, error: CorruptError) -> dict[str, Any]:
    place = log.place(name)
    return {
        "topic": name,
        "id": str(place.topic_id),
        "state": "unreadable",
        "problem": str(error),
        "cleanup_policy": None,
        "location": place.location,
        "wal_folder": str(wal_folder(log.path, name, place.topic_id)),
        "foreign": None,
        "partitions": [],
        "settings": [],
        "readers": {},
        "estimate_problem": None,
        "worker": holder(log.path, Role.WORKER),
        "failing_compactions": [],
    }


def _described(topic: Topic) -> tuple[TopicDescription, str | None]:
    found = topic.describe()
    if topic.settings.compacts and 0 < sum(each.segments for each in found.partitions) <= MOST_FOOTERS:
        try:
            return topic.describe(estimates=True), None
        except (CorruptError, UnavailableError) as error:
            # A description must work for a damaged topic: people use it to find the problem.
            return found, str(error)
    return found, None


def _behind(found: TopicDescription, positions: dict[int, int]) -> int:
    return sum(
        each.log_end - max(positions.get(each.partition, each.log_start), each.log_start)
        for each in found.partitions
    )
