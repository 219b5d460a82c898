"""Erases keys: when an erasure is done, all their records are physically gone from all files and all snapshots.

The steps, while no other job works on the topic:
1. note the intent, with the log end of each partition: records from there on are new and stay (intents.py);
2. roll the WAL and seal it;
3. rewrite every segment that has one of the keys, in every partition, and commit;
4. expire all other snapshots, whatever their age. Running replays continue from their offset on the new one;
5. delete the files that only those snapshots named, and the topic's orphans;
6. delete all WAL files with records from before the intent, and the files that recovery set aside;
7. look at everything that is left: files, snapshots that tags and branches of other engines keep, staged writes,
   positions of sources. If nothing has the keys, remove the intent, which holds them too.

Killed at any point: each step can be repeated, and the next round of maintenance repeats it. Copies that can't be
removed yet are reported. Once 3 to 6 are done, later rounds only check whether these copies are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastword.clock import Clock
from lastword.compaction.survivors import Mask
from lastword.errors import InvalidError, LastwordError, StorageError, UnavailableError
from lastword.folder.intents import Intent, forget_intent, save_intent
from lastword.folder.leases import LeaseKeeper
from lastword.folder.paths import ASIDE_FOLDER, WAL_FOLDER
from lastword.folder.steps import reached
from lastword.maintenance.remains import positions_with, staged_with
from lastword.maintenance.tiering import SealReport
from lastword.segments.model import Segment, Snapshot, retry_on_conflict
from lastword.segments.raw import RawSegment
from lastword.wal import deleter
from lastword.wal.files import SET_ASIDE, file_name

if TYPE_CHECKING:
    from lastword.segments.table import SegmentTable


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseReport:
    """The result of an erasure. It is complete if `left` is empty. Else `left` says what is left and why."""

    topic: str
    keys: int
    records_erased: int
    files_rewritten: int
    files_removed: int
    snapshots_expired: int
    wal_files_removed: int
    left: tuple[str, ...] = ()


def check_keys(keys: Sequence[bytes]) -> None:
    if not keys:
        raise InvalidError("No key was given to erase.")


class Eraser:
    """Carries out one erasure."""

    def __init__(
        self,
        intent: Intent,
        table: SegmentTable,
        wals: Callable[[], list[deleter.LocalWal]],
        *,
        data_folder: Path,
        leases: LeaseKeeper,
        clock: Clock,
    ) -> None:
        self._intent = intent
        self._table = table
        self._wals = wals
        self._data_folder = data_folder
        self._leases = leases
        self._clock = clock
        self._keys = pa.array(intent.keys, pa.binary())

    def run(
        self, seal: Callable[[], SealReport], progress: Callable[[int, int], None] | None = None
    ) -> EraseReport:
        """Erase all that can be erased now. Forget the intent if nothing is left. `seal` rolls and seals the topic."""
        report = self._pass(seal, progress) if self._intent.held is None else self._remove_kept()
        if not report.left:
            forget_intent(self._data_folder, self._intent.topic_id)
        return report

    def _pass(
        self, seal: Callable[[], SealReport], progress: Callable[[int, int], None] | None
    ) -> EraseReport:
        """Do a full pass over the table and the WAL."""
        unsealed = [f"partition {partition}: {what}" for partition, what in seal().problems]
        erased, rewritten = self._rewrite(progress)
        reached("erase.rewritten")
        expired = self._table.expire(retention_ms=None)
        reached("erase.expired")
        # No other job works on this topic (lanes.py), so nothing needs grace.
        collected = self._table.collect(grace_ms=None, data_only=True)
        reached("erase.collected")
        wal_files = self._remove_wal_files()
        reached("erase.wal_removed")
        left = [*unsealed, *self._left_in_segments()]
        held, kept = self._left_in_kept_snapshots()
        if not left:
            self._save_held(held)
        return EraseReport(
            topic=self._intent.topic,
            keys=len(self._intent.keys),
            records_erased=erased,
            files_rewritten=rewritten,
            files_removed=len(collected.files),
            snapshots_expired=len(expired),
            wal_files_removed=wal_files,
            left=(*left, *kept, *self._left_beside()),
        )

    def _remove_kept(self) -> EraseReport:
        """Remove copies that were still kept after the full pass and no longer are."""
        assert self._intent.held is not None
        expired = self._table.expire(retention_ms=None, only=self._intent.held)
        files = self._table.collect(grace_ms=None, data_only=True).files if expired else ()
        wal_files = self._remove_wal_files()
        held, kept = self._left_in_kept_snapshots()
        self._save_held({*held, *self._intent.held} if kept else held)
        return EraseReport(
            topic=self._intent.topic,
            keys=len(self._intent.keys),
            records_erased=0,
            files_rewritten=0,
            files_removed=len(files),
            snapshots_expired=len(expired),
            wal_files_removed=wal_files,
            left=(*kept, *self._left_beside()),
        )

    def _save_held(self, held: Collection[int]) -> None:
        save_intent(self._data_folder, replace(self._intent, held=tuple(sorted(held))))
        reached("erase.passed")

    def _rewrite(self, progress: Callable[[int, int], None] | None) -> tuple[int, int]:
        """Rewrite every segment that has one of the keys. Return the numbers of records erased and files rewritten."""
        erased = rewritten = 0
        snapshot = self._table.snapshot()
        segments = self._table.plan(snapshot)
        with self._leases.hold(topic_id=snapshot.topic.id.hex, job="erase") as lease:
            for number, segment in enumerate(segments):
                # Marked rows are gone for readers, but not from the file.
                mask = self._mask(segment.whole)
                if not mask.all():
                    left = mask if segment.marks is None else self._mask(segment)
                    written = self._write_without(segment, left, lease.id)
                    lease.check()
                    retry_on_conflict(partial(self._commit, segment, written))
                    reached("erase.segment.committed")
                    erased += int((mask == 0).sum())
                    rewritten += 1
                if progress is not None:
                    progress(number + 1, len(segments))
        return erased, rewritten

    def _mask(self, segment: Segment) -> Mask:
        """Return 1 for each row of a segment that stays, 0 for each row that has to go."""
        mask = np.ones(segment.records, np.uint8)
        wanted = [each for each in self._intent.wanted if segment.first_offset < each.end(segment.partition)]
        if not wanted:
            return mask
        with RawSegment(self._table.files, segment) as raw:
            for each in wanted:
                goes = np.zeros(segment.records, np.bool_)
                keys = pa.array(each.keys, pa.binary())
                for row, found in raw.key_runs():
                    goes[row : row + len(found)] = pc.is_in(found, keys).to_numpy(zero_copy_only=False)
                end = each.end(segment.partition)
                if segment.last_offset >= end and goes.any():
                    goes &= raw.columns(["offset"]).column("offset").to_numpy() < end
                mask[goes] = 0
        return mask

    def _write_without(self, segment: Segment, mask: Mask, job_id: str) -> Segment | None:
        """Write the live rows of a segment that the mask keeps to a new file. Return None if there are none."""
        files = self._table.files
        try:
            with (
                RawSegment(files, segment) as raw,
                files.writer(segment.partition, segment.first_offset, job_id) as writer,
            ):
                for group in raw.row_groups:
                    if mask[group.first_row : group.first_row + group.rows].any():
                        for records in raw.kept(group, mask).combine_chunks().to_batches():
                            writer.write(records)
                written = writer.close()
        except LastwordError:
            raise
        except Exception as error:
            # Whatever another engine has put into the file, other erasures must not wait for it.
            raise UnavailableError(f"{segment.path} could not be rewritten: {error}") from error
        reached("erase.segment.written")
        return written

    def _commit(self, segment: Segment, written: Segment | None) -> Snapshot:
        base = self._table.snapshot()
        added = [] if written is None else [written]
        return self._table.replace(
            base, [segment], added, {}, operation="erase", details={"segments": f"1 -> {len(added)}"}
        )

    def _remove_wal_files(self) -> int:
        wals = self._wals()
        now_ms = self._clock.now_ms()
        deletions = [
            deleter.deletion(wal, file, "erased", now_ms)
            for wal in wals
            for file in wal.files
            if file.first_offset < self._intent.end(wal.partition)
            and file.end_offset is not None
            and file.end_offset <= wal.sealed_end
        ]
        removed = deleter.execute(wals, deletions, now_ms)
        for wal in wals:
            aside = wal.folder / ASIDE_FOLDER
            for path in aside.iterdir() if aside.exists() else ():
                path.unlink(missing_ok=True)
        return len(removed.deletions)

    def _left_in_segments(self) -> Iterator[str]:
        for segment in self._table.plan(self._table.snapshot()):
            if not self._mask(segment.whole).all():
                yield f"{segment.path}: still has records of these keys"

    def _left_in_kept_snapshots(self) -> tuple[set[int], list[str]]:
        """Return the ids of snapshots that have the keys and that tags or branches keep, and a message for each."""
        current = {segment.path for segment in self._table.plan(self._table.snapshot())}
        held: set[int] = set()
        kept: list[str] = []
        for ref in self._table.refs():
            try:
                has_keys = any(
                    segment.path not in current and not self._mask(segment.whole).all()
                    for segment in self._table.plan(ref.snapshot)
                )
                what = "has records of these keys"
            except StorageError as error:
                has_keys, what = True, f"can't be looked into ({error})"
            if has_keys:
                assert ref.snapshot.id is not None
                held.add(ref.snapshot.id)
                kept.append(
                    f"snapshot {ref.snapshot.id}, which another engine's {ref.kind} {ref.name!r} keeps, {what}. Drop the "
                    f"{ref.kind} there (ALTER TABLE … DROP {ref.kind.upper()} {ref.name}). The worker's next round, or "
                    f"repeating the erasure, then removes the snapshot."
                )
        return held, kept

    def _left_beside(self) -> Iterator[str]:
        """Yield messages about copies that are neither in the table nor in its snapshots."""
        for wal in self._wals():
            for file in wal.files:
                if file.first_offset < self._intent.end(wal.partition):
                    yield f"{wal.folder / file_name(file.seq)}: still there, with records from before the erasure"
        for folder in sorted(
            (self._data_folder / WAL_FOLDER).glob(f"*/*/{self._intent.topic_id}{SET_ASIDE}*")
        ):
            yield f"{folder}: a WAL that was set aside when the topic was taken over. Export what you need and remove it"
        yield from staged_with(self._data_folder, self._intent.topic_id, self._keys)
        yield from positions_with(self._data_folder, self._intent.keys)
