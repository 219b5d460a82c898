"""Takes a topic over from the data folder that owns it.

1. if this folder has a WAL from an earlier time as the owner, it is set aside: its records are not part of the log;
2. the incarnation is noted beside the new WAL;
3. a commit names this folder as the owner, with the next epoch, and raises the leader epochs of all partitions far
   above any that the old owner may have used. From now on the old owner's commits fail, and within a few seconds it
   stops acknowledging.

Killed before 3, the other folder still owns the topic. The log continues at the sealed end: records that the old owner
has acknowledged and not sealed stay in its folder. The table notes the sealed end of each partition at the takeover,
so that rescue.py finds the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lastword.errors import InvalidError
from lastword.folder import disk
from lastword.folder.paths import wal_folder
from lastword.folder.steps import reached
from lastword.maintenance.ownership import Ownership
from lastword.segments.model import Owner, Positions, TopicInfo, retry_on_conflict
from lastword.wal.files import SET_ASIDE

if TYPE_CHECKING:
    from lastword.segments.table import SegmentTable

LEADER_EPOCHS: Final = 1000
"""The increase of leader epochs. The old owner's, which rise with every unclean start, are known as of its last seal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    """A topic that was taken over. `before` is None if it had no owner."""

    topic: str
    before: Owner | None
    after: Owner
    sealed_ends: tuple[int, ...]
    set_aside: str | None
    """The new path of the WAL from this folder's earlier time as the owner, if there was one."""


def take_over(
    table: SegmentTable, ownership: Ownership, data_folder: Path, *, warehouse: str
) -> TakenOver | None:
    """Make this folder the owner of a topic. Return None if it is already. The caller holds the writer role."""

    def attempt() -> TakenOver | None:
        base = table.snapshot()
        topic = base.topic
        if not ownership.is_foreign(topic):
            table.claim()
            return None
        if not table.location.startswith(warehouse.rstrip("/") + "/"):
            raise InvalidError(
                f"The files of {topic.name!r} are in {table.location}, outside of this folder's warehouse "
                f"({warehouse}), so it can't be taken over. Restore a backup of it instead."
            )
        aside = _set_aside(data_folder, topic)
        reached("takeover.wal.set_aside")
        before = topic.owner
        after = replace(ownership.new_owner(topic), epoch=before.epoch + 1 if before else 1)
        positions = {partition: _raised(at) for partition, at in enumerate(base.positions)}
        table.take_over(base, after, positions)
        reached("takeover.committed")
        return TakenOver(
            topic=topic.name,
            before=before,
            after=after,
            sealed_ends=tuple(at.sealed_end for at in base.positions),
            set_aside=None if aside is None else str(aside),
        )

    return retry_on_conflict(attempt)


def _raised(at: Positions) -> Positions:
    last = at.epochs[-1][0] if at.epochs else 0
    kept = tuple(each for each in at.epochs if each[1] < at.sealed_end)
    return replace(at, epochs=(*kept, (last + LEADER_EPOCHS, at.sealed_end)))


def _set_aside(data_folder: Path, topic: TopicInfo) -> Path | None:
    folder = wal_folder(data_folder, topic.name, topic.id)
    if not folder.exists() or not any(each.is_dir() for each in folder.iterdir()):
        return None
    assert topic.owner is not None
    # Named after the epoch under which it was written, if that is known.
    own = [each.epoch for each in topic.past_owners if each.epoch < topic.owner.epoch]
    target = folder.with_name(f"{folder.name}{SET_ASIDE}{own[-1] if own else topic.owner.epoch}")
    if target.exists():
        raise InvalidError(f"{target} already exists. Move it elsewhere first.")
    folder.rename(target)
    disk.sync_folder(target.parent)
    return target
