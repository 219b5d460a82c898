"""Opens a partition's WAL, whatever state the last process, the disk or the power left it in.

Steps:
1. trust `writer.json`, or rebuild it from the files if it is missing or names fewer files than there are;
2. if it was trusted and the WAL was closed cleanly, trust `wal.state` and read nothing;
3. else walk the active file. Bytes that are not a whole batch are a torn tail if they lie after the durable end in
   `wal.state`: they are cut off and kept aside. If they lie before it, they are damage: the file is left as it is,
   its damage is noted, and appends continue in a new file after it;
4. if the last writer had marked the file as failed, copy the acknowledged part to a new file instead;
5. continue at the highest of the WAL's end, the sealed end and the log start, under a new leader epoch if the
   open was unclean.

Recovery may be killed at any point: every step can be repeated. A file is created before `writer.json` names it, and
removed after `writer.json` no longer does.
"""

from __future__ import annotations

import logging
import os
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

from lastword import batch
from lastword.errors import CorruptError
from lastword.folder import disk
from lastword.folder.paths import ASIDE_FOLDER, WRITER_FILE
from lastword.folder.steps import reached
from lastword.wal import checkpoint as checkpoints
from lastword.wal import producers
from lastword.wal import state as states
from lastword.wal.checkpoint import Damage, WriterCheckpoint
from lastword.wal.files import CHUNK_BYTES, WalFile, create_file, file_name, header_at, list_seqs, walk
from lastword.wal.state import Phase, StateFile, WalState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The positions of a partition in the table. The WAL may not continue below them."""

    sealed_end: int = 0
    log_start: int = 0
    epochs: tuple[tuple[int, int], ...] = ()

    @property
    def offset(self) -> int:
        return max(self.sealed_end, self.log_start)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedWal:
    """The result of recovery: where to continue. With `failed` set the partition can be read, not written."""

    checkpoint: WriterCheckpoint
    end_offset: int
    end_position: int
    failed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walked:
    """The end of the whole batches of a file, the problem there, and the leader epochs of those batches."""

    end_offset: int
    end_position: int
    problem: str | None
    epochs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The checkpoint to continue from. A rebuilt one is not on disk yet, and its epochs may be too old."""

    checkpoint: WriterCheckpoint
    rebuilt: bool = False


def open_wal(folder: Path, *, topic_id: UUID, partition: int, floor: Floor, now_ms: int) -> OpenedWal:
    """Open the WAL of a partition, or start one. If the disk fails, the WAL stays readable, with `failed` set."""
    found: _Found | None = None
    try:
        disk.make_folder(folder)
        found = _load_checkpoint(folder, topic_id=topic_id, partition=partition, floor=floor)
        if found is None:
            return _start(folder, topic_id=topic_id, partition=partition, floor=floor, now_ms=now_ms)
        return _reopen(folder, found, floor=floor, now_ms=now_ms)
    except OSError as error:
        failed = f"Can't recover the WAL in {folder}: {error.strerror or error}. It can be read, not written."
        logger.error("%s", failed)
    if found is not None:
        checkpoint = found.checkpoint
    else:
        file = WalFile(seq=1, first_offset=floor.offset, opened_ms=now_ms)
        epochs = floor.epochs or ((0, 0),)
        checkpoint = WriterCheckpoint(topic_id=topic_id, partition=partition, files=(file,), epochs=epochs)
    end_offset = max(floor.offset, checkpoint.active.first_offset, _shown_before(folder))
    return OpenedWal(checkpoint=checkpoint, end_offset=end_offset, end_position=0, failed=failed)


