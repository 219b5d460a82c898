"""Opens a partition's WAL, whatever state the last process, the disk or the power left it in.

By its steps:
1. believe `writer.json`, or rebuild it from the files if it is missing or names fewer files than there are;
2. if the WAL was closed in order, trust `wal.state` and read nothing;
3. else walk the active file. Bytes that don't make a whole batch are a torn tail if they lie after what
   `wal.state` knows to be durable: they are cut and kept aside. If they lie before it, they are damage: the
   file is left as it is, its damage is noted, and appends go on in a new file behind it;
4. if the last writer had marked the file as failed, copy what it had acknowledged to a new file instead;
5. go on at the highest of the WAL's end, the sealed end and the log start, under a new leader epoch if the
   open was unclean.

Killed at any point: every step can be repeated. Files appear before `writer.json` names them and go after it
stopped naming them.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

from lastword import batch, disk
from lastword.errors import CorruptError
from lastword.steps import reached
from lastword.wal import checkpoint as checkpoints
from lastword.wal import state as states
from lastword.wal.checkpoint import Damage, WriterCheckpoint
from lastword.wal.files import ASIDE_FOLDER, WalFile, file_name, list_seqs, walk
from lastword.wal.state import Phase, StateFile, WalState
from lastword.wal.writer import OpenedWal, create_file

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What the table knows of a partition; the WAL may not go on below it."""

    sealed_end: int = 0
    log_start: int = 0
    epochs: tuple[tuple[int, int], ...] = ()

    @property
    def offset(self) -> int:
        return max(self.sealed_end, self.log_start)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walked:
    """How far a file holds whole batches, and why not further."""

    end_offset: int
    end_position: int
    problem: str | None


def open_wal(folder: Path, *, topic_id: UUID, partition: int, floor: Floor, now_ms: int) -> OpenedWal:
    """Open the WAL of a partition, or start one; a disk that fails leaves it readable, with `failed` set."""
    disk.make_folder(folder)
    found = _load_checkpoint(folder, topic_id=topic_id, partition=partition, floor=floor)
    if found is None:
        return _start(folder, topic_id=topic_id, partition=partition, floor=floor, now_ms=now_ms)
    try:
        return _reopen(folder, found, floor=floor, now_ms=now_ms)
    except OSError as error:
        failed = f"Can't recover the WAL in {folder}: {error.strerror or error}. It can be read, not written."
        logger.error("%s", failed)
        known = states.load(folder)
        end_offset = max(floor.offset, found.active.first_offset, known.visible_offset if known else 0)
        return OpenedWal(checkpoint=found, end_offset=end_offset, end_position=0, failed=failed)


def _start(folder: Path, *, topic_id: UUID, partition: int, floor: Floor, now_ms: int) -> OpenedWal:
    # A table that is ahead of a WAL that is not there means that the WAL was lost: that is an unclean open.
    epochs = _raised(floor.epochs, floor.offset) if floor.offset or floor.epochs else ((0, 0),)
    file = WalFile(seq=1, first_offset=floor.offset, opened_ms=now_ms)
    os.close(create_file(folder, file))
    reached("wal.started.created")
    started = WriterCheckpoint(topic_id=topic_id, partition=partition, files=(file,), epochs=epochs)
    return _go_on(folder, started, floor.offset, 0)


def _load_checkpoint(
    folder: Path, *, topic_id: UUID, partition: int, floor: Floor
) -> WriterCheckpoint | None:
    there = list_seqs(folder)
    saved = checkpoints.load_writer(folder)
    if saved is not None:
        unnamed = [seq for seq in there if seq > saved.active.seq]
        if all((folder / file_name(seq)).stat().st_size == 0 for seq in unnamed):
            for seq in unnamed:
                (folder / file_name(seq)).unlink()
            return replace(saved, files=checkpoints.left_files(folder, saved))
    elif all((folder / file_name(seq)).stat().st_size == 0 for seq in there):
        # Killed while it was started for the first time.
        return None
    logger.warning(
        "%s does not fit the files beside it and is made anew from them", folder / checkpoints.WRITER_FILE
    )
    files = _rebuild_files(folder, there, floor)
    epochs = saved.epochs if saved else floor.epochs or ((0, 0),)
    return WriterCheckpoint(topic_id=topic_id, partition=partition, files=files, epochs=epochs)


