"""The internal topic that stores groups and their offsets.

1. Entries are queued, with a callback. One task takes all queued entries and appends them in one go, so that commits
   that arrive together share one sync, and everything is applied in the order of the log.
2. The callbacks get the result. No client gets an answer or sees the entry before that.
3. At the start the topic is read from its beginning, and the last record of each key counts (replay.py). Damage does
   not keep the broker from starting: it is reported, and the state that is still known is written again after it.

If the process is killed, everything that was answered is in the log. Unanswered entries may be there too, as for any
other commit whose answer is lost. The worker compacts the topic like every other topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from lastword import metrics
from lastword.broker.errors import ErrorCode
from lastword.broker.groups.replay import GROUPS_TOPIC, Key, Lost, Replayed, Value, replay, with_positions
from lastword.broker.node import Node
from lastword.errors import (
    ClosedError,
    InvalidError,
    LastwordError,
    UnavailableError,
    UnknownTopicError,
    WriteFailedError,
)
from lastword.log.topic import Topic
from lastword.record import NewRecord

logger = logging.getLogger(__name__)

Entry = tuple[bytes, bytes | None]
Done = Callable[[LastwordError | None], None]


class GroupStore:
    """Appends to the internal topic, and replays it. The topic is created when it is first needed."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._queue: list[tuple[Sequence[Entry], Done]] = []
        self._wake = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._topic: Topic | None = None
        self.lost: list[Lost] = []
        """The offsets that could not be read at the start."""

    async def start(self) -> list[tuple[Key, Value]]:
        """Start, and return the stored groups and offsets, by the last record of each key."""
        found = await self._node.call_slow(self._replay)
        self._task = asyncio.create_task(self._run(), name="lastword-group-store")
        return found

    async def stop(self) -> None:
        """Write the queued entries, then end."""
        self._closing = True
        self._wake.set()
        if self._task is not None:
            await self._task

    def write(self, entries: Sequence[Entry], done: Done) -> None:
        if self._closing or self._task is None:
            done(ClosedError("The broker is being stopped."))
            return
        self._queue.append((entries, done))
        self._wake.set()

    async def written(self, entries: Sequence[Entry], apply: Callable[[], None]) -> ErrorCode:
        """Write entries. `apply` is called in the order of the log, even if the client is gone."""
        written: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def done(error: LastwordError | None) -> None:
            if error is None:
                apply()
            if not written.done():
                written.set_result(code_of_write(error))

        self.write(entries, done)
        return await written

    async def prepare(self) -> None:
        """Create the topic before the first commit waits for it."""
        if self._topic is None:
            try:
                await self._node.call_slow(self._open)
            except LastwordError as error:
                logger.warning("%s could not be created, retrying when it is needed: %s", GROUPS_TOPIC, error)

    async def _run(self) -> None:
        while not self._closing or self._queue:
            await self._wake.wait()
            self._wake.clear()
            taken, self._queue = self._queue, []
            if not taken:
                continue
            error = await self._append([entry for entries, _ in taken for entry in entries])
            if isinstance(error, InvalidError) and len(taken) > 1:
                # One entry, such as a group that is too large, was refused, so nothing was written.
                for entries, done in taken:
                    _tell(done, await self._append(entries))
                continue
            for _, done in taken:
                _tell(done, error)

    async def _append(self, entries: Sequence[Entry]) -> LastwordError | None:
        try:
            if self._topic is None:
                await self._node.call_slow(self._open)
            await self._node.call(self._append_now, entries)
        except LastwordError as error:
            logger.error("groups and offsets could not be written to %s: %s", GROUPS_TOPIC, error)
            return error
        except Exception as error:
            # The waiting clients must be answered, and the next entries written.
            logger.exception("groups and offsets could not be written to %s", GROUPS_TOPIC)
            return UnavailableError(f"{GROUPS_TOPIC} can't be written: {error}")
        return None

    def _append_now(self, entries: Sequence[Entry]) -> None:
        assert self._topic is not None
        records = [NewRecord(key=key, value=value) for key, value in entries]
        try:
            self._topic.append_internal(records)
        except WriteFailedError:
            # Nothing more is accepted until the partition is reopened; then it is whole again.
            self._topic.reopen_partition(0)
            self._topic.append_internal(records)

    def _open(self) -> None:
        self._topic = self._node.log.internal_topic(GROUPS_TOPIC)

    def _replay(self) -> list[tuple[Key, Value]]:
        log = self._node.log
        try:
            self._topic = log.topic(GROUPS_TOPIC)
        except UnknownTopicError:
            return []
        if self._topic.foreign is not None:
            # The groups of this catalog belong to another broker.
            raise self._topic.foreign
        self.repaired()
        found = replay(self._topic)
        if found.lost:
            names = {each.id: each.name for each in list(log.opened_topics().values())}
            found = with_positions(found, log.path, names)
            self._report(found)
            self._write_again(found)
        return found.entries

    def _report(self, found: Replayed) -> None:
        self.lost = found.lost
        metrics.GROUPS_UNREADABLE_OFFSETS.set(sum(each.end_offset - each.first_offset for each in found.lost))
        for each in found.lost:
            logger.error(
                "%s: %s. Commits in this range fall back to positions from some seconds earlier, so consumers may "
                "read records again. `lastword wal repair %s --skip` skips it.",
                *(GROUPS_TOPIC, str(each).removesuffix("."), GROUPS_TOPIC),
            )

    def _write_again(self, found: Replayed) -> None:
        records = found.doubtful()
        if not records:
            return
        assert self._topic is not None
        try:
            self._topic.append_internal(records)
            logger.info("wrote %d groups and offsets again after the unreadable ones", len(records))
        except LastwordError as error:
            # They are in memory now, and the next start tries again.
            logger.error("groups and offsets could not be written again to %s: %s", GROUPS_TOPIC, error)

    def repaired(self) -> None:
        """Note that everything can be read, or everything unreadable has been skipped."""
        self.lost = []
        metrics.GROUPS_UNREADABLE_OFFSETS.set(0)


def _tell(done: Done, error: LastwordError | None) -> None:
    try:
        done(error)
    except Exception:
        logger.exception("a write to %s could not be applied", GROUPS_TOPIC)


def code_of_write(error: LastwordError | None) -> ErrorCode:
    """Return the code for the result of a write. It is retriable, unless a retry is useless."""
    if error is None:
        return ErrorCode.NONE
    return (
        ErrorCode.UNKNOWN_SERVER_ERROR
        if isinstance(error, InvalidError)
        else ErrorCode.COORDINATOR_NOT_AVAILABLE
    )
