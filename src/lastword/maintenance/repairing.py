"""Decides whether a topic whose table can't be read can go back to an older state of it.

Records that were sealed after that state are sealed again from the WAL. If the WAL no longer has them, acknowledged
records would be lost, and nothing is done. Everything else that was committed since is undone: settings, compactions
(which are done again), and moves of the log start, so deleted records may reappear.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lastword.errors import InvalidError
from lastword.folder.paths import wal_folder
from lastword.segments.model import TopicInfo, retry_on_conflict
from lastword.segments.older import OlderState
from lastword.wal import checkpoint as checkpoints

if TYPE_CHECKING:
    from lastword.segments.table import SegmentTable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRange:
    """Offsets that are neither in an older state nor in the WAL."""

    partition: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """The problem with a topic's table, and the state that it can go back to, if there is one."""

    topic: str
    problem: str
    states: tuple[OlderState, ...]
    chosen: OlderState | None
    """The newest state that can be used."""
    lost: tuple[LostRange, ...]
    """The offsets that would be lost with it. If there are any, the repair is refused."""

    def usable(self) -> OlderState:
        """Return the state to go back to. Raise InvalidError if there is none, or if records would be lost with it."""
        if self.chosen is None:
            raise InvalidError(
                f"No older state of the table of {self.topic!r} can be used. Restore the damaged file from a backup, or "
                f"delete the topic. {self.problem}"
            )
        if self.lost:
            lost = ", ".join(
                f"{each.first_offset} to {each.end_offset - 1} of partition {each.partition}"
                for each in self.lost
            )
            raise InvalidError(
                f"Can't repair {self.topic!r}, because the offsets {lost} would be lost: neither an older state of "
                f"its table nor the WAL has them. Restore the damaged file from a backup, or delete the topic."
            )
        return self.chosen


def propose(topic: str, problem: str, states: Sequence[OlderState], folder: Path) -> RepairPlan:
    """Choose the newest usable state, and find the offsets that would be lost with it. `folder` has the WALs."""
    chosen = next((each for each in states if each.problem is None), None)
    positions = chosen.snapshot.positions if chosen is not None and chosen.snapshot is not None else ()
    starts = _wal_starts(folder)
    lost: list[LostRange] = []
    for partition, wal_start in sorted(starts.items()):
        at = positions[partition] if partition < len(positions) else None
        sealed_end = 0 if at is None else max(at.sealed_end, at.log_start)
        if wal_start > sealed_end:
            lost.append(LostRange(partition=partition, first_offset=sealed_end, end_offset=wal_start))
    return RepairPlan(
        topic=topic,
        problem=problem,
        states=tuple(states),
        chosen=chosen,
        lost=tuple(lost) if chosen is not None else (),
    )


def with_objections(
    states: Sequence[OlderState], objection: Callable[[TopicInfo], str | None]
) -> list[OlderState]:
    """Return the states. Usable ones get the objection to their use as their problem, if there is one."""
    return [
        replace(each, problem=objection(each.snapshot.topic))
        if each.problem is None and each.snapshot is not None
        else each
        for each in states
    ]


def restore_partitions(table: SegmentTable, data_folder: Path) -> None:
    """Add the partitions again that were added after the state that a table has gone back to. They still have a WAL.

    There is no other reason for a WAL of an unknown partition: partitions are added to the table first.
    """
    topic = table.snapshot().topic
    partitions = max(
        (each + 1 for each in _wal_starts(wal_folder(data_folder, topic.name, topic.id))), default=0
    )
    if partitions > topic.partitions:
        logger.warning(
            "%s has a WAL for %d partitions; adding the missing ones to its table", topic.name, partitions
        )
        retry_on_conflict(lambda: table.alter(table.snapshot(), partitions=partitions))


def _wal_starts(folder: Path) -> dict[int, int]:
    """Return the first offset that the WAL of each partition still has."""
    found: dict[int, int] = {}
    for own in folder.iterdir() if folder.is_dir() else ():
        saved = checkpoints.load_writer(own) if own.name.isdigit() else None
        if saved is not None:
            found[int(own.name)] = checkpoints.left_files(own, saved)[0].first_offset
    return found
