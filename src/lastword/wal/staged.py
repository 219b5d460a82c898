"""Appends many records to several partitions as one unit: all of them exactly once, even if a process is killed.

A *sink* (one streaming query or one batch job) numbers its units and stages each one as files of record batches. Its
folder:

    staging/<topic id>/<sink>/
        committed.json     the number of the last unit that was appended
        unit.json          the unit under way: the bytes of each file and the partition that they are for
        <partition>.note   the offset where the unit's records begin in that partition
        *.batches          staged record batches

Steps of a unit:
1. its files are written and synced, in any process;
2. `propose` names them in unit.json. From now on the unit is these files, even if it is staged again;
3. the writer of the log checks every batch, and notes that in unit.json;
4. for each partition, its log end is noted and the batches are written while nothing else can append, then synced;
5. committed.json gets the number;
6. unit.json, the notes and the files are removed.

If a process is killed before 2, nothing has happened. After it, `append` continues with the same files. A partition that
has a note got its records between the note's offset and the log end. Opening it (`finish`) appends the missing ones
before anything else can be appended. So for everything but the opening, a note means that the partition is done. For the
same reason, after a failure between note and sync the partition refuses appends until it is reopened.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

from lastword import batch
from lastword.batch import BatchHeader
from lastword.errors import CorruptError, InvalidError, LastwordError, WriteFailedError
from lastword.folder import disk, state_file
from lastword.folder.channel import ask
from lastword.folder.locks import writer_channel
from lastword.folder.paths import COMMITTED_FILE, STAGING_FOLDER, UNIT_FILE
from lastword.folder.steps import reached
from lastword.wal.writer import PartitionWriter

logger = logging.getLogger(__name__)

ONE_WRITE: Final = re.compile("job-[0-9a-f]{32}")
"""The names of sinks that are for a single write."""


class Piece(NamedTuple):
    """Some record batches of one partition: bytes of a staged file."""

    file: str
    position: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A set of records that are appended as one: for each partition its pieces, in the order of its records."""

    number: int
    pieces: Mapping[int, Sequence[Piece]]
    checked: bool = False
    starts: Mapping[int, int] = field(default_factory=dict)
    """The log end that each partition must have before it, if its batches keep another log's offsets, maybe with gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Note:
    """A unit's batches, except those of its first `skipped` offsets, are or will be in a partition from `start` on."""

    number: int
    start: int
    skipped: int = 0


