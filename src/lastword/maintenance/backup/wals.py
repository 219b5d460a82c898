"""Copies the write-ahead log of a partition while it is being written, and restores it from a copy.

The steps of a copy:
1. `writer.json` says which files there are, `wal.state` how far the active one may be read. All acknowledged records
   are before that;
2. the files that hold offsets from the sealed end on are copied, the active one up to that position;
3. `writer.json` is read again. If a file has been replaced meanwhile (a partition that was reopened after a failure, a
   repair), the copy starts over.

A file that vanishes during the copy was deleted because it is sealed. The snapshot of the table that is pinned after
the copy has its records, so that file, and those copied before it, are left out. The caller that pins the snapshot
checks that (`first_missing`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from lastword.clock import new_uuid
from lastword.errors import CorruptError, UnavailableError
from lastword.folder import disk
from lastword.folder.paths import WRITER_FILE
from lastword.folder.steps import reached
from lastword.maintenance.backup.manifest import SavedWal
from lastword.maintenance.backup.store import CHUNK_BYTES, BackupStore, Piece, put
from lastword.wal import checkpoint as checkpoints
from lastword.wal import state as states
from lastword.wal.checkpoint import WriterCheckpoint
from lastword.wal.files import WalFile, create_file, unreadable, walk
from lastword.wal.state import Phase, StateFile, WalState

FOLDER = "wal"
EPOCHS_APART = 1_000
"""The increase of a restored partition's leader epoch. The original may have raised its own since the backup."""

_ATTEMPTS = 10

Known = Mapping[tuple[UUID, int, WalFile], Piece]
"""Rolled files that earlier backups in the store have."""


class _ReplacedError(Exception):
    """A file has been replaced or deleted."""


def save(
    store: BackupStore, folder: Path, *, topic_id: UUID, partition: int, sealed_end: int, known: Known
) -> SavedWal:
    """Copy the records of a partition's WAL from the sealed end on."""
    for _ in range(_ATTEMPTS):
        try:
            return _save(
                store, folder, topic_id=topic_id, partition=partition, sealed_end=sealed_end, known=known
            )
        except _ReplacedError:
            continue
    raise UnavailableError(
        f"The WAL in {folder} is replaced faster than it can be copied. Try again when the partition is healthy."
    )


def _save(
    store: BackupStore, folder: Path, *, topic_id: UUID, partition: int, sealed_end: int, known: Known
) -> SavedWal:
    state = _state_of(folder)
    if state is None:
        return SavedWal(partition=partition)
    checkpoint, end_offset, end_position = state
    reached("backup.wal.looked")
    left = checkpoints.left_files(folder, checkpoint)
    ends = [*(file.first_offset for file in left[1:]), end_offset]
    wanted = [file for file, end in zip(left, ends, strict=True) if end > sealed_end]
    files: list[WalFile] = []
    pieces: list[Piece] = []
    for file in wanted:
        piece = known.get((topic_id, partition, file))
        if piece is None:
            name = f"{FOLDER}/{topic_id.hex}/{partition}/{file.seq:010d}-{new_uuid().hex[:12]}.log"
            size_bytes = end_position if file.size_bytes is None else file.size_bytes
            try:
                is_damaged = any(each.seq == file.seq for each in checkpoint.damage)
                piece = put(store, name, _chunks(folder / file.name, file, size_bytes, is_damaged))
            except FileNotFoundError:
                files, pieces = [], []
                continue
            reached("backup.wal.copied")
        files.append(file)
        pieces.append(piece)
    _check_same(folder, checkpoint)
    seqs = {file.seq for file in files}
    return SavedWal(
        partition=partition,
        files=tuple(files),
        pieces=tuple(pieces),
        end_offset=end_offset,
        epochs=checkpoint.epochs,
        damage=tuple(each for each in checkpoint.damage if each.seq in seqs),
    )


def _state_of(folder: Path) -> tuple[WriterCheckpoint, int, int] | None:
    """Return the files, and the end offset and byte of the last of them. None if there is no WAL yet."""
    for _ in range(_ATTEMPTS):
        checkpoint, known = checkpoints.load_writer(folder), states.load(folder)
        if checkpoint is None:
            if list(folder.glob("wal.*.log")):
                raise CorruptError(
                    f"{folder / WRITER_FILE} is missing or damaged, but WAL files are beside it. "
                    f"Opening the log for writing recreates it.",
                    path=str(folder / WRITER_FILE),
                )
            return None
        active = checkpoint.active
        if known is not None and known.seq == active.seq:
            return checkpoint, known.visible_offset, known.visible_position
        if known is not None and known.seq < active.seq:
            # The active file has just been opened. Nothing in it has been acknowledged.
            return checkpoint, active.first_batch_offset, 0
        if known is None:
            return checkpoint, *_whole_batches(folder / active.name, active)
        # The WAL was rolled between the two reads.
    raise UnavailableError(f"The WAL in {folder} is rolled faster than it can be read. Try again.")


