"""Appends many records to several partitions as one unit: all of them exactly once, whatever is killed meanwhile.

Whoever appends (a *sink*: one streaming query, one batch job) numbers its units, and stages each one as files of
record batches. A folder a topic:

    staging/<topic id>/<sink>/
        committed.json     the number of the last unit that was appended
        unit.json          the unit under way: which bytes of which files are for which partition
        <partition>.note   where the unit's records begin in that partition
        *.batches          staged record batches

A unit, by its steps:
1. its files are written and synced, wherever that happens;
2. `propose` names them in unit.json. From now on the unit is these files, also if it is staged again;
3. the writer of the log checks every batch, and says so in unit.json;
4. for each partition: while nobody else can append, its log end is noted; then the batches are written; then synced;
5. committed.json gets the number;
6. unit.json, the notes and the files are removed.

Killed before 2, nothing has happened. After it, `append` goes on with the same files. A partition that has a note got
its records between the note's offset and the log end: before anybody else can append to it, its opening (`finish`)
appends those that are missing. So a note means, for everybody but the opening, that the partition is done. After a
failure between note and sync the partition refuses appends until it is reopened, for the same reason.
"""

from __future__ import annotations

import json
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
from lastword.folder.paths import COMMITTED_FILE, STAGING_FOLDER
from lastword.folder.steps import reached
from lastword.wal.writer import PartitionWriter

logger = logging.getLogger(__name__)

ONE_WRITE: Final = re.compile("job-[0-9a-f]{32}")
"""The names of sinks that are for one write alone."""
_UNIT: Final = "unit.json"


class Piece(NamedTuple):
    """Some record batches of one partition: bytes of a staged file."""

    file: str
    position: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What is appended as one: for each partition its pieces, in the order of its records."""

    number: int
    pieces: Mapping[int, Sequence[Piece]]
    checked: bool = False
    starts: Mapping[int, int] = field(default_factory=dict)
    """Where partitions must end before it, if its batches keep the offsets of another log: they may have gaps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Note:
    """The batches of a unit, but for those of its first `skipped` offsets, are in a partition from `start` on, or shall be."""

    number: int
    start: int
    skipped: int = 0


class Sink:
    """The folder of one sink."""

    def __init__(self, data_folder: Path, topic_id: UUID, name: str) -> None:
        if not name or not name.isascii() or not all(each.isalnum() or each in "-_" for each in name):
            raise InvalidError(f"sink {name!r}: letters, digits, '-' and '_' are allowed in a sink's name")
        self.folder = topic_folder(data_folder, topic_id) / name

    @property
    def committed(self) -> int | None:
        """The number of the last unit that was appended; None if none was."""
        saved = _load(self.folder / COMMITTED_FILE)
        return None if saved is None else int(saved["unit"])

    @property
    def unit(self) -> Unit | None:
        """The unit under way."""
        saved = _load(self.folder / _UNIT)
        if saved is None:
            return None
        pieces = {
            int(partition): [Piece(*each) for each in own] for partition, own in saved["pieces"].items()
        }
        starts = {int(partition): start for partition, start in saved.get("starts", {}).items()}
        return Unit(number=saved["number"], pieces=pieces, checked=saved["checked"], starts=starts)

    def propose(self, unit: Unit) -> bool:
        """Make a unit the one to be appended; False if it has been, or if files of an earlier attempt are it."""
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
        disk.replace_file(self._note(partition), json.dumps(asdict(note)).encode())
        reached("staged.noted")

    def commit(self, number: int) -> None:
        """Say that a unit has been appended, and remove what it left."""
        disk.replace_file(self.folder / COMMITTED_FILE, json.dumps({"unit": number}).encode())
        reached("staged.committed")
        self.clear()
        reached("staged.cleared")

    def withdraw(self) -> None:
        """Forget the unit under way. Nothing of it may have been appended."""
        (self.folder / _UNIT).unlink(missing_ok=True)
        disk.sync_folder(self.folder)

    def clear(self) -> None:
        """Remove everything but the number of the last unit."""
        # The unit first: a note without its unit says nothing.
        (self.folder / _UNIT).unlink(missing_ok=True)
        for path in list(self.folder.iterdir()):
            if path.name != COMMITTED_FILE:
                path.unlink(missing_ok=True)

    def discard(self, files: Iterable[str]) -> None:
        """Remove staged files, but for those that are of the unit under way: it will be finished from them."""
        unit = self.unit
        named = {piece.file for own in unit.pieces.values() for piece in own} if unit is not None else set()
        for each in set(files) - named:
            (self.folder / each).unlink(missing_ok=True)

    def read(self, pieces: Iterable[Piece]) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The record batches of some pieces, in order, each with its checksum verified."""
        for piece in pieces:
            path = self.folder / piece.file
            try:
                with path.open("rb") as file:
                    file.seek(piece.position)
                    data = file.read(piece.size_bytes)
                yield from batch.split(data)
            except (OSError, batch.BadBatchError) as error:
                raise CorruptError(
                    f"The staged file {path} can't be read: {error}. The records of a unit that is under way are in it.",
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
        disk.replace_file(self.folder / _UNIT, json.dumps(saved).encode())


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
    """Append the unit that was proposed, or what is missing of it; the records that were appended by this call.

    One at a time for each topic. `writers` gives the writer of a partition, or raises. `check_owned` raises if the topic was
    lost meanwhile: then the unit is not done, however often it is asked for.
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
        # Nothing of it is in the log. The same records may be staged again, after a setting has been changed.
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
    """Append what is missing of units that a crash cut short, to a partition that has just been opened.

    If that fails, the partition refuses appends: whatever came in between could not be told from the unit's records.
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
        "partition %d of %s: appending what a crash has left of unit %d", partition, path.parent, unit.number
    )

    def rest() -> Iterator[tuple[BatchHeader, memoryview]]:
        yield first
        yield from batches

    _append(sink, unit.number, partition, writer, rest(), append_time_ms, skipped=there)


def _from_offset(
    batches: Iterable[tuple[BatchHeader, memoryview]], skipped: int
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches without those that span the first `skipped` offsets. A crash leaves whole batches only."""
    passed = 0
    for header, data in batches:
        if passed >= skipped:
            yield header, data
        passed += header.last_offset_delta + 1


