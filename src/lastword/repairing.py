"""Decides whether a topic whose table can't be read can go back to an older state of it.

What was sealed after that state is sealed again, from the WAL, as far as the WAL still has it. Where it does not, records
that were acknowledged would be lost, and nothing is done. Whatever else was committed since is undone: settings,
compactions, which are done again, and moves of the log start, so that records which were deleted may be back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lastword.segments.older import OlderState
from lastword.wal import checkpoint as checkpoints


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
    partitions: int
    """How many partitions the topic has, by its WAL: the state may have fewer."""


def propose(topic: str, problem: str, states: Sequence[OlderState], wal_folder: Path) -> RepairPlan:
    """Choose the newest state that can be used, and find out what would be lost with it."""
    chosen = next((each for each in states if each.problem is None), None)
    positions = chosen.snapshot.positions if chosen is not None and chosen.snapshot is not None else ()
    starts = _wal_starts(wal_folder)
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
        partitions=max([len(positions), *(partition + 1 for partition in starts)]),
    )


def _wal_starts(wal_folder: Path) -> dict[int, int]:
    """The first offset that the WAL of each partition still has."""
    found: dict[int, int] = {}
    for folder in wal_folder.iterdir() if wal_folder.is_dir() else ():
        saved = checkpoints.load_writer(folder) if folder.name.isdigit() else None
        if saved is not None:
            found[int(folder.name)] = checkpoints.left_files(folder, saved)[0].first_offset
    return found