def _whole_batches(path: Path, file: WalFile) -> tuple[int, int]:
    """Return the offset and the byte at which the whole batches of a file end."""
    end_offset, end_position = file.first_batch_offset, 0
    try:
        for placed in walk(path, end_position=path.stat().st_size, expected_offset=end_offset):
            end_offset, end_position = (
                placed.header.next_offset,
                placed.position + placed.header.size_bytes,
            )
    except (CorruptError, FileNotFoundError):
        # The torn end that a killed process left.
        return end_offset, end_position
    return end_offset, end_position


def _chunks(path: Path, file: WalFile, size_bytes: int, is_damaged: bool) -> Iterator[bytes]:
    """Yield the file's first `size_bytes`. Raise FileNotFoundError before the first chunk if it is gone.

    A file that is known to be damaged is copied as far as it goes. Its copy is damaged in the same way.
    """
    try:
        with path.open("rb", buffering=0) as source:
            left = size_bytes
            while left:
                chunk = source.read(min(left, CHUNK_BYTES))
                if not chunk and is_damaged:
                    return
                if not chunk:
                    raise CorruptError(
                        f"{path} is {left} bytes too short. `lastword wal repair` shows what can be kept.",
                        path=str(path),
                        offset=file.first_offset,
                    )
                yield chunk
                left -= len(chunk)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise unreadable(path, file.first_offset, error) from error


def _check_same(folder: Path, before: WriterCheckpoint) -> None:
    """Raise _ReplacedError if a file of the checkpoint has been replaced. Deleted and added files don't matter."""
    now = checkpoints.load_writer(folder)
    if now is None:
        raise _ReplacedError
    named = {file.seq: file for file in now.files}
    for file in before.files:
        found = named.get(file.seq)
        if found is not None and (found.first_offset, found.gap_end) != (file.first_offset, file.gap_end):
            raise _ReplacedError
        if found is None and file.seq > now.files[0].seq:
            raise _ReplacedError
        if found is not None and not file.is_active and found != file:
            raise _ReplacedError


def known_files(
    wals: Sequence[tuple[UUID, SavedWal]], there: Mapping[str, int]
) -> dict[tuple[UUID, int, WalFile], Piece]:
    """Return the rolled files of earlier backups that the store still has. Rolled files never change."""
    return {
        (topic_id, wal.partition, file): piece
        for topic_id, wal in wals
        for file, piece in zip(wal.files, wal.pieces, strict=True)
        if not file.is_active and there.get(piece.path) == piece.size_bytes
    }


def needed(wal: SavedWal, sealed_end: int) -> SavedWal:
    """Return the copy without the files that are sealed by now."""
    if not wal.files:
        return wal
    ends = [*(file.first_offset for file in wal.files[1:]), wal.end_offset]
    first = next((at for at, end in enumerate(ends) if end > sealed_end), len(ends))
    seqs = {file.seq for file in wal.files[first:]}
    damage = tuple(each for each in wal.damage if each.seq in seqs)
    return replace(wal, files=wal.files[first:], pieces=wal.pieces[first:], damage=damage)


def first_missing(wal: SavedWal, sealed_from: int) -> int | None:
    """Return the first offset that is neither in the table (up to `sealed_from`) nor in the copy, or None."""
    start = wal.files[0].first_offset if wal.files else wal.end_offset
    return sealed_from if sealed_from < start else None


# ------------------------------------------------------------------------------------------------------ restoring


def lay_out(
    folder: Path,
    wal: SavedWal,
    fetch: Callable[[Piece, Path], None],
    *,
    topic_id: UUID,
    log_end: int,
    now_ms: int,
) -> None:
    """Create the WAL of a partition that continues at `log_end`, in a new file and under a new leader epoch.

    Can be repeated until `writer.json`, which is written last, exists.
    """
    disk.make_folder(folder)
    files = [
        file if not file.is_active else file.rolled(size_bytes=piece.size_bytes, now_ms=now_ms)
        for file, piece in zip(wal.files, wal.pieces, strict=True)
        if piece.size_bytes
    ]
    named = {file.seq: piece for file, piece in zip(wal.files, wal.pieces, strict=True)}
    for file in files:
        fetch(named[file.seq], folder / file.name)
    active = WalFile(
        seq=1 + max((file.seq for file in files), default=0), first_offset=log_end, opened_ms=now_ms
    )
    os.close(create_file(folder, active))
    with closing(StateFile(folder)) as state:
        state.write(
            WalState(
                phase=Phase.CLEAN,
                seq=active.seq,
                visible_offset=log_end,
                visible_position=0,
                durable_offset=log_end,
                durable_position=0,
            ),
            sync=True,
        )
    checkpoints.save_writer(
        folder,
        WriterCheckpoint(
            topic_id=topic_id,
            partition=wal.partition,
            files=(*files, active),
            epochs=raised(wal.epochs, log_end),
            damage=wal.damage,
        ),
    )
    reached("restore.wal.laid_out")


def raised(epochs: tuple[tuple[int, int], ...], log_end: int) -> tuple[tuple[int, int], ...]:
    """Return the epochs of a restored partition. The last one is above any that the original can have reached."""
    last = epochs[-1][0] if epochs else 0
    return (*(each for each in epochs if each[1] < log_end), (last + EPOCHS_APART, log_end))
