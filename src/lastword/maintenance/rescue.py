"""Reads the records of a topic that only this data folder's WAL has, without locking or changing anything.

Those are the records above the sealed end, where this folder owns the topic. Where it has lost the topic to another
folder, they are those above the sealed end of the moment when it changed hands, which the table has noted. Where a clone
of the folder has gone on with the topic, they are all that the WAL has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from lastword.clock import Clock
from lastword.errors import LastwordError, UnavailableError, UnknownTopicError
from lastword.folder import identity
from lastword.folder.paths import wal_folder
from lastword.maintenance import relocating
from lastword.maintenance.ownership import Ownership
from lastword.record import Record
from lastword.segments.model import Snapshot
from lastword.segments.rows import clip, to_records, with_partition
from lastword.segments.storage import Storage
from lastword.wal.files import SET_ASIDE
from lastword.wal.reader import OffsetGoneError, WalReader, decode

_READ_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRecords:
    """The records of one partition in a WAL of this folder, from an offset on."""

    partition: int
    folder: Path
    from_offset: int

    def read(self) -> Iterator[Record]:
        """The records, oldest first. CorruptError where they are damaged."""
        with closing(WalReader(self.folder)) as reader:
            extent = reader.extent()
            offset = 0 if extent is None else max(extent.start, self.from_offset)
            while extent is not None and offset < extent.end:
                try:
                    placed = reader.read(offset, max_bytes=_READ_BYTES)
                except OffsetGoneError:
                    # The deleter was faster, which takes only what is sealed.
                    extent = reader.extent()
                    offset = max(offset, extent.start if extent is not None else 0)
                    continue
                if not placed:
                    return
                for records in decode(placed, from_offset=offset):
                    yield from to_records(with_partition(clip(records, extent.end), self.partition))
                offset = placed[-1].header.next_offset


def local_records(
    storage: Storage, name: str, clock: Clock, *, from_offset: int | None = None
) -> list[LocalRecords]:
    """The WALs of a topic's partitions in a folder, each from where it is not sealed on; with `from_offset`, from there.

    With `from_offset` no catalog is asked, so that records can be rescued where none can be reached.
    """
    root = wal_folder(storage.folder, name, UUID(int=0)).parent
    folders = sorted(root.iterdir()) if root.is_dir() else []
    if from_offset is None:
        ends = _sealed_ends(storage, name, clock)
        folders = [folder for folder in folders if folder.name in ends]
    elif not folders:
        raise UnknownTopicError(f"{storage.folder} has no WAL of a topic {name!r}.")
    found = []
    for folder in folders:
        numbers = sorted(int(each.name) for each in folder.iterdir() if each.name.isdigit())
        for number in numbers:
            first = from_offset
            if first is None:
                own = ends[folder.name]
                first = own[number] if number < len(own) else 0
            found.append(LocalRecords(partition=number, folder=folder / str(number), from_offset=first))
    return found


def _sealed_ends(storage: Storage, name: str, clock: Clock) -> dict[str, tuple[int, ...]]:
    """How far the records of each WAL folder of a topic have been sealed, by the folder's name."""
    relocating.check(storage, writes=False)
    try:
        with closing(storage.open_catalog(clock, create=False)) as catalog:
            snapshot = catalog.load(name).snapshot()
    except UnknownTopicError:
        raise
    except LastwordError as error:
        raise UnavailableError(
            f"What is sealed of {name!r} can't be found out: {error} `--from-offset 0` exports whatever the WAL has."
        ) from error
    topic = snapshot.topic
    lost = {each.epoch: each.sealed_ends for each in topic.past_owners}
    aside = {f"{topic.id.hex}{SET_ASIDE}{epoch}": ends for epoch, ends in lost.items()}
    return {topic.id.hex: _ends_of_own(storage, snapshot), **aside}


def _ends_of_own(storage: Storage, snapshot: Snapshot) -> tuple[int, ...]:
    known = identity.load(storage.folder)
    topic = snapshot.topic
    if known is None or Ownership(storage, known).objection(topic) is None:
        return tuple(at.sealed_end for at in snapshot.positions)
    lost = [each.sealed_ends for each in topic.past_owners if each.folder_id == known.id]
    # The WAL of one that never owned it came along with a copy of the owner's folder, and one that a clone has overtaken
    # does not know how far it was sealed then: everything may be news.
    return lost[-1] if lost else (0,) * topic.partitions
