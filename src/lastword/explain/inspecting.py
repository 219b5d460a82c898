"""A partition as the next run will find it: its sealed segments, and the rest of the WAL as segments too.

The code that seals writes the segments that sealing would write, but to a scratch folder that nobody else sees. So
the plan, its sizes and the walk over the keys are those of the run itself, and memory is bounded in the same way. Files
that are compacted while they are sealed are written twice: whole, for what can be asked about, and as sealing leaves them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lastword.compaction.engine import carry_out_round
from lastword.compaction.round import RoundDone
from lastword.config import TopicSettings
from lastword.errors import CorruptError
from lastword.explain.model import PlaceKind, RecordLocation
from lastword.maintenance import tiering
from lastword.segments.model import Positions, Segment, Snapshot
from lastword.segments.parquet import SegmentFiles
from lastword.wal import checkpoint as checkpoints
from lastword.wal import state as states
from lastword.wal.files import WalFile
from lastword.wal.rolled import RolledFile
from lastword.wal.writer import roll_reason

if TYPE_CHECKING:
    from lastword.segments.table import SegmentTable

Sealing = Literal["all", "due", "none"]
"""The part of the WAL that is sealed before the run: everything, files that are rolled or due to be, or nothing."""

_SCRATCH_JOB = "explain"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSegment:
    """A segment, the current place of its records, and whether it is sealed when the run begins."""

    segment: Segment
    place: RecordLocation
    is_sealed: bool
    seals_ms: int | None = None
    """The latest time at which the worker seals it, if it is only in the WAL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InspectedPartition:
    """A partition when the run begins. `segments` has all of them, in offset order; the unsealed ones are last."""

    positions: Positions
    """The positions after the sealing that comes before the run."""
    now: Positions
    segments: tuple[PlacedSegment, ...]
    log_end: int
    rounds: tuple[tuple[Segment, ...], ...] = ()
    """Of `segments` those that are compacted together while they are sealed."""
    found_by_run: tuple[Segment, ...] = ()
    """The segments that the run finds: as `sealed`, without the records that are left out when they are sealed."""
    problem: str | None = None

    @property
    def sealed(self) -> tuple[Segment, ...]:
        return tuple(each.segment for each in self.segments if each.is_sealed)

    @property
    def all(self) -> tuple[Segment, ...]:
        return tuple(each.segment for each in self.segments)


def inspect_partition(
    table: SegmentTable,
    snapshot: Snapshot,
    partition: int,
    wal_folder: Path,
    scratch: SegmentFiles,
    *,
    settings: TopicSettings,
    sealing: Sealing,
    round_memory_bytes: int,
    first_append_ms: int | None,
    now_ms: int,
) -> InspectedPartition:
    """Look at a partition. `first_append_ms` is when the active WAL file got its first record, if known."""
    at = snapshot.positions[partition]
    found = [
        PlacedSegment(
            segment=segment,
            place=_place("sealed dirty" if segment.is_dirty(at.first_dirty) else "sealed clean", segment),
            is_sealed=True,
        )
        for segment in table.plan(snapshot, partition)
    ]
    files, log_end = _files(wal_folder, now_ms)
    sealed_end = at.sealed_end
    problem = None
    sealed = [each.segment for each in found]
    to_seal: list[RolledFile] = []
    whole: dict[int, Segment] = {}
    try:
        for todo in tiering.propose(partition, wal_folder, files, at):
            is_active = todo.file.seq == files[-2].seq and todo.end_offset == files[-1].first_offset
            rolls_ms = _rolls_ms(
                settings, first_append_ms if first_append_ms is not None else todo.file.opened_ms
            )
            is_rolled = not is_active or rolls_ms <= now_ms
            is_sealed = sealing == "all" or (sealing == "due" and is_rolled)
            segment = _seal_to(scratch, todo)
            if is_sealed:
                sealed_end = todo.end_offset
                to_seal.append(todo)
            if segment is not None:
                whole[todo.file.seq] = segment
                kind: PlaceKind = "wal active" if is_active else "wal rolled"
                found.append(
                    PlacedSegment(
                        segment=segment,
                        place=replace(_place(kind, segment), file=todo.file.name),
                        is_sealed=is_sealed,
                        seals_ms=None if is_sealed else max(rolls_ms, now_ms) if is_active else now_ms,
                    )
                )
    except CorruptError as error:
        problem = str(error)
    rounds: list[tuple[Segment, ...]] = []
    together, rest = tiering.rounds_of(to_seal, settings, now_ms)
    for own in together:
        before = tuple(whole[each.file.seq] for each in own if each.file.seq in whole)
        after = _compact_to(scratch, own, settings, round_memory_bytes)
        sealed += before if after is None else after
        if after is not None:
            rounds.append(before)
    sealed += [whole[each.file.seq] for each in rest if each.file.seq in whole]
    return InspectedPartition(
        positions=replace(at, sealed_end=sealed_end),
        now=at,
        segments=tuple(found),
        log_end=max(at.sealed_end, at.log_start, log_end),
        rounds=tuple(rounds),
        found_by_run=tuple(sealed),
        problem=problem,
    )


def _place(kind: PlaceKind, segment: Segment) -> RecordLocation:
    return RecordLocation(
        kind=kind, file=segment.path, first_offset=segment.first_offset, last_offset=segment.last_offset
    )


def _files(folder: Path, now_ms: int) -> tuple[Sequence[WalFile], int]:
    """Return the WAL files as if the active one were rolled now, and the end of their readable part."""
    # Load the state first: if the file is rolled between the two looks, the checkpoint knows it and its contents.
    state, saved = states.load(folder), checkpoints.load_writer(folder)
    if saved is None or state is None:
        return [], 0
    files = checkpoints.left_files(folder, saved)
    active = files[-1]
    if state.seq != active.seq or state.visible_position == 0:
        # It has only just been opened, and any records in it come after this look.
        return [*files, _following(active, active.first_offset, now_ms)], active.first_offset
    rolled = active.rolled(size_bytes=state.visible_position, now_ms=now_ms)
    return [*files[:-1], rolled, _following(active, state.visible_offset, now_ms)], state.visible_offset


def _following(active: WalFile, first_offset: int, now_ms: int) -> WalFile:
    return WalFile(seq=active.seq + 1, first_offset=first_offset, opened_ms=now_ms)


def _rolls_ms(settings: TopicSettings, first_append_ms: int) -> int:
    """Return the latest time at which a file that is not empty is rolled by its age."""
    ages_ms = [settings.segment_ms, settings.tiering_lag_ms, settings.max_compaction_lag_ms]
    times_ms = [first_append_ms + age_ms for age_ms in ages_ms if age_ms is not None]
    return min(
        time_ms
        for time_ms in times_ms
        if roll_reason(
            settings, size_bytes=1, incoming_bytes=0, first_append_ms=first_append_ms, now_ms=time_ms
        )
    )


def _seal_to(scratch: SegmentFiles, todo: RolledFile) -> Segment | None:
    with scratch.writer(todo.partition, todo.first_wanted, _SCRATCH_JOB) as writer:
        for records in todo.records():
            writer.write(records)
        return writer.close()


def _compact_to(
    scratch: SegmentFiles, files: tuple[RolledFile, ...], settings: TopicSettings, memory_bytes: int
) -> tuple[Segment, ...] | None:
    """Return the segments that a round of sealing would write; None if it would seal the files as they are."""
    unit = tiering.round_of(
        files, settings, scratch, codec="zstd", job_id=_SCRATCH_JOB, memory_bytes=memory_bytes
    )
    done = carry_out_round(unit)
    return done.segments if isinstance(done, RoundDone) else None