def _rebuild_files(folder: Path, seqs: list[int], floor: Floor) -> tuple[WalFile, ...]:
    files: list[WalFile] = []
    for seq in seqs:
        path = folder / file_name(seq)
        stat = path.stat()
        changed_ms = stat.st_mtime_ns // 1_000_000
        with path.open("rb") as file:
            head = file.read(batch.HEADER_BYTES)
        try:
            header = batch.read_header(head)
        except batch.BadBatchError:
            header = None
        if header is not None:
            first_offset = header.base_offset
        else:
            known = states.load(folder)
            first_offset = known.durable_offset if known else floor.offset
        files.append(
            WalFile(
                seq=seq,
                first_offset=first_offset,
                opened_ms=changed_ms,
                size_bytes=stat.st_size if seq != seqs[-1] else None,
                rolled_ms=changed_ms if seq != seqs[-1] else None,
            )
        )
    return tuple(files)


def _reopen(folder: Path, found: WriterCheckpoint, *, floor: Floor, now_ms: int) -> OpenedWal:
    known = states.load(folder)
    if known is not None and known.seq != found.active.seq:
        # The roll that opened the active file had not come to write the state: nothing of it is known.
        known = None
    path = folder / found.active.name
    size_bytes = path.stat().st_size if path.exists() else 0
    if known and known.phase is Phase.CLEAN and known.visible_position == size_bytes:
        if known.visible_offset >= floor.offset:
            return OpenedWal(checkpoint=found, end_offset=known.visible_offset, end_position=size_bytes)
        return _start_behind_table(folder, found, floor=floor, now_ms=now_ms)
    logger.warning("%s was not closed in order; recovering it", folder)
    if known is not None and known.phase is Phase.FAILED:
        recovered, end_offset, end_position = _copy_acknowledged(folder, found, known, now_ms)
    else:
        recovered, end_offset, end_position = _recover_active(folder, found, known, size_bytes, now_ms)
    if end_offset < floor.offset:
        return _start_behind_table(folder, recovered, floor=floor, now_ms=now_ms)
    epochs = recovered.epochs
    if floor.epochs and floor.epochs[-1][0] > epochs[-1][0]:
        epochs = floor.epochs
    return _go_on(folder, replace(recovered, epochs=_raised(epochs, end_offset)), end_offset, end_position)


def _recover_active(
    folder: Path, found: WriterCheckpoint, known: WalState | None, size_bytes: int, now_ms: int
) -> tuple[WriterCheckpoint, int, int]:
    path = folder / found.active.name
    if not path.exists():
        os.close(create_file(folder, found.active))
    walked = _walk_active(path, found.active.first_offset, size_bytes)
    durable_position = known.durable_position if known else 0
    if walked.end_position < durable_position:
        assert known is not None
        return _leave_damaged(folder, found, known, walked, size_bytes, now_ms)
    if walked.problem is not None:
        _cut(folder, path, walked)
    with path.open("rb") as file:
        disk.fsync(file.fileno())
    return found, walked.end_offset, walked.end_position


def _walk_active(path: Path, first_offset: int, end_position: int, start_position: int = 0) -> _Walked:
    end_offset, position = first_offset, start_position
    try:
        for placed in walk(
            path, position=start_position, end_position=end_position, expected_offset=first_offset
        ):
            end_offset, position = placed.header.next_offset, placed.position + placed.header.size_bytes
    except CorruptError as error:
        return _Walked(end_offset=end_offset, end_position=position, problem=str(error))
    return _Walked(end_offset=end_offset, end_position=position, problem=None)


def _cut(folder: Path, path: Path, walked: _Walked) -> None:
    aside = aside_path(folder, f"{path.name}.torn-at-{walked.end_position}")
    with path.open("r+b") as file:
        file.seek(walked.end_position)
        torn = file.read()
        disk.replace_file(aside, torn)
        reached("wal.recover.kept_aside")
        file.truncate(walked.end_position)
        disk.fsync(file.fileno())
    reached("wal.recover.cut")
    logger.warning(
        "cut %d bytes that were never acknowledged off the end of %s at offset %d; they are kept in %s",
        len(torn),
        path,
        walked.end_offset,
        aside,
    )