def _start(folder: Path, *, topic_id: UUID, partition: int, floor: Floor, now_ms: int) -> OpenedWal:
    # A state or a table that is ahead of missing files means that the WAL was lost: this is an unclean open. The
    # records that were acknowledged and not sealed are missing, which sealing and reading will report.
    known, deleter = states.load(folder), checkpoints.load_deleter(folder)
    first_offset = max(floor.offset, known.visible_offset if known else 0)
    epochs = _raised(floor.epochs, first_offset) if first_offset or floor.epochs else ((0, 0),)
    # Don't reuse a number that an old state or the deleter knows: they refer to another file.
    seq = 1 + max(known.seq if known else 0, deleter.start_seq if deleter else 0)
    file = WalFile(seq=seq, first_offset=first_offset, opened_ms=now_ms)
    os.close(create_file(folder, file))
    reached("wal.started.created")
    started = WriterCheckpoint(topic_id=topic_id, partition=partition, files=(file,), epochs=epochs)
    return _go_on(folder, started, first_offset, 0)


def _shown_before(folder: Path) -> int:
    try:
        known = states.load(folder)
    except OSError:
        # Reported already: it is why the WAL can't be opened.
        return 0
    return known.visible_offset if known else 0


def _load_checkpoint(folder: Path, *, topic_id: UUID, partition: int, floor: Floor) -> _Found | None:
    there = list_seqs(folder)
    saved = checkpoints.load_writer(folder)
    if saved is not None:
        unnamed = [seq for seq in there if seq > saved.active.seq]
        if all(_is_empty(folder, seq) for seq in unnamed):
            for seq in unnamed:
                (folder / file_name(seq)).unlink()
            _put_strays_aside(folder, there, saved)
            return _Found(checkpoint=replace(saved, files=checkpoints.left_files(folder, saved)))
    elif all(_is_empty(folder, seq) for seq in there):
        # The process was killed while it started the WAL for the first time, or everything is lost.
        for seq in there:
            (folder / file_name(seq)).unlink()
        return None
    logger.warning("%s does not match the WAL files and is rebuilt from them", folder / WRITER_FILE)
    files, epochs = _rebuild(folder, there, saved, floor)
    damage = saved.damage if saved else ()
    rebuilt = WriterCheckpoint(
        topic_id=topic_id, partition=partition, files=files, epochs=epochs, damage=damage
    )
    return _Found(checkpoint=rebuilt, rebuilt=True)


def _is_empty(folder: Path, seq: int) -> bool:
    return (folder / file_name(seq)).stat().st_size == 0


def _put_strays_aside(folder: Path, there: list[int], saved: WriterCheckpoint) -> None:
    """Move aside the files that a process replaced before it was killed, and remove its unfinished ones."""
    named = {file.seq for file in saved.files}
    for seq in there:
        if seq < saved.active.seq and seq not in named:
            path = folder / file_name(seq)
            path.rename(aside_path(folder, f"{path.name}.replaced"))
    for pattern in ("*.copy", "*.repair"):
        for unfinished in folder.glob(pattern):
            unfinished.unlink()


def _rebuild(
    folder: Path, there: list[int], saved: WriterCheckpoint | None, floor: Floor
) -> tuple[tuple[WalFile, ...], tuple[tuple[int, int], ...]]:
    """Rebuild the files and epochs from the saved checkpoint, the files themselves and the table."""
    named = {file.seq: file for file in checkpoints.left_files(folder, saved)} if saved else {}
    epochs = (saved.epochs if saved else floor.epochs) or ((0, 0),)
    files: list[WalFile] = []
    seqs = sorted({*there, *named})
    for seq in seqs:
        path = folder / file_name(seq)
        if seq in named and (named[seq].rolled_ms is not None or seq not in there):
            files.append(named[seq])
            continue
        changed_ms = path.stat().st_mtime_ns // 1_000_000
        header = _first_header(path)
        if header is not None:
            first_offset = header.base_offset
            epochs = _joined(epochs, ((header.leader_epoch, header.base_offset),))
        elif files:
            # It has no readable header: it begins where the one before it ends.
            before = files[-1]
            walked = _walk(folder / before.name, before.first_batch_offset, before.size_bytes or 0)
            first_offset, epochs = walked.end_offset, _joined(epochs, walked.epochs)
        else:
            first_offset = named[seq].first_offset if seq in named else floor.offset
        file = WalFile(seq=seq, first_offset=first_offset, opened_ms=changed_ms)
        if seq != seqs[-1]:
            file = file.rolled(size_bytes=path.stat().st_size, now_ms=changed_ms)
        files.append(file)
    return tuple(files), epochs


