"""Removes WAL files that are sealed and no longer needed on the local disk.

A cycle, for each partition: read the writer's files and the sealed end (from the table, in this cycle), propose the
files to remove (`propose`, pure), remove them, and note in `deleter.json` where the WAL starts now. No WAL file is
opened: each file's first offset was recorded when it was created, and a file ends where the next one begins.

If the process is killed after a file was removed but before that was noted, the next cycle notes it. Readers that had
the file open keep reading it. Others look at the table, which has its records.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lastword import metrics
from lastword.config import BrokerConfig, TopicSettings
from lastword.folder.paths import ASIDE_FOLDER
from lastword.folder.steps import reached
from lastword.wal import checkpoint as checkpoints
from lastword.wal import producers
from lastword.wal.checkpoint import DeleterCheckpoint
from lastword.wal.files import WalFile, file_name

logger = logging.getLogger(__name__)

ASIDE_KEPT_MS = 7 * 24 * 3600 * 1000

Rule = Literal["local.retention.ms", "local.retention.bytes", "wal.max.bytes", "already gone", "erased"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFile:
    """A WAL file as a cycle sees it. `end_offset` is None for the active file, the size is None if it is gone."""

    seq: int
    first_offset: int
    end_offset: int | None
    rolled_ms: int | None
    size_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFiles:
    """The files of one partition's WAL, oldest first."""

    sealed_end: int
    files: tuple[LocalFile, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes or 0 for file in self.files)

    def waiting_ms(self, now_ms: int) -> int:
        """Return how long the oldest rolled file has waited to be sealed; 0 if none has."""
        rolled_ms = [
            file.rolled_ms
            for file in self.files
            if file.rolled_ms is not None and (file.end_offset or 0) > self.sealed_end
        ]
        return max(0, now_ms - min(rolled_ms)) if rolled_ms else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalWal(LocalFiles):
    """One partition's WAL as a cycle sees it."""

    topic: str
    partition: int
    folder: Path
    settings: TopicSettings
    producers_saved_to: int | None = None
    """Files beyond this offset are still needed to rebuild producer state; None: there are no producers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """A file that may be removed, and the rule that allows it."""

    topic: str
    partition: int
    path: Path
    file: LocalFile
    rule: Rule
    age_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """The files that a cycle removed, or with a dry run would remove. `errors`: the files that stayed, and why."""

    deletions: tuple[Deletion, ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(each.file.size_bytes or 0 for each in self.deletions)


def local_wal(
    topic: str, partition: int, folder: Path, *, sealed_end: int, settings: TopicSettings
) -> LocalWal | None:
    """Return a partition's WAL as it is on disk; None if it has none yet."""
    saved = checkpoints.load_writer(folder)
    if saved is None:
        return None
    return LocalWal(
        topic=topic,
        partition=partition,
        folder=folder,
        sealed_end=sealed_end,
        settings=settings,
        files=local_files(folder, checkpoints.left_files(folder, saved)),
        producers_saved_to=producers.saved_offset(folder),
    )


def local_files(folder: Path, files: Sequence[WalFile]) -> tuple[LocalFile, ...]:
    """Return the files of a WAL, oldest first, with their sizes on disk."""
    ends: list[int | None] = [file.first_offset for file in files[1:]]
    return tuple(_local(folder, file, end) for file, end in zip(files, [*ends, None], strict=False))


def _local(folder: Path, file: WalFile, end_offset: int | None) -> LocalFile:
    try:
        size_bytes: int | None = (folder / file.name).stat().st_size
    except FileNotFoundError:
        size_bytes = None
    return LocalFile(
        seq=file.seq,
        first_offset=file.first_offset,
        end_offset=end_offset,
        rolled_ms=file.rolled_ms,
        size_bytes=size_bytes,
    )


def propose(wals: Sequence[LocalWal], config: BrokerConfig, now_ms: int) -> list[Deletion]:
    """Return the files that may go, oldest first: by each partition's rules, then by the bound on all partitions."""
    proposed: list[Deletion] = []
    spared: list[tuple[LocalWal, LocalFile]] = []
    total_bytes = 0
    for wal in wals:
        chosen, left = _propose_one(wal, config, now_ms)
        proposed += chosen
        spared += [(wal, file) for file in left]
        total_bytes += wal.size_bytes - sum(each.file.size_bytes or 0 for each in chosen)
    if config.deleter_size_enabled and config.wal_max_bytes is not None:
        for wal, file in _oldest_first(spared):
            if total_bytes <= config.wal_max_bytes:
                break
            proposed.append(deletion(wal, file, "wal.max.bytes", now_ms))
            total_bytes -= file.size_bytes or 0
    return proposed


def _oldest_first(spared: Sequence[tuple[LocalWal, LocalFile]]) -> list[tuple[LocalWal, LocalFile]]:
    """Sort by the time of the roll, but within a partition always in order, even if a clock was set back."""
    aged: list[tuple[int, int, tuple[LocalWal, LocalFile]]] = []
    latest_ms: dict[Path, int] = {}
    for wal, file in spared:
        latest_ms[wal.folder] = max(latest_ms.get(wal.folder, 0), file.rolled_ms or 0)
        aged.append((latest_ms[wal.folder], file.seq, (wal, file)))
    return [each for _, _, each in sorted(aged, key=lambda entry: entry[:2])]


