"""The order in which the snapshots of a table were the current one, and when each was superseded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot

from lastword.segments.mapping import committed_ms_of


def main_line(metadata: TableMetadata) -> list[IcebergSnapshot]:
    """Return the snapshots that are or were the current one, oldest first; the current one is the last.

    Snapshots on branches of other engines, and those that another engine has rolled back, are not among them.
    """
    current = metadata.current_snapshot()
    if current is None:
        return []
    ids = {entry.snapshot_id for entry in metadata.snapshot_log} | {
        each.snapshot_id for each in _ancestors(metadata, current)
    }
    newest = _sequence(current)
    line = [each for each in metadata.snapshots if each.snapshot_id in ids and _sequence(each) <= newest]
    return sorted(line, key=_sequence)


def superseded(metadata: TableMetadata, now_ms: int) -> dict[int, int]:
    """Return when each snapshot but the current one was replaced by another.

    If those in between have expired, it is the time when the next remaining one was made, which is later. A snapshot
    that was never the current one counts from its own commit, or that of the first snapshot based on it.
    """
    by_id = {each.snapshot_id: each for each in metadata.snapshots}
    found = {
        each.snapshot_id: max(
            committed_ms_of(each),
            min(
                (
                    committed_ms_of(child)
                    for child in by_id.values()
                    if child.parent_snapshot_id == each.snapshot_id
                ),
                default=0,
            ),
        )
        for each in metadata.snapshots
    }
    became_current = _became_current(metadata, by_id)
    for place, (snapshot_id, since_ms) in enumerate(became_current[:-1]):
        at_ms = max(since_ms, became_current[place + 1][1])
        if at_ms > now_ms:
            # The clock has been set back since. The time was before every later commit, by whichever clock.
            at_ms = min(each_ms for _, each_ms in became_current[place + 1 :])
        found[snapshot_id] = at_ms
    return {each: at_ms for each, at_ms in found.items() if each != metadata.current_snapshot_id}


def _became_current(metadata: TableMetadata, by_id: Mapping[int, IcebergSnapshot]) -> list[tuple[int, int]]:
    """Return the snapshots that became the current one, in order, each with the time when it did."""
    found: list[tuple[int, int]] = []
    seen: set[int] = set()
    for entry in metadata.snapshot_log:
        if (snapshot := by_id.get(entry.snapshot_id)) is not None:
            # If it became the current one again, another engine rolled back to it.
            again = entry.snapshot_id in seen
            found.append((entry.snapshot_id, entry.timestamp_ms if again else committed_ms_of(snapshot)))
            seen.add(entry.snapshot_id)
    return found


def _ancestors(metadata: TableMetadata, snapshot: IcebergSnapshot | None) -> Iterator[IcebergSnapshot]:
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else metadata.snapshot_by_id(parent)


def _sequence(snapshot: IcebergSnapshot) -> int:
    return snapshot.sequence_number or 0
