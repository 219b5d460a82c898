"""Compares the records that two brokers have left of the same changelogs, and counts what was compared."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tests.peers.traffic import Place, Seen
from tests.peers.workload import SENTINEL, Round

_SHOWN = 3


@dataclass(slots=True)
class Tally:
    """What a comparison was about: one that compared nothing would hold, too."""

    sent: int = 0
    compared: int = 0
    superseded: int = 0
    deleted: int = 0
    """Records below the log start."""
    expired: int = 0
    """Tombstones that were their key's last word, and were removed when their time was over."""
    held: int = 0
    """Records that only min.compaction.lag.ms kept."""
    gone_early: int = 0
    """Tombstones that a run of the worker's own removed before Kafka's next pass."""
    topics_ahead: int = 0
    """Topics, counted in each round, in which such a run was made."""

    def __str__(self) -> str:
        return (
            f"{self.sent} records sent, {self.compared} compared, {self.superseded} superseded ones gone, "
            f"{self.deleted} deleted, {self.expired} tombstones expired, {self.held} records held back, "
            f"{self.gone_early} tombstones gone early, {self.topics_ahead} topics ahead"
        )


@dataclass(slots=True)
class Partition:
    """The offsets of a partition, as they follow from what was sent, and what Kafka had left of it before."""

    end: int = 0
    log_start: int = 0
    round_start: int = 0
    held_from: int | None = None
    """The offset from which on min.compaction.lag.ms holds records back."""
    expires_at_once: bool = False
    """Whether the tombstones of the last round go with the next compaction after the one that passes them."""
    passes: int = 0
    """How often Kafka's cleaner has had something to do."""
    left: Sequence[Seen] = ()

    @property
    def clean_end(self) -> int:
        """Where compaction comes to: the sentinel at the end is in Kafka's active segment."""
        return self.end - 1 if self.held_from is None else self.held_from

    def grow(self, each: Round, partition: int) -> None:
        before = self.clean_end
        self.round_start = self.end
        self.end += sum(record.partition == partition for record in (*each.changes, *each.sentinels))
        self.log_start = each.deleted.get(partition, self.log_start)
        self.expires_at_once = each.expires_at_once
        if not each.held:
            self.held_from = None
        elif self.held_from is None:
            self.held_from = self.round_start
        self.passes += self.clean_end > max(before, 0)


def without_sentinels(records: Sequence[Seen]) -> list[Seen]:
    return [each for each in records if each.key is None or not each.key.startswith(SENTINEL)]


def gone_early(found: Sequence[Seen], wanted: Sequence[Seen], offsets: Collection[int]) -> list[Seen]:
    """The tombstones among these offsets that one side still has and the other one doesn't."""
    there = {each.offset for each in found}
    return [
        each for each in wanted if each.value is None and each.offset in offsets and each.offset not in there
    ]


def difference(found: Sequence[Seen], wanted: Sequence[Seen]) -> str:
    """Say which records are missing, which should not be there, and which are not the same; nothing if all agree."""
    ours = {each.offset: each for each in found}
    theirs = {each.offset: each for each in wanted}
    said = [
        *(f"missing here: {_told(theirs[offset])}" for offset in sorted(theirs.keys() - ours.keys())),
        *(f"gone in Kafka: {_told(ours[offset])}" for offset in sorted(ours.keys() - theirs.keys())),
        *(
            f"here {_told(ours[offset])}, in Kafka {_told(theirs[offset])}"
            for offset in sorted(ours.keys() & theirs.keys())
            if ours[offset] != theirs[offset]
        ),
    ]
    if not said and list(found) != list(wanted):
        said = ["the order, or how often a record is read"]
    return "\n".join([*said[:_SHOWN], *([f"and {len(said) - _SHOWN} more"] if len(said) > _SHOWN else [])])


def _told(seen: Seen) -> str:
    value = None if seen.value is None else seen.value[:20]
    key = None if seen.key is None else seen.key[:20]
    return f"{seen.offset} {key!r}={value!r} {seen.headers} {seen.timestamp}"


@dataclass(slots=True)
class Comparison:
    partitions: Mapping[Place, Partition]
    tally: Tally = field(default_factory=Tally)

    def compare(
        self,
        place: Place,
        found: Sequence[Seen],
        wanted: Sequence[Seen],
        *,
        start: int,
        may_lack_tombstones: bool = False,
    ) -> str:
        """Compare a read of a partition from an offset on. Return what differs, or nothing."""
        at = self.partitions[place]
        ours = without_sentinels(found)
        theirs = [each for each in without_sentinels(wanted) if each.offset >= start]
        if may_lack_tombstones and at.expires_at_once:
            early = gone_early(ours, theirs, range(at.round_start, at.end))
            self.tally.gone_early += len(early)
            theirs = [each for each in theirs if each not in early]
        self.tally.compared += len(theirs)
        return difference(ours, theirs)

    def count(self, place: Place, wanted: Sequence[Seen]) -> None:
        """Count what Kafka has removed in this round."""
        at = self.partitions[place]
        before = [each for each in at.left if each.offset >= at.log_start]
        left = without_sentinels(wanted)
        there = {each.offset for each in left}
        newer = {each.key for each in left if each.offset >= at.round_start}
        sent = at.end - at.round_start - 1
        deleted = max(at.log_start - at.round_start, 0)
        expired = sum(
            each.value is None and each.offset not in there and each.key not in newer for each in before
        )
        self.tally.sent += sent
        self.tally.deleted += len(at.left) - len(before) + deleted
        self.tally.expired += expired
        self.tally.superseded += len(before) + sent - deleted - len(left) - expired
        if at.held_from is not None:
            last = {each.key: each.offset for each in left}
            self.tally.held += sum(last[each.key] != each.offset for each in left)
        at.left = left