def ask_writer(data_folder: Path, topic: str, sink: str, number: int) -> int | None:
    """Have a unit appended by the process that writes the log: how many records; None if there is no such process."""
    if (channel := writer_channel(data_folder)) is None:
        return None
    answer = ask(channel, {"do": "append", "topic": topic, "sink": sink, "number": number})
    return None if answer is None else int(answer["appended"])


def sweep(data_folder: Path, *, before_ms: int, busy: Collection[str]) -> None:
    """Remove what writes that were killed have staged: nothing has changed in their sink since a time.

    The number of the last unit stays, and a unit under way with its files: a query that is started again goes on with
    them. A sink of one write alone, which nobody starts again, goes whole, unless some of its records are in the log: it may be completed by its name.
    Topics in `busy`, by the hex of their ids, are being written to.
    """
    folders = (data_folder / STAGING_FOLDER).glob("*/*")
    for folder in [each for each in folders if each.is_dir() and each.parent.name not in busy]:
        with suppress(FileNotFoundError, LastwordError):
            if _changed_ms(folder) < before_ms:
                _sweep_sink(Sink(data_folder, UUID(folder.parent.name), folder.name))
        with suppress(OSError):
            # If that was all of the topic.
            folder.parent.rmdir()


def _changed_ms(folder: Path) -> int:
    """When anything in a folder was last changed, added or removed."""
    return max(each.stat().st_mtime_ns for each in (folder, *folder.iterdir())) // 1_000_000


def _sweep_sink(sink: Sink) -> None:
    is_begun = sink.committed is not None or any(sink.folder.glob("*.note"))
    if ONE_WRITE.fullmatch(sink.folder.name) and not is_begun:
        logger.info("removing what a write that was not finished has staged in %s", sink.folder)
        shutil.rmtree(sink.folder)
        return
    sink.discard(path.name for path in sink.folder.glob("*.batches"))


def forget(data_folder: Path, topic_id: UUID) -> None:
    """Remove everything that was staged for a topic."""
    with suppress(FileNotFoundError):
        shutil.rmtree(topic_folder(data_folder, topic_id))


def _load(path: Path) -> dict[str, Any] | None:
    return state_file.load(path, dict, "What was staged there can't be appended: write it again.")