def _propose_one(wal: LocalWal, config: BrokerConfig, now_ms: int) -> tuple[list[Deletion], list[LocalFile]]:
    """Return the files of a partition that its rules let go, and those that are sealed but stay."""
    settings = wal.settings
    chosen: list[Deletion] = []
    limit = wal.sealed_end
    if wal.producers_saved_to is not None:
        limit = min(limit, wal.producers_saved_to)
    sealed = [file for file in wal.files if file.end_offset is not None and file.end_offset <= limit]
    left_bytes = wal.size_bytes
    for index, file in enumerate(sealed):
        age_ms = _age_ms(file, now_ms)
        rule: Rule | None = None
        if file.size_bytes is None:
            rule = "already gone"
        elif (
            config.deleter_time_enabled
            and settings.local_retention_ms is not None
            and age_ms >= settings.local_retention_ms
        ):
            rule = "local.retention.ms"
        elif (
            config.deleter_size_enabled
            and settings.local_retention_bytes is not None
            and left_bytes > settings.local_retention_bytes
        ):
            rule = "local.retention.bytes"
        if rule is None:
            return chosen, sealed[index:]
        chosen.append(deletion(wal, file, rule, now_ms))
        left_bytes -= file.size_bytes or 0
    return chosen, []


def deletion(wal: LocalWal, file: LocalFile, rule: Rule, now_ms: int) -> Deletion:
    return Deletion(
        topic=wal.topic,
        partition=wal.partition,
        path=wal.folder / file_name(file.seq),
        file=file,
        rule=rule,
        age_ms=_age_ms(file, now_ms),
    )


def _age_ms(file: LocalFile, now_ms: int) -> int:
    return max(0, now_ms - (file.rolled_ms or now_ms))


def execute(wals: Sequence[LocalWal], deletions: Sequence[Deletion], now_ms: int) -> Deleted:
    """Remove the files, oldest first, and note where each WAL starts now.

    A file that can't be removed stops its partition.
    """
    done: list[Deletion] = []
    errors: list[str] = []
    by_folder: dict[Path, list[Deletion]] = {}
    for each in deletions:
        by_folder.setdefault(each.path.parent, []).append(each)
    left_bytes: dict[str, int] = {}
    for wal in wals:
        removed, error = _execute_one(wal, by_folder.get(wal.folder, []))
        done += removed
        if error is not None:
            errors.append(error)
        freed_bytes = sum(each.file.size_bytes or 0 for each in removed)
        left_bytes[wal.topic] = left_bytes.get(wal.topic, 0) + wal.size_bytes - freed_bytes
        _remove_old_asides(wal.folder, now_ms)
    for topic, size_bytes in left_bytes.items():
        metrics.WAL_DISK_USAGE.labels(topic).set(size_bytes)
        metrics.WAL_RETENTION_LAST_RUN.labels(topic).set(now_ms / 1000)
    return Deleted(deletions=tuple(done), errors=tuple(errors))


def _execute_one(wal: LocalWal, deletions: Sequence[Deletion]) -> tuple[list[Deletion], str | None]:
    done: list[Deletion] = []
    error: str | None = None
    for each in sorted(deletions, key=lambda deletion: deletion.file.seq):
        end_offset = each.file.end_offset
        if end_offset is None or end_offset > wal.sealed_end:
            logger.warning(
                "refused to delete %s: its records are not all sealed (sealed end %d)",
                each.path,
                wal.sealed_end,
            )
            break
        try:
            each.path.unlink(missing_ok=True)
        except OSError as caught:
            error = f"Can't remove {each.path}: {caught.strerror or caught}. The next cycle will retry."
            logger.error("%s", error)
            metrics.WAL_RETENTION_ERRORS.labels(wal.topic).inc()
            break
        reached("deleter.removed")
        done.append(each)
        if each.rule == "already gone":
            continue
        logger.info(
            "deleted %s: offsets %d to %d, %d bytes, %d s old, by %s",
            each.path,
            each.file.first_offset,
            end_offset - 1,
            each.file.size_bytes or 0,
            each.age_ms // 1000,
            each.rule,
        )
        metrics.WAL_FILES_DELETED.labels(wal.topic).inc()
        metrics.WAL_BYTES_RECLAIMED.labels(wal.topic).inc(each.file.size_bytes or 0)
    if done:
        gone = {each.file.seq for each in done}
        oldest = next(file for file in wal.files if file.seq not in gone)
        try:
            checkpoints.save_deleter(
                wal.folder, DeleterCheckpoint(start_seq=oldest.seq, start_offset=oldest.first_offset)
            )
            reached("deleter.noted")
        except OSError as caught:
            # The next cycle finds that the files are gone, and notes it then.
            error = f"Can't note in {wal.folder} which files were removed: {caught.strerror or caught}."
            logger.error("%s", error)
            metrics.WAL_RETENTION_ERRORS.labels(wal.topic).inc()
    return done, error


def _remove_old_asides(folder: Path, now_ms: int) -> None:
    aside = folder / ASIDE_FOLDER
    try:
        for path in aside.iterdir() if aside.exists() else ():
            # The time when it was moved there, not its last write, which may be long ago.
            if now_ms - path.stat().st_ctime_ns // 1_000_000 > ASIDE_KEPT_MS:
                path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("can't clean up %s: %s", aside, error)