class Sink:
    """The folder of one sink."""

    def __init__(self, data_folder: Path, topic_id: UUID, name: str) -> None:
        if not name or not name.isascii() or not all(each.isalnum() or each in "-_" for each in name):
            raise InvalidError(f"sink {name!r}: a sink's name may have only letters, digits, '-' and '_'")
        self.folder = topic_folder(data_folder, topic_id) / name

    @property
    def committed(self) -> int | None:
        """The number of the last unit that was appended; None if none was."""
        saved = _load(self.folder / COMMITTED_FILE)
        return None if saved is None else int(saved["unit"])

    @property
    def unit(self) -> Unit | None:
        """The unit under way."""
        saved = _load(self.folder / UNIT_FILE)
        if saved is None:
            return None
        pieces = {
            int(partition): [Piece(*each) for each in own] for partition, own in saved["pieces"].items()
        }
        starts = {int(partition): start for partition, start in saved.get("starts", {}).items()}
        return Unit(number=saved["number"], pieces=pieces, checked=saved["checked"], starts=starts)

    def propose(self, unit: Unit) -> bool:
        """Make a unit the one to append. Return False if it has been appended, or an earlier attempt has staged it."""
        committed, under_way = self.committed, self.unit
        if committed is not None and unit.number <= committed:
            return False
        if under_way is not None and (committed is None or under_way.number > committed):
            if under_way.number != unit.number:
                raise InvalidError(
                    f"unit {unit.number} of {self.folder}: unit {under_way.number} has not been appended yet"
                )
            return False
        self._save(unit)
        reached("staged.proposed")
        return True

    def checked(self, unit: Unit) -> None:
        self._save(replace(unit, checked=True))
        reached("staged.checked")

    def is_noted(self, unit: Unit, partition: int) -> bool:
        saved = _load(self._note(partition))
        return saved is not None and saved["number"] == unit.number

    def note(self, partition: int, note: _Note) -> None:
        state_file.save(self._note(partition), asdict(note))
        reached("staged.noted")

    def commit(self, number: int) -> None:
        """Note that a unit has been appended, and remove its files."""
        state_file.save(self.folder / COMMITTED_FILE, {"unit": number})
        reached("staged.committed")
        self.clear()
        reached("staged.cleared")

    def withdraw(self) -> None:
        """Forget the unit under way. Nothing of it may have been appended."""
        (self.folder / UNIT_FILE).unlink(missing_ok=True)
        disk.sync_folder(self.folder)

    def clear(self) -> None:
        """Remove everything but the number of the last unit."""
        # The unit first: a note without its unit means nothing.
        (self.folder / UNIT_FILE).unlink(missing_ok=True)
        for path in list(self.folder.iterdir()):
            if path.name != COMMITTED_FILE:
                path.unlink(missing_ok=True)

    def discard(self, files: Iterable[str]) -> None:
        """Remove staged files, except those of the unit under way: it will be finished from them."""
        unit = self.unit
        named = {piece.file for own in unit.pieces.values() for piece in own} if unit is not None else set()
        for each in set(files) - named:
            (self.folder / each).unlink(missing_ok=True)

    def read(self, pieces: Iterable[Piece]) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yield the record batches of some pieces, in order, each with its checksum verified."""
        for piece in pieces:
            path = self.folder / piece.file
            try:
                with path.open("rb") as file:
                    file.seek(piece.position)
                    data = file.read(piece.size_bytes)
                yield from batch.split(data)
            except (OSError, batch.BadBatchError) as error:
                raise CorruptError(
                    f"The staged file {path} can't be read: {error}. It has records of the unit that is under way.",
                    path=str(path),
                ) from error

    def _note(self, partition: int) -> Path:
        return self.folder / f"{partition}.note"

    def _save(self, unit: Unit) -> None:
        pieces = {partition: [list(each) for each in own] for partition, own in unit.pieces.items()}
        saved = {
            "number": unit.number,
            "checked": unit.checked,
            "pieces": pieces,
            "starts": dict(unit.starts),
        }
        state_file.save(self.folder / UNIT_FILE, saved)


def topic_folder(data_folder: Path, topic_id: UUID) -> Path:
    return data_folder / STAGING_FOLDER / topic_id.hex


def append(
    sink: Sink,
    number: int,
    writers: Callable[[int], PartitionWriter],
    limits: batch.Limits,
    append_time_ms: int | None,
    check_owned: Callable[[], None],
) -> int:
    """Append the proposed unit, or the missing part of it. Return how many records this call has appended.

    Call it once at a time for each topic. `writers` returns the writer of a partition, or raises. `check_owned` raises
    if another folder took the topic meanwhile: then the unit is not done, however often it is retried.
    """
    committed, unit = sink.committed, sink.unit
    if committed is not None and number <= committed:
        return 0
    if unit is None or unit.number != number:
        raise InvalidError(f"unit {number} has not been staged in {sink.folder}")
    if not unit.checked:
        _check(sink, unit, writers, limits)
        sink.checked(unit)
    appended = 0
    for partition, pieces in unit.pieces.items():
        writer = writers(partition)
        if writer.failed is not None:
            raise WriteFailedError(writer.failed)
        if not sink.is_noted(unit, partition):
            appended += _append(
                sink,
                unit.number,
                partition,
                writer,
                sink.read(pieces),
                append_time_ms,
                start=unit.starts.get(partition),
            )
    check_owned()
    sink.commit(number)
    return appended


def _check(sink: Sink, unit: Unit, writers: Callable[[int], PartitionWriter], limits: batch.Limits) -> None:
    try:
        for partition, pieces in unit.pieces.items():
            writers(partition)
            for _, data in sink.read(pieces):
                batch.validate(data, limits)
    except InvalidError:
        # None of it is in the log. The same records may be staged again after a setting has been changed.
        sink.withdraw()
        raise


def _append(
    sink: Sink,
    number: int,
    partition: int,
    writer: PartitionWriter,
    batches: Iterable[tuple[BatchHeader, memoryview]],
    append_time_ms: int | None,
    *,
    skipped: int = 0,
    start: int | None = None,
) -> int:
    records = 0

    def counted() -> Iterator[memoryview]:
        nonlocal records
        for header, data in batches:
            records += header.record_count
            yield data

    def note(offset: int) -> None:
        sink.note(partition, _Note(number=number, start=offset, skipped=skipped))

    writer.stage_noted(counted(), note, append_time_ms=append_time_ms, start=start)
    reached("staged.written")
    writer.sync()
    reached("staged.synced")
    return records


def finish(
    data_folder: Path, topic_id: UUID, partition: int, writer: PartitionWriter, append_time_ms: int | None
) -> None:
    """Append the missing part of units that a crash interrupted, to a partition that has just been opened.

    If that fails, the partition refuses appends: records in between could not be told from the unit's records.
    """
    folder = topic_folder(data_folder, topic_id)
    if writer.failed is not None or not folder.exists():
        return
    for path in sorted(folder.glob(f"*/{partition}.note")):
        try:
            _finish(Sink(data_folder, topic_id, path.parent.name), path, partition, writer, append_time_ms)
        except (LastwordError, OSError) as error:
            writer.refuse(f"A unit of {path.parent} can't be finished: {error}")
            return


def _finish(
    sink: Sink, path: Path, partition: int, writer: PartitionWriter, append_time_ms: int | None
) -> None:
    saved, unit = _load(path), sink.unit
    if saved is None or unit is None or unit.number != saved["number"]:
        # All of it was appended, or the note was never whole.
        path.unlink(missing_ok=True)
        return
    note = _Note(**saved)
    there = note.skipped + max(writer.end_offset - note.start, 0)
    batches = _from_offset(sink.read(unit.pieces[partition]), there)
    if (first := next(batches, None)) is None:
        return
    logger.warning(
        "partition %d of %s: appending the rest of unit %d after a crash", partition, path.parent, unit.number
    )

    def rest() -> Iterator[tuple[BatchHeader, memoryview]]:
        yield first
        yield from batches

    _append(sink, unit.number, partition, writer, rest(), append_time_ms, skipped=there)


def _from_offset(
    batches: Iterable[tuple[BatchHeader, memoryview]], skipped: int
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield the batches without those that span the first `skipped` offsets. A crash leaves only whole batches."""
    passed = 0
    for header, data in batches:
        if passed >= skipped:
            yield header, data
        passed += header.last_offset_delta + 1