def _leave_damaged(
    folder: Path, found: WriterCheckpoint, known: WalState, walked: _Walked, size_bytes: int, now_ms: int
) -> tuple[WriterCheckpoint, int, int]:
    path = folder / found.active.name
    # A batch starts where the durable bytes end, so what came after the damage can still be found from there.
    behind = _walk_active(
        path, known.durable_offset, max(size_bytes, known.durable_position), known.durable_position
    )
    damage = Damage(
        seq=found.active.seq,
        position=walked.end_position,
        first_offset=walked.end_offset,
        end_offset=known.durable_offset,
    )
    logger.error("%s", walked.problem or f"{path} ends at byte {size_bytes}, before what was durable")
    new = WalFile(seq=found.active.seq + 1, first_offset=behind.end_offset, opened_ms=now_ms)
    os.close(create_file(folder, new))
    reached("wal.recover.created")
    old = found.active.rolled(size_bytes=behind.end_position, now_ms=now_ms)
    files = (*found.files[:-1], old, new)
    return replace(found, files=files, damage=(*found.damage, damage)), behind.end_offset, 0


def _copy_acknowledged(
    folder: Path, found: WriterCheckpoint, known: WalState, now_ms: int
) -> tuple[WriterCheckpoint, int, int]:
    old = folder / found.active.name
    new = WalFile(
        seq=found.active.seq + 1, first_offset=found.active.first_offset, opened_ms=found.active.opened_ms
    )
    walked = _walk_active(old, found.active.first_offset, known.visible_position)
    if walked.end_position < known.visible_position:
        # Damaged as well: leave it to be looked at, as after any other damage.
        return _leave_damaged(folder, found, known, walked, known.visible_position, now_ms)
    fd = create_file(folder, new)
    try:
        with old.open("rb") as source:
            left = known.visible_position
            while left:
                chunk = source.read(min(left, 4 << 20))
                disk.write_all(fd, chunk)
                left -= len(chunk)
        disk.fsync(fd)
    finally:
        os.close(fd)
    reached("wal.recover.copied")
    copied = replace(found, files=(*found.files[:-1], new))
    checkpoints.save_writer(folder, copied)
    reached("wal.recover.renamed")
    old.rename(aside_path(folder, f"{old.name}.failed"))
    disk.sync_folder(folder)
    return copied, walked.end_offset, walked.end_position


def _start_behind_table(folder: Path, found: WriterCheckpoint, *, floor: Floor, now_ms: int) -> OpenedWal:
    """Everything that the WAL holds is sealed, and more: drop it, and go on where the table ends."""
    logger.warning("the WAL in %s ends before the table does; going on at offset %d", folder, floor.offset)
    file = WalFile(seq=found.active.seq + 1, first_offset=floor.offset, opened_ms=now_ms)
    os.close(create_file(folder, file))
    epochs = max(found.epochs, floor.epochs, key=lambda each: each[-1][0] if each else -1)
    moved = replace(found, files=(file,), epochs=_raised(epochs, floor.offset), damage=())
    opened = _go_on(folder, moved, floor.offset, 0)
    for old in found.files:
        (folder / old.name).unlink(missing_ok=True)
    return opened


def _go_on(folder: Path, checkpoint: WriterCheckpoint, end_offset: int, end_position: int) -> OpenedWal:
    checkpoints.save_writer(folder, checkpoint)
    reached("wal.recover.named")
    state_file = StateFile(folder)
    state_file.write(
        WalState(
            phase=Phase.CLEAN,
            seq=checkpoint.active.seq,
            visible_offset=end_offset,
            visible_position=end_position,
            durable_offset=end_offset,
            durable_position=end_position,
        ),
        sync=True,
    )
    state_file.close()
    reached("wal.recovered")
    return OpenedWal(checkpoint=checkpoint, end_offset=end_offset, end_position=end_position)


def _raised(epochs: tuple[tuple[int, int], ...], end_offset: int) -> tuple[tuple[int, int], ...]:
    last = epochs[-1][0] if epochs else -1
    # An epoch under which nothing was written is replaced, as it never had an offset of its own.
    kept = tuple(each for each in epochs if each[1] < end_offset)
    return (*kept, (last + 1, end_offset))


def aside_path(folder: Path, name: str) -> Path:
    """A free name in the folder for what is kept aside."""
    aside = folder / ASIDE_FOLDER
    disk.make_folder(aside)
    target = aside / name
    number = 0
    while target.exists():
        number += 1
        target = aside / f"{name}.{number}"
    return target
