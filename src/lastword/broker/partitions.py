"""What the broker knows of partitions beside their writers: how far the table has come, and who waits for records."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from lastword import metrics
from lastword.broker.node import Node
from lastword.broker.sealed import SealedData
from lastword.broker.tail import Tail
from lastword.segments.table import Positions, Snapshot
from lastword.topic import Topic
from lastword.wal.writer import PartitionWriter

logger = logging.getLogger(__name__)

FRESH_S: Final = 1.0
"""How old what is known of the table may be where sealed data is read."""

STALE_S: Final = 5.0
"""From which age on it is looked at again, beside what is being done."""


class PartitionView:
    """One partition of a topic, as fetches see it."""

    def __init__(self, topic: TopicView, index: int, writer: PartitionWriter) -> None:
        self.topic = topic
        self.index = index
        self.writer = writer
        self.tail = Tail(writer)
        self._loop = asyncio.get_running_loop()
        self._waiting: set[Callable[[], None]] = set()
        self._is_waking = False
        writer.on_shown = self._shown

    @property
    def positions(self) -> Positions | None:
        """What the table says, as of the last look; None if it has not been looked at yet."""
        snapshot = self.topic.snapshot
        if snapshot is None or self.index >= len(snapshot.positions):
            return None
        return snapshot.positions[self.index]

    def wait(self, wake: Callable[[], None]) -> None:
        """Call `wake`, on the loop, when more records are shown."""
        self._waiting.add(wake)

    def stop_waiting(self, wake: Callable[[], None]) -> None:
        self._waiting.discard(wake)

    def _shown(self) -> None:
        # On any thread, under the writer's lock. Who waits looks again after it has begun to wait.
        if self._waiting and not self._is_waking:
            self._is_waking = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                # The loop has been closed, and with it everybody who waited.
                self._is_waking = False

    def _wake(self) -> None:
        self._is_waking = False
        for wake in list(self._waiting):
            wake()


class TopicView:
    """A topic, and the last look at its table."""

    def __init__(self, topic: Topic, node: Node, sealed: SealedData) -> None:
        self.topic = topic
        self.snapshot: Snapshot | None = None
        self._node = node
        self._sealed = sealed
        self._looked_s = self._asked_s = float("-inf")
        self._looking: asyncio.Future[None] | None = None
        self._partitions: dict[int, PartitionView] = {}

    def partition(self, index: int) -> PartitionView:
        """UnknownPartitionError if there is none."""
        view = self._partitions.get(index)
        writer = self.topic.writer(index)
        if view is None or view.writer is not writer:
            # A partition that was reopened has another writer.
            view = self._partitions[index] = PartitionView(self, index, writer)
        return view

    @property
    def age_s(self) -> float:
        return asyncio.get_running_loop().time() - self._looked_s

    def look_within(self, seconds: float) -> None:
        """Look at the table if nobody has tried to for so long. It is not waited for."""
        if asyncio.get_running_loop().time() - self._asked_s > seconds:
            self.look()

    def look(self) -> asyncio.Future[None]:
        """Look at the table; those who ask meanwhile get the same look."""
        if self._looking is None:
            self._asked_s = asyncio.get_running_loop().time()
            self._looking = asyncio.ensure_future(self._look())
            self._looking.add_done_callback(self._looked)
        return self._looking

    async def _look(self) -> None:
        started_s = asyncio.get_running_loop().time()
        snapshot = await self._node.call_slow(self.topic.table.snapshot)
        self.snapshot = snapshot
        self._looked_s = started_s
        self._sealed.look(self.topic, snapshot)

    def _looked(self, done: asyncio.Future[None]) -> None:
        self._looking = None
        if not done.cancelled() and (error := done.exception()) is not None:
            logger.warning("can't look at the table of %s: %s", self.topic.name, error)


class Views:
    """The views of all topics that are used."""

    def __init__(self, node: Node, sealed: SealedData) -> None:
        self._node = node
        self._sealed = sealed
        self._views: dict[str, TopicView] = {}

    def topic(self, topic: Topic) -> TopicView:
        view = self._views.get(topic.name)
        if view is None or view.topic is not topic:
            self._forget_deleted()
            view = self._views[topic.name] = TopicView(topic, self._node, self._sealed)
        return view

    def _forget_deleted(self) -> None:
        opened = self._node.log.opened_topics()
        for name, view in list(self._views.items()):
            # Deleted, perhaps created again.
            if opened.get(name) is not view.topic:
                self._sealed.forget(view.topic.id)
                del self._views[name]
                if name not in opened:
                    metrics.forget_topic(name)
