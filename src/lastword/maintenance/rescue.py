"""Reads the records of a topic that only this data folder's WAL has, without locking or changing anything.

If this folder owns the topic, those are the records above the sealed end. If it has lost the topic to another folder,
they are the records above the sealed end at the time of the takeover, which the table has noted. If a clone of the
folder has continued the topic, they are all records in the WAL.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
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
from lastword.segments.model import Snapshot, resume_if_moved
from lastword.segments.rows import clip, to_records, with_partition
from lastword.segments.storage import Storage
from lastword.wal.files import SET_ASIDE
from lastword.wal.reader import WalReader, decode

_READ_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRecords:
    """The records of one partition in a WAL of this folder, starting at an offset."""

    partition: int
    folder: Path
    from_offset: int

    def read(self) -> Iterator[Record]:
        """Yield the records, oldest first. Raise CorruptError at damage."""
        with closing(WalReader(self.folder)) as reader:
            offset = self.from_offset

            def rest() -> Generator[Record, None, None]:
                nonlocal offset
                if (extent := reader.extent()) is None:
                    return
                # The deleter may have been faster. It deletes only sealed files.
                offset = max(offset, extent.start)
                while offset < extent.end and (placed := reader.read(offset, max_bytes=_READ_BYTES)):
                    for records in decode(placed, from_offset=offset):
                        yield from to_records(with_partition(clip(records, extent.end), self.partition))
                    offset = placed[-1].header.next_offset

            yield from resume_if_moved(rest, f"The WAL in {self.folder}")


def local_records(
    storage: Storage, name: str, clock: Clock, *, from_offset: int | None = None
) -> list[LocalRecords]:
    """Return the WALs of a topic's partitions in a folder, each starting at its sealed end or at `from_offset`.

    With `from_offset` no catalog is asked, so that records can be rescued while it is unreachable.
    """
    root = wal_folder(storage.folder, name, UUID(int=0)).parent
    folders = sorted(root.iterdir()) if root.is_dir() else []
    if from_offset is None:
        ends = _sealed_ends(storage, name, clock)
        folders = [folder for folder in folders if folder.name in ends]
    elif not folders:
        raise UnknownTopicError(f"{storage.folder} has no WAL of topic {name!r}.")
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
    """Return the sealed ends of each WAL folder of a topic, by the folder's name."""
    relocating.check(storage, writes=False)
    try:
        with closing(storage.open_catalog(clock, create=False)) as catalog:
            snapshot = catalog.load(name).snapshot()
    except UnknownTopicError:
        raise
    except LastwordError as error:
        raise UnavailableError(
            f"Can't find the sealed ends of {name!r}: {error} `--from-offset 0` exports whatever is in the WAL."
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
    # A folder that never owned the topic has its WAL from a copy of the owner's folder. A folder that a clone has
    # overtaken does not know its sealed ends at that time. In both cases any record may be unsealed.
    return lost[-1] if lost else (0,) * topic.partitions