def ask_writer(data_folder: Path, topic: str, sink: str, number: int) -> int | None:
    """Ask the process that writes the log to append a unit. Return the record count; None without such a process."""
    if (channel := writer_channel(data_folder)) is None:
        return None
    answer = ask(channel, {"do": "append", "topic": topic, "sink": sink, "number": number})
    return None if answer is None else int(answer["appended"])


def sweep(data_folder: Path, *, before_ms: int, busy: Collection[str]) -> None:
    """Remove the staged files of killed writes: those in sinks where nothing has changed since a time.

    The number of the last unit stays, and so does a unit under way with its files: a restarted query continues with
    them. A sink for a single write, which is never restarted, is removed as a whole, unless some of its records are in
    the log: it may be completed by its name. Topics in `busy`, by the hex of their ids, are being written to.
    """
    folders = (data_folder / STAGING_FOLDER).glob("*/*")
    for folder in [each for each in folders if each.is_dir() and each.parent.name not in busy]:
        with suppress(FileNotFoundError, LastwordError):
            if _changed_ms(folder) < before_ms:
                _sweep_sink(Sink(data_folder, UUID(folder.parent.name), folder.name))
        with suppress(OSError):
            # Succeeds if the topic has no other sink.
            folder.parent.rmdir()


def _changed_ms(folder: Path) -> int:
    """Return when anything in a folder was last changed, added or removed."""
    return max(each.stat().st_mtime_ns for each in (folder, *folder.iterdir())) // 1_000_000


def _sweep_sink(sink: Sink) -> None:
    is_begun = sink.committed is not None or any(sink.folder.glob("*.note"))
    if ONE_WRITE.fullmatch(sink.folder.name) and not is_begun:
        logger.info("removing the staged records of an unfinished write in %s", sink.folder)
        shutil.rmtree(sink.folder)
        return
    sink.discard(path.name for path in sink.folder.glob("*.batches"))


def forget(data_folder: Path, topic_id: UUID) -> None:
    """Remove everything that was staged for a topic."""
    with suppress(FileNotFoundError):
        shutil.rmtree(topic_folder(data_folder, topic_id))


def _load(path: Path) -> dict[str, Any] | None:
    return state_file.load(path, dict, "The records staged there can't be appended: write them again.")
