"""Erases keys: every record of them is physically gone, from all files and all snapshots, when it is done.

By its steps, under the maintenance role:
1. note the intent in `erasing/<topic id>.json`, so that a killed erasure is gone on with;
2. roll the WAL and seal it;
3. rewrite every segment that has one of the keys, in every partition, and commit;
4. forget all older snapshots. Running replays go on from their offset on the new one;
5. delete the files that only they named, and the topic's orphans;
6. delete all WAL files below the sealed end, and what recovery kept aside;
7. look at every file that is left. If none has the keys, remove the intent, which holds them too.

Killed at any point: each step can be repeated, and the next round of maintenance does.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastword import disk
from lastword.clock import Clock
from lastword.compaction.engine import rewrite_found
from lastword.compaction.rules import Rules
from lastword.compaction.survivors import Mask
from lastword.compaction.unit import Outcome, Unit
from lastword.errors import InvalidError, UnavailableError
from lastword.leases import LeaseKeeper
from lastword.reader import PartitionReader
from lastword.segments.raw import RawSegment
from lastword.segments.table import Segment, SegmentTable, Snapshot, retry_on_conflict
from lastword.steps import reached
from lastword.wal import deleter
from lastword.wal.files import ASIDE_FOLDER, file_name

logger = logging.getLogger(__name__)

ERASING_FOLDER = "erasing"


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseReport:
    """What an erasure did. It is complete if nothing is left; else `left` says what and why."""

    topic: str
    keys: int
    records_erased: int
    files_rewritten: int
    files_removed: int
    snapshots_expired: int
    wal_files_removed: int
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """Keys that are to be erased from a topic."""

    topic: str
    topic_id: str
    keys: tuple[bytes, ...]


def save_intent(data_folder: Path, intent: Intent) -> None:
    """Note an erasure; keys of an earlier one that is not done are added."""
    path = _path(data_folder, intent.topic_id)
    disk.make_folder(path.parent)
    earlier = load_intent(path)
    keys = dict.fromkeys((*(earlier.keys if earlier else ()), *intent.keys))
    content = {
        "topic": intent.topic,
        "topic_id": intent.topic_id,
        "keys": [base64.b64encode(key).decode() for key in keys],
    }
    disk.replace_file(path, json.dumps(content).encode())
    reached("erase.noted")


def load_intents(data_folder: Path) -> list[Intent]:
    """The erasures that are not done."""
    folder = data_folder / ERASING_FOLDER
    found = [load_intent(path) for path in sorted(folder.glob("*.json"))] if folder.exists() else []
    return [each for each in found if each is not None]


def load_intent(path: Path) -> Intent | None:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return Intent(
        topic=content["topic"],
        topic_id=content["topic_id"],
        keys=tuple(base64.b64decode(key) for key in content["keys"]),
    )


def forget_intent(data_folder: Path, topic_id: str) -> None:
    _path(data_folder, topic_id).unlink(missing_ok=True)


def unfinished_intents(data_folder: Path) -> list[Path]:
    """What is left of intents whose writing was cut short. They count for nothing, but have keys in them."""
    return sorted((data_folder / ERASING_FOLDER).glob("*.tmp"))


def _path(data_folder: Path, topic_id: str) -> Path:
    return data_folder / ERASING_FOLDER / f"{topic_id}.json"


def check_keys(keys: Sequence[bytes]) -> None:
    if not keys:
        raise InvalidError("No key was given to erase.")


class Eraser:
    """Carries out one erasure. The WAL has been rolled and sealed."""

    def __init__(
        self,
        intent: Intent,
        table: SegmentTable,
        wals: Callable[[], list[deleter.LocalWal]],
        readers: Sequence[PartitionReader],
        *,
        leases: LeaseKeeper,
        clock: Clock,
    ) -> None:
        self._intent = intent
        self._table = table
        self._wals = wals
        self._readers = readers
        self._leases = leases
        self._clock = clock
        self._keys = pa.array(intent.keys, pa.binary())

    def run(self, progress: Callable[[int, int], None] | None = None) -> EraseReport:
        sealed_end = [at.sealed_end for at in self._table.snapshot().positions]
        erased, rewritten = self._rewrite(progress)
        reached("erase.rewritten")
        expired = self._table.expire(retention_ms=None)
        reached("erase.expired")
        # Under the maintenance role no other job is running, so nothing needs grace.
        collected = self._table.collect(grace_ms=None, data_only=True)
        reached("erase.collected")
        wal_files = self._remove_wal_files()
        reached("erase.wal_removed")
        return EraseReport(
            topic=self._intent.topic,
            keys=len(self._intent.keys),
            records_erased=erased,
            files_rewritten=rewritten,
            files_removed=len(collected.files),
            snapshots_expired=len(expired),
            wal_files_removed=wal_files,
            left=tuple(self._left(sealed_end)),
        )

    def _rewrite(self, progress: Callable[[int, int], None] | None) -> tuple[int, int]:
        """Write every segment with one of the keys anew, some at a time; records erased and files rewritten."""
        erased = rewritten = 0
        snapshot = self._table.snapshot()
        segments = self._table.plan(snapshot)
        with self._leases.hold(topic_id=snapshot.topic.id.hex, job="erase") as lease:
            for number, segment in enumerate(segments):
                mask = self._mask(segment)
                if not mask.all():
                    outcome = self._write_without(segment, mask, lease.id)
                    lease.check()
                    retry_on_conflict(lambda outcome=outcome: self._commit(outcome))  # type: ignore[misc]
                    reached("erase.segment.committed")
                    erased += int((mask == 0).sum())
                    rewritten += 1
                if progress is not None:
                    progress(number + 1, len(segments))
        return erased, rewritten

    def _mask(self, segment: Segment) -> Mask:
        mask = np.ones(segment.records, np.uint8)
        with RawSegment(self._table.files, segment) as raw:
            for row, keys in raw.key_runs():
                mask[row : row + len(keys)] = ~pc.is_in(keys, self._keys).to_numpy(zero_copy_only=False)
        return mask

    def _write_without(self, segment: Segment, mask: Mask, job_id: str) -> Outcome:
        unit = Unit(
            topic=self._intent.topic,
            partition=segment.partition,
            files=self._table.files,
            segments=(segment,),
            first_dirty=0,
            clean_is_unique=True,
            keyed=True,
            rules=Rules(
                strategy="offset",
                header=None,
                header_format=None,
                log_start=0,
                expiring=(),
                retention_before_ms=None,
            ),
            merge_bytes=0,
            merge_span_ms=None,
            min_rewrite_ratio=0.0,
            job_id=job_id,
            seed=0,
        )
        result = rewrite_found(unit, [mask])
        if not isinstance(result, Outcome):
            raise UnavailableError(
                f"{segment.path} could not be rewritten: {getattr(result, 'message', result)}"
            )
        return result

    def _commit(self, outcome: Outcome) -> Snapshot:
        base = self._table.snapshot()
        return self._table.replace(
            base,
            outcome.removed,
            outcome.added,
            {},
            operation="erase",
            details={"segments": f"{len(outcome.removed)} -> {len(outcome.added)}"},
        )

    def _remove_wal_files(self) -> int:
        wals = self._wals()
        now_ms = self._clock.now_ms()
        deletions = [
            deleter.deletion(wal, file, "erased", now_ms)
            for wal in wals
            for file in wal.files
            if file.end_offset is not None and file.end_offset <= wal.sealed_end
        ]
        removed = deleter.execute(wals, deletions, now_ms)
        for wal in wals:
            aside = wal.folder / ASIDE_FOLDER
            for path in aside.iterdir() if aside.exists() else ():
                path.unlink(missing_ok=True)
        return len(removed.deletions)

    def _left(self, sealed_end: Sequence[int]) -> list[str]:
        """Where the keys still are, by a look into every file that is left."""
        left: list[str] = []
        for segment in self._table.plan(self._table.snapshot()):
            if segment.first_offset < sealed_end[segment.partition] and not self._mask(segment).all():
                left.append(f"{segment.path}: it still has records of these keys")
        for wal in self._wals():
            left += [
                f"{wal.folder / file_name(file.seq)}: it could not be removed"
                for file in wal.files
                if file.end_offset is not None and file.end_offset <= wal.sealed_end
            ]
        for reader in self._readers:
            if count := self._count_from(reader, sealed_end[reader.partition]):
                left.append(
                    f"partition {reader.partition}: {count} records of these keys were appended meanwhile, "
                    f"from offset {sealed_end[reader.partition]} on; erase again"
                )
        return left

    def _count_from(self, reader: PartitionReader, offset: int) -> int:
        found = 0
        for records in reader.replay(offset, reader.extent().log_end):
            found += int(pc.sum(pc.is_in(records.column("key"), self._keys)).as_py() or 0)
        return found
