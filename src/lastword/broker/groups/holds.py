"""The positions of groups, for compaction: a tombstone that an active group has not read yet must stay.

Compaction runs in another process, so small files pass them on. A group is active on a partition when it commits there,
fetches its offset there, or has any members.

A position that is new or moves back is written before the commit is answered: from then on the group relies on it.
All others only release tombstones that the group has read, so they are written every few seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from lastword.broker.groups.records import CommittedOffset, OffsetKey
from lastword.broker.node import Node
from lastword.errors import CorruptError
from lastword.reading.topic_reader import group_positions, save_group_positions

logger = logging.getLogger(__name__)

LONG_AGO_MS = 3_600_000
"""A file that is this far behind is rewritten at the start."""

Pair = tuple[str, UUID]
"""A group and a topic's id. Each pair has one file."""


class GroupHolds:
    """The positions of groups, and those that are not in their files yet."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._positions: dict[Pair, dict[int, tuple[int, int]]] = {}
        self._written: dict[Pair, dict[int, tuple[int, int]]] = {}
        self._changed: set[Pair] = set()
        self._one_at_a_time = asyncio.Lock()

    def committed(self, key: OffsetKey, committed: CommittedOffset) -> bool:
        """Note a commit of a group. Return whether it must be written before it is answered."""
        pair = (key.group_id, key.topic_id)
        self._positions.setdefault(pair, {})[key.partition] = (committed.offset, committed.committed_ms)
        self._changed.add(pair)
        written = self._written.get(pair, {}).get(key.partition)
        return written is None or committed.offset < written[0]

    def seen(
        self, group_id: str, topic_id: UUID, now_ms: int, partitions: Iterable[int] | None = None
    ) -> None:
        """Note that a group is active on the partitions where it has committed, or on some of them."""
        own = self._positions.get((group_id, topic_id), {})
        for partition in list(own) if partitions is None else [each for each in partitions if each in own]:
            own[partition] = (own[partition][0], now_ms)
            self._changed.add((group_id, topic_id))

    def forget(self, key: OffsetKey) -> None:
        pair = (key.group_id, key.topic_id)
        if self._positions.get(pair, {}).pop(key.partition, None) is not None:
            self._changed.add(pair)

    async def start(self) -> None:
        """Bring the files in line with the committed offsets, where the difference matters."""
        topics = [each.id for each in self._node.log.opened_topics().values()]
        self._written = await self._node.call_slow(read_positions, self._node.log.path, topics)
        self._changed = {pair for pair in {*self._positions, *self._written} if self._is_behind(pair)}
        await self.write()

    def _is_behind(self, pair: Pair) -> bool:
        """Return whether a file releases tombstones that its group needs, or keeps some that no group needs."""
        own, written = self._positions.get(pair, {}), self._written.get(pair, {})
        return own.keys() != written.keys() or any(
            written[partition][0] > position or active_ms - written[partition][1] > LONG_AGO_MS
            for partition, (position, active_ms) in own.items()
        )

    async def write(self, only: Iterable[Pair] | None = None) -> None:
        """Bring the files up to date: all, or those of some pairs."""
        async with self._one_at_a_time:
            pairs = list(self._changed if only is None else self._changed & set(only))
            self._changed.difference_update(pairs)
            # The files of a deleted topic have been removed with it.
            content = [
                (pair, dict(self._positions.get(pair, {}))) for pair in pairs if self._node.has_topic(pair[1])
            ]
            try:
                failed = await self._node.call_slow(_write_files, self._node.log.path, content)
            except BaseException:
                # For example, the client is gone: the next round writes them.
                self._changed.update(pairs)
                raise
            self._changed.update(failed)
            self._written.update((pair, positions) for pair, positions in content if pair not in failed)
            for pair in pairs:
                if not self._positions.get(pair):
                    self._positions.pop(pair, None)
                    self._written.pop(pair, None)


def read_positions(folder: Path, topics: Iterable[UUID]) -> dict[Pair, dict[int, tuple[int, int]]]:
    """Return the positions in the files of some topics, and when each group was last active there."""
    found: dict[Pair, dict[int, tuple[int, int]]] = {}
    for topic_id in topics:
        try:
            positions = group_positions(folder, topic_id.hex)
        except CorruptError as error:
            logger.warning("rewriting the positions of groups: %s", error)
            continue
        for each in positions:
            own = found.setdefault((each.reader, topic_id), {})
            own[each.partition] = (each.position, each.active_ms)
    return found


def _write_files(folder: Path, content: list[tuple[Pair, dict[int, tuple[int, int]]]]) -> set[Pair]:
    """Write the files. Return the pairs whose file could not be written."""
    failed: set[Pair] = set()
    for (group_id, topic_id), positions in content:
        try:
            save_group_positions(folder, topic_id.hex, group_id, positions)
        except OSError as error:
            logger.error(
                "the positions of group %s could not be written, so a tombstone may be removed before the group "
                "has read it: %s",
                group_id,
                error,
            )
            failed.add((group_id, topic_id))
    return failed
