"""Decides whether a topic whose table can't be read can go back to an older state of it.

What was sealed after that state is sealed again, from the WAL, as far as the WAL still has it. Where it does not, records
that were acknowledged would be lost, and nothing is done. Whatever else was committed since is undone: settings,
compactions, which are done again, and moves of the log start, so that records which were deleted may be back.
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
    """Offsets that neither an older state nor the WAL has."""

    partition: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """What is wrong with a topic's table, and the state that it can go back to, if there is one."""

    topic: str
    problem: str
    states: tuple[OlderState, ...]
    chosen: OlderState | None
    """The newest state that can be used."""
    lost: tuple[LostRange, ...]
    """What would be lost with it. With anything here it is not done."""

    def usable(self) -> OlderState:
        """The state to go back to; InvalidError if there is none, or if anything would be lost with it."""
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
                f"{self.topic!r} is not repaired, because the offsets {lost} would be lost: neither an older state of "
                f"its table nor the WAL has them. Restore the damaged file from a backup, or delete the topic."
            )
        return self.chosen


def propose(topic: str, problem: str, states: Sequence[OlderState], folder: Path) -> RepairPlan:
    """Choose the newest state that can be used, and find out what would be lost with it. `folder` has the WALs."""
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
    """The states, those that can be used with why they may not be, if there is a reason."""
    return [
        replace(each, problem=objection(each.snapshot.topic))
        if each.problem is None and each.snapshot is not None
        else each
        for each in states
    ]


def restore_partitions(table: SegmentTable, data_folder: Path) -> None:
    """Add partitions again that were added after the state that a table has gone back to: their WAL is there.

    Nothing else leaves a WAL of a partition that the table does not know: partitions are added to the table first.
    """
    topic = table.snapshot().topic
    partitions = max(
        (each + 1 for each in _wal_starts(wal_folder(data_folder, topic.name, topic.id))), default=0
    )
    if partitions > topic.partitions:
        logger.warning(
            "%s has %d partitions by its WAL, and gets them again in its table", topic.name, partitions
        )
        retry_on_conflict(lambda: table.alter(table.snapshot(), partitions=partitions))


def _wal_starts(folder: Path) -> dict[int, int]:
    """The first offset that the WAL of each partition still has."""
    found: dict[int, int] = {}
    for own in folder.iterdir() if folder.is_dir() else ():
        saved = checkpoints.load_writer(own) if own.name.isdigit() else None
        if saved is not None:
            found[int(own.name)] = checkpoints.left_files(own, saved)[0].first_offset
    return found
