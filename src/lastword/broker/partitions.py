"""The broker's view of partitions: the last snapshot of the table, and the fetches that wait for records."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Final

from lastword import metrics
from lastword.broker.node import Node
from lastword.broker.sealed import SealedData
from lastword.broker.tail import Tail
from lastword.errors import LastwordError
from lastword.log.topic import Topic
from lastword.segments.model import PendingCommit, Positions, Snapshot
from lastword.wal.writer import PartitionWriter

logger = logging.getLogger(__name__)

FRESH_S: Final = 1.0
"""The maximum age of the snapshot from which sealed data is read."""

STALE_S: Final = 5.0
"""The age at which the snapshot is reloaded in the background."""


class PartitionView:
    """One partition of a topic, as fetches see it."""

    def __init__(self, topic: TopicView, index: int, writer: PartitionWriter) -> None:
        self.topic = topic
        self.index = index
        self.writer = writer
        self.tail = Tail(writer)
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[Callable[[], None], None] = {}
        """Called in the order in which they began to wait."""
        self._is_waking = False
        writer.on_shown = self._shown

    @property
    def positions(self) -> Positions | None:
        """The positions in the last loaded snapshot; None if it has none, or was not loaded yet."""
        snapshot = self.topic.snapshot
        if snapshot is None or self.index >= len(snapshot.positions):
            return None
        return snapshot.positions[self.index]

    def may_change(self, offset: int) -> bool:
        """Return whether a commit in progress may remove the data that the last snapshot has at an offset."""
        return any(offset < floors.get(self.index, 0) for floors in self.topic.pending.values())

    def wait(self, wake: Callable[[], None]) -> None:
        """Call `wake`, on the loop, when more records become visible."""
        self._waiting[wake] = None

    def stop_waiting(self, wake: Callable[[], None]) -> None:
        self._waiting.pop(wake, None)

    def _shown(self) -> None:
        # On any thread, under the writer's lock. A fetch checks again after it has begun to wait.
        if self._waiting and not self._is_waking:
            self._is_waking = True
            try:
                self._loop.call_soon_threadsafe(self._wake)
            except RuntimeError:
                # The loop has been closed, so nothing waits any more.
                self._is_waking = False

    def _wake(self) -> None:
        self._is_waking = False
        for wake in list(self._waiting):
            wake()


class TopicView:
    """A topic, and the last loaded snapshot of its table."""

    def __init__(self, topic: Topic, node: Node, sealed: SealedData) -> None:
        self.topic = topic
        self.snapshot: Snapshot | None = None
        self._node = node
        self._sealed = sealed
        self._refreshed_s = self._asked_s = float("-inf")
        self._refreshing: asyncio.Future[None] | None = None
        self._partitions: dict[int, PartitionView] = {}
        self.pending: dict[object, Mapping[int, int]] = {}
        """The floors of commits in progress."""

    def partition(self, index: int) -> PartitionView:
        """Return the view of a partition. Raise UnknownPartitionError if there is none."""
        view = self._partitions.get(index)
        writer = self.topic.writer(index)
        if view is None or view.writer is not writer:
            # A reopened partition has another writer.
            view = self._partitions[index] = PartitionView(self, index, writer)
        return view

    @property
    def age_s(self) -> float:
        return asyncio.get_running_loop().time() - self._refreshed_s

    def refresh_within(self, seconds: float) -> None:
        """Load the snapshot in the background if the last attempt is longer ago than `seconds`."""
        if asyncio.get_running_loop().time() - self._asked_s > seconds:
            self.refresh()

    async def refresh_again(self) -> None:
        """Load the snapshot as of now or later. A load that began before may have missed the current one."""
        if self._refreshing is not None:
            await asyncio.wait([self._refreshing])
        # Callers that waited for the same load share the next one.
        await self.refresh()

    def refresh(self) -> asyncio.Future[None]:
        """Load the table's current snapshot. Concurrent callers share one load."""
        if self._refreshing is None:
            self._asked_s = asyncio.get_running_loop().time()
            self._refreshing = asyncio.ensure_future(self._refresh())
            self._refreshing.add_done_callback(self._refreshed)
        return self._refreshing

    async def _refresh(self) -> None:
        started_s = asyncio.get_running_loop().time()
        snapshot = await self._node.call_refresh(self.topic.table.snapshot)
        self.snapshot = snapshot
        self._refreshed_s = started_s
        self._sealed.update(self.topic, snapshot)

    def _refreshed(self, done: asyncio.Future[None]) -> None:
        self._refreshing = None
        if not done.cancelled() and (error := done.exception()) is not None:
            logger.warning("can't load the table of %s: %s", self.topic.name, error)

    def begin_commit(self, token: object, floors: Mapping[int, int]) -> None:
        """Note that a commit begins. Until it ends, reads below its floors need a fresh snapshot."""
        self.pending[token] = floors

    async def end_commit(self, token: object) -> None:
        """Load the snapshot after a commit, successful or not."""
        try:
            if self.snapshot is not None or self._refreshing is not None:
                await self.refresh_again()
        except LastwordError:
            # The next read has to load the snapshot before it is answered.
            self.snapshot = None
        finally:
            del self.pending[token]


class Views:
    """The views of all topics in use."""

    def __init__(self, node: Node, sealed: SealedData) -> None:
        self._node = node
        self._sealed = sealed
        self._views: dict[str, TopicView] = {}
        self._loop = asyncio.get_running_loop()
        self._work_lock = threading.Lock()
        self._work: set[Future[TopicView | None]] = set()
        self._is_closed = False

    async def close(self) -> None:
        """Ignore further commits, and wait for those that are being noted: nothing is served any more."""
        with self._work_lock:
            self._is_closed = True
            work = [asyncio.wrap_future(each) for each in self._work]
        await asyncio.gather(*work, return_exceptions=True)

    def topic(self, topic: Topic) -> TopicView:
        view = self._views.get(topic.name)
        if view is None or view.topic is not topic:
            self._forget_deleted()
            view = self._views[topic.name] = TopicView(topic, self._node, self._sealed)
        return view

    @contextmanager
    def committing(self, commit: PendingCommit) -> Iterator[None]:
        """Follow a commit. Called on any thread but the loop's."""
        token = object()
        view = self._on_loop(self._begin_commit(commit, token))
        try:
            yield
        finally:
            if view is not None:
                self._on_loop(view.end_commit(token))

    async def _begin_commit(self, commit: PendingCommit, token: object) -> TopicView | None:
        topic = next(
            (each for each in list(self._node.log.opened_topics().values()) if each.id == commit.topic_id),
            None,
        )
        if topic is None:
            return None
        view = self.topic(topic)
        view.begin_commit(token, commit.floors)
        return view

    def _on_loop(self, work: Coroutine[object, None, TopicView | None]) -> TopicView | None:
        """Run a coroutine on the loop and return its result, or None if this has been closed."""
        with self._work_lock:
            if self._is_closed:
                work.close()
                return None
            running = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._work.add(running)
        try:
            return running.result()
        finally:
            with self._work_lock:
                self._work.discard(running)

    def _forget_deleted(self) -> None:
        opened = self._node.log.opened_topics()
        for name, view in list(self._views.items()):
            # Deleted, perhaps recreated.
            if opened.get(name) is not view.topic:
                self._sealed.forget(view.topic.id)
                del self._views[name]
                if name not in opened:
                    metrics.forget_topic(name)