def _first_header(path: Path) -> batch.BatchHeader | None:
    with path.open("rb") as file:
        return header_at(file.read(batch.HEADER_BYTES))


def _joined(
    epochs: tuple[tuple[int, int], ...], more: tuple[tuple[int, int], ...]
) -> tuple[tuple[int, int], ...]:
    for epoch, first_offset in more:
        if epoch > epochs[-1][0]:
            epochs = (*epochs, (epoch, first_offset))
    return epochs


def _reopen(folder: Path, loaded: _Found, *, floor: Floor, now_ms: int) -> OpenedWal:
    found = loaded.checkpoint
    known = states.load(folder)
    if known is not None and known.seq != found.active.seq:
        # The roll that created the active file was killed before it wrote the state: the file's state is unknown.
        known = None
    path = folder / found.active.name
    size_bytes = path.stat().st_size if path.exists() else -1
    is_clean = known is not None and known.phase is Phase.CLEAN and known.visible_position == size_bytes
    if known is not None and is_clean and not loaded.rebuilt:
        if known.visible_offset >= floor.offset:
            return OpenedWal(checkpoint=found, end_offset=known.visible_offset, end_position=size_bytes)
        return _start_behind_table(folder, found, floor=floor, now_ms=now_ms)
    logger.warning("%s was not closed cleanly; recovering it", folder)
    if known is not None and known.phase is Phase.FAILED:
        recovered, end_offset, end_position = _copy_acknowledged(folder, found, known, now_ms)
    else:
        recovered, end_offset, end_position = _recover_active(
            folder, loaded, known, max(size_bytes, 0), now_ms
        )
    if end_offset < floor.offset:
        return _start_behind_table(folder, recovered, floor=floor, now_ms=now_ms)
    epochs = recovered.epochs
    if floor.epochs and floor.epochs[-1][0] > epochs[-1][0]:
        epochs = floor.epochs
    epochs = _from_log_start(_raised(epochs, end_offset), floor.log_start)
    return _go_on(folder, replace(recovered, epochs=epochs), end_offset, end_position)


def _recover_active(
    folder: Path, loaded: _Found, known: WalState | None, size_bytes: int, now_ms: int
) -> tuple[WriterCheckpoint, int, int]:
    found = loaded.checkpoint
    path = folder / found.active.name
    if not path.exists():
        os.close(create_file(folder, found.active))
    walked = _walk(path, found.active.first_batch_offset, size_bytes)
    if loaded.rebuilt:
        found = replace(found, epochs=_joined(found.epochs, walked.epochs))
    durable_position = known.durable_position if known else 0
    if walked.end_position < durable_position:
        assert known is not None
        return _leave_damaged(folder, found, known, walked, size_bytes, now_ms)
    if walked.problem is not None:
        _cut(folder, path, walked)
    with path.open("rb") as file:
        disk.fsync(file.fileno())
    return found, walked.end_offset, walked.end_position


def _walk(path: Path, first_offset: int, end_position: int, start_position: int = 0) -> _Walked:
    end_offset, position = first_offset, start_position
    epochs: tuple[tuple[int, int], ...] = ()
    problem = None
    try:
        for placed in walk(
            path, position=start_position, end_position=end_position, expected_offset=first_offset
        ):
            header = placed.header
            if not epochs or header.leader_epoch > epochs[-1][0]:
                epochs = (*epochs, (header.leader_epoch, header.base_offset))
            end_offset, position = header.next_offset, placed.position + header.size_bytes
    except CorruptError as error:
        problem = str(error)
    return _Walked(end_offset=end_offset, end_position=position, problem=problem, epochs=epochs)


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
        "cut %d unacknowledged bytes off the end of %s at offset %d; they are kept in %s",
        len(torn),
        path,
        walked.end_offset,
        aside,
    )


def _leave_damaged(
    folder: Path, found: WriterCheckpoint, known: WalState, walked: _Walked, size_bytes: int, now_ms: int
) -> tuple[WriterCheckpoint, int, int]:
    path = folder / found.active.name
    # A batch starts at the durable end, so the batches after the damage can be found from there.
    behind = _walk(
        path, known.durable_offset, max(size_bytes, known.durable_position), known.durable_position
    )
    damage = Damage(
        seq=found.active.seq,
        position=walked.end_position,
        first_offset=walked.end_offset,
        end_offset=known.durable_offset,
    )
    logger.error("%s", walked.problem or f"{path} ends at byte {size_bytes}, before its durable end")
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
    if not old.exists():
        os.close(create_file(folder, found.active))
    walked = _walk(old, found.active.first_batch_offset, known.visible_position)
    if walked.end_position < known.durable_position:
        # It is damaged as well: leave it for inspection, as after any other damage.
        return _leave_damaged(folder, found, known, walked, known.visible_position, now_ms)
    # Under another name until it is complete: a partial copy must never be taken for the WAL.
    copy = folder / f"{new.name}.copy"
    _copy(old, copy, walked.end_position)
    copy.rename(folder / new.name)
    disk.sync_folder(folder)
    reached("wal.recover.copied")
    copied = replace(found, files=(*found.files[:-1], new))
    checkpoints.save_writer(folder, copied)
    reached("wal.recover.renamed")
    old.rename(aside_path(folder, f"{old.name}.failed"))
    disk.sync_folder(folder)
    return copied, walked.end_offset, walked.end_position


def _copy(source: Path, target: Path, size_bytes: int) -> None:
    with source.open("rb") as reading, target.open("wb", buffering=0) as writing:
        left = size_bytes
        while left:
            chunk = reading.read(min(left, CHUNK_BYTES))
            disk.write_all(writing.fileno(), chunk)
            left -= len(chunk)
        disk.fsync(writing.fileno())


def _start_behind_table(folder: Path, found: WriterCheckpoint, *, floor: Floor, now_ms: int) -> OpenedWal:
    """Drop a WAL that ends before the table does, as all its records are sealed, and continue at the table's end."""
    logger.warning("the WAL in %s ends before the table does; continuing at offset %d", folder, floor.offset)
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
    producers.recover(folder, checkpoint.files, end_offset=end_offset, end_position=end_position)
    reached("wal.recover.producers_saved")
    state = WalState(
        phase=Phase.CLEAN,
        seq=checkpoint.active.seq,
        visible_offset=end_offset,
        visible_position=end_position,
        durable_offset=end_offset,
        durable_position=end_position,
    )
    with closing(StateFile(folder)) as state_file:
        state_file.write(state, sync=True)
    reached("wal.recovered")
    return OpenedWal(checkpoint=checkpoint, end_offset=end_offset, end_position=end_position)


def _raised(epochs: tuple[tuple[int, int], ...], end_offset: int) -> tuple[tuple[int, int], ...]:
    last = epochs[-1][0] if epochs else -1
    # An epoch under which nothing was written is replaced, because no offset has it.
    kept = tuple(each for each in epochs if each[1] < end_offset)
    return (*kept, (last + 1, end_offset))


def _from_log_start(epochs: tuple[tuple[int, int], ...], log_start: int) -> tuple[tuple[int, int], ...]:
    """Drop epochs whose records are all below the log start, so that they don't accumulate forever."""
    first = max((at for at, each in enumerate(epochs) if each[1] <= log_start), default=0)
    return epochs[first:]


def aside_path(folder: Path, name: str) -> Path:
    """Return an unused path in the folder for files that are kept aside."""
    aside = folder / ASIDE_FOLDER
    disk.make_folder(aside)
    target = aside / name
    number = 0
    while target.exists():
        number += 1
        target = aside / f"{name}.{number}"
    return target
