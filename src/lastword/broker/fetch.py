"""Fetch: whole batches from the WAL's tail or from sealed segments, at once or when enough data has arrived.

For each request:
1. Its partitions are read in order until its byte limit is reached. The tail is read on the loop if it is in the page
   cache, else on a thread. Sealed data comes from chunks that are made on threads.
2. If that is enough (min bytes, or an error), or there is no time to wait, the request is answered.
3. Otherwise it waits for more visible records, for a chunk, or for its timeout. Then it starts again at 1.

A request that has data to return never waits for slow work. The result of that work is there for the next request.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from lastword import metrics
from lastword.broker.errors import ErrorCode, code_of
from lastword.broker.node import Node
from lastword.broker.partitions import FRESH_S, STALE_S, PartitionView, TopicView, Views
from lastword.broker.sealed import SealedData
from lastword.broker.tail import TailBytes, WouldBlockError
from lastword.broker.wire import (
    FETCH,
    Cancel,
    Done,
    FastHandler,
    Message,
    Peer,
    Piece,
    Request,
    count_bytes,
    text_bytes,
)
from lastword.errors import LastwordError, UnknownPartitionError, UnknownTopicError
from lastword.log.topic import Topic
from lastword.wal.reader import OffsetGoneError

FLEXIBLE_FROM: Final = 12
IDS_FROM: Final = 13
ZSTD_FROM: Final = 10
NO_ID: Final = UUID(int=0)
SHORT_OF_MEMORY_BYTES: Final = 64 << 10

_TOP: Final = struct.Struct(">ihi")
_PARTITION: Final = struct.Struct(">ihqqq")
_OLD_PARTITION: Final = struct.Struct(">ihqq")
_INT32: Final = struct.Struct(">i")


@dataclass(slots=True)
class _Part:
    """A partition of a request, and its answer."""

    index: int
    offset: int
    max_bytes: int
    leader_epoch: int
    view: PartitionView | None = None
    code: ErrorCode = ErrorCode.NONE
    pieces: list[Piece] = field(default_factory=list)
    size_bytes: int = 0
    next_offset: int = -1
    is_cut: bool = False
    """There is more data than was read, so waiting for records would not help."""

    def fail(self, code: ErrorCode) -> None:
        self.code = code
        self.put([], 0, -1)

    def put(self, pieces: list[Piece], size_bytes: int, next_offset: int) -> None:
        self.pieces, self.size_bytes, self.next_offset = pieces, size_bytes, next_offset


class FetchHandler:
    """Answers fetches."""

    def __init__(self, node: Node, views: Views, sealed: SealedData) -> None:
        self.node = node
        self.views = views
        self.sealed = sealed
        self.waiting: dict[_Fetch, None] = {}
        self.is_stopping = False

    def fast_handlers(self) -> dict[int, FastHandler]:
        return {FETCH: self._fetch}

    def _fetch(self, request: Request, _peer: Peer, done: Done) -> Cancel | None:
        fetch = _Fetch(self, request, done)
        fetch.begin()
        return fetch.cancel

    def stop(self) -> None:
        """Answer the waiting fetches with the data that there is."""
        self.is_stopping = True
        for fetch in list(self.waiting):
            fetch.time_is_over()


class _Fetch:
    """One request, from its arrival to its answer."""

    def __init__(self, handler: FetchHandler, request: Request, done: Done) -> None:
        self._handler = handler
        self._version = request.api_version
        self._done = done
        self._is_done = False
        self._is_waiting = False
        self._was_woken = False
        """More records became visible during a read that may lack them."""
        self._timer: asyncio.TimerHandle | None = None
        message = request.message
        self._max_bytes = min(message.max_bytes, handler.node.config.fetch_max_bytes)
        self._min_bytes = max(min(message.min_bytes, self._max_bytes), 0)
        self._max_wait_s = max(message.max_wait_ms, 0) / 1000
        self._may_wait = self._max_wait_s > 0
        self._pending = 0
        self._refreshed = self._refreshed_twice = False
        self._sure_of: set[TopicView] = set()
        """Topics whose snapshot was loaded since this attempt began."""
        # The result of a read on a thread, or its error, and the end of the visible records at that time.
        self._loaded: dict[tuple[PartitionView, int], tuple[int, TailBytes | Exception]] = {}
        self._topics: list[tuple[UUID | str | None, Topic | None, list[_Part]]] = [
            self._resolve(each) for each in message.topics or ()
        ]

    def _resolve(self, wanted: Message) -> tuple[UUID | str | None, Topic | None, list[_Part]]:
        node = self._handler.node
        by_id = self._version >= IDS_FROM
        # The codec reads an id of zeros as None.
        name: UUID | str | None = (wanted.topic_id or NO_ID) if by_id else wanted.topic
        parts = [
            _Part(
                each.partition,
                each.fetch_offset,
                each.partition_max_bytes,
                each.current_leader_epoch if self._version >= 9 else -1,
            )
            for each in wanted.partitions or ()
        ]
        try:
            topic = node.topic_by_id(name) if isinstance(name, UUID) else node.topic(name or "")
        except UnknownTopicError:
            code = ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for part in parts:
                part.fail(code)
            return name, None, parts
        view = self._handler.views.topic(topic)
        for part in parts:
            try:
                part.view = view.partition(part.index)
                self._check_epoch(part)
            except UnknownPartitionError:
                part.fail(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            except LastwordError as error:
                part.fail(code_of(error))
        return name, topic, parts

    def _check_epoch(self, part: _Part) -> None:
        assert part.view is not None
        current = part.view.writer.epochs[-1][0]
        if part.leader_epoch >= 0 and part.leader_epoch != current:
            part.fail(
                ErrorCode.FENCED_LEADER_EPOCH
                if part.leader_epoch < current
                else ErrorCode.UNKNOWN_LEADER_EPOCH
            )

    # ------------------------------------------------------------------------------------------- attempts

    def begin(self) -> None:
        self._begin_attempt()

    def wake(self) -> None:
        """Try again: data that this request waits for may have arrived."""
        if self._is_done:
            return
        if self._pending:
            self._was_woken = True
            return
        if self._is_waiting and self._min_bytes > 1:
            available = 0
            for _, _, parts in self._topics:
                for part in parts:
                    if part.view is not None:
                        available += part.view.tail.available_bytes(part.offset)
            if available < self._min_bytes:
                return
        self._begin_attempt()

    def time_is_over(self) -> None:
        self._may_wait = False
        if not self._is_done and not self._pending:
            self._begin_attempt()

    def cancel(self) -> None:
        """End without an answer: the client is gone."""
        self._end()

    def _begin_attempt(self) -> None:
        self._sure_of.clear()
        self._try()

    def _try(self) -> None:
        left = self._max_bytes
        if self._handler.node.is_short_of_memory:
            left = min(left, SHORT_OF_MEMORY_BYTES)
        found_bytes = 0
        failed = is_cut = False
        for _, _, parts in self._topics:
            for part in parts:
                if part.view is not None and part.code is ErrorCode.NONE:
                    part.put([], 0, part.offset)
                    part.is_cut = False
                    if left > 0:
                        self._read(part, part.view, min(left, max(part.max_bytes, 0)), found_bytes == 0)
                        left -= part.size_bytes
                        found_bytes += part.size_bytes
                failed = failed or part.code is not ErrorCode.NONE
                is_cut = is_cut or part.is_cut
        if found_bytes >= self._min_bytes or (found_bytes and is_cut) or failed or not self._topics:
            self._answer()
        elif not self._may_wait or self._handler.is_stopping:
            # If there is nothing else to return, wait for the reads in progress anyway: else a client with a short
            # timeout would retry forever.
            if found_bytes or not self._pending or self._handler.is_stopping:
                self._answer()
            else:
                self._wait()
        else:
            self._wait()

    def _wait(self) -> None:
        if not self._is_waiting:
            self._begin_to_wait()
        # The data is read again in the end: nothing bounds the number of fetches that wait with too little data.
        for _, _, parts in self._topics:
            for part in parts:
                part.pieces = []
        if self._was_woken and not self._pending:
            self._was_woken = False
            asyncio.get_running_loop().call_soon(self.wake)

    def _begin_to_wait(self) -> None:
        self._is_waiting = True
        self._handler.waiting[self] = None
        if self._may_wait:
            self._timer = asyncio.get_running_loop().call_later(self._max_wait_s, self.time_is_over)
        for view in self._each_view():
            view.wait(self.wake)
        # Records that arrived between the read and this point are not announced any more.
        for _, _, parts in self._topics:
            for part in parts:
                if (
                    part.view is not None
                    and part.view.tail.available_bytes(part.offset)
                    and not part.size_bytes
                ):
                    if not self._pending:
                        asyncio.get_running_loop().call_soon(self.wake)
                    return

    def _each_view(self) -> list[PartitionView]:
        return [part.view for _, _, parts in self._topics for part in parts if part.view is not None]

    def _end(self) -> None:
        self._is_done = True
        if self._is_waiting:
            self._handler.waiting.pop(self, None)
            for view in self._each_view():
                view.stop_waiting(self.wake)
        if self._timer is not None:
            self._timer.cancel()

    # ----------------------------------------------------------------------------------------------- read

    def _read(self, part: _Part, view: PartitionView, max_bytes: int, at_least_one: bool) -> None:
        offset = part.offset
        shown = view.writer.shown
        if view.positions is None:
            self._later(view.topic.refresh())
            return
        if view.may_change(offset) and view.topic not in self._sure_of:
            # A commit is in progress: from now on it may remove the data that the known snapshot has.
            self._sure_of.add(view.topic)
            self._later(asyncio.ensure_future(view.topic.refresh_again()))
            return
        if view.topic.age_s > STALE_S:
            view.topic.refresh()
        positions = view.positions
        if not positions.log_start <= offset <= max(shown.offset, positions.log_start):
            part.fail(ErrorCode.OFFSET_OUT_OF_RANGE)
        elif offset < max(shown.offset, positions.first_dirty):
            pending, seen = self._pending, shown.offset
            if offset < positions.first_dirty:
                self._read_sealed(part, view, max_bytes, at_least_one)
            else:
                seen = self._read_tail(part, view, max_bytes, at_least_one)
            part.is_cut = self._pending == pending and part.next_offset < seen

    def _read_tail(self, part: _Part, view: PartitionView, max_bytes: int, at_least_one: bool) -> int:
        """Read the tail. Return the end of the visible records at that time: a thread may have read it a while ago."""
        seen = view.writer.shown.offset
        try:
            loaded = self._loaded.pop((view, part.offset), None)
            if loaded is None:
                found = view.tail.read(part.offset, max_bytes, inline=True)
            else:
                seen, result = loaded
                if isinstance(result, Exception):
                    raise result
                found = result
        except WouldBlockError:
            self._later(asyncio.ensure_future(self._read_on_thread(view, part.offset, max_bytes)))
            return seen
        except OffsetGoneError:
            self._read_sealed(part, view, max_bytes, at_least_one)
            return seen
        except (LastwordError, OSError) as error:
            part.fail(code_of(error))
            return seen
        if found.has_zstd and self._version < ZSTD_FROM:
            part.fail(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        elif found.data and (len(found.data) <= max_bytes or at_least_one):
            part.put([found.data], len(found.data), found.next_offset)
        return seen

    async def _read_on_thread(self, view: PartitionView, offset: int, max_bytes: int) -> None:
        seen = view.writer.shown.offset
        try:
            found = await self._handler.node.call(view.tail.read, offset, max_bytes, inline=False)
            self._loaded[view, offset] = seen, found
        except (LastwordError, OffsetGoneError) as error:
            self._loaded[view, offset] = seen, error

    def _read_sealed(self, part: _Part, view: PartitionView, max_bytes: int, at_least_one: bool) -> None:
        if view.topic.age_s > FRESH_S and not self._refreshed:
            self._refreshed = True
            self._later(view.topic.refresh())
            return
        positions = view.positions
        assert positions is not None
        sealed, topic = self._handler.sealed, view.topic.topic
        if part.offset >= positions.sealed_end:
            # Neither sealed nor in the WAL, according to a snapshot that may be a second old.
            if self._refreshed_twice:
                part.fail(ErrorCode.CORRUPT_MESSAGE)
            else:
                self._refreshed_twice = True
                self._later(view.topic.refresh())
            return
        chunk = sealed.find(topic, part.index, part.offset)
        if chunk is None:
            self._later(self._load(part, view))
            return
        offset = next_offset = part.offset
        left = max_bytes
        pieces: list[Piece] = []
        while chunk is not None:
            found, next_offset = chunk.read(offset, left, at_least_one=at_least_one and not pieces)
            pieces += found
            left -= sum(map(len, found))
            sealed.served(topic, part.index, chunk)
            if next_offset < chunk.next_offset or left <= 0 or next_offset >= positions.sealed_end:
                break
            offset = next_offset
            chunk = sealed.find(topic, part.index, offset)
        part.put(pieces, sum(map(len, pieces)), next_offset)

    async def _load_chunk(self, part: _Part, view: PartitionView) -> None:
        try:
            await self._handler.sealed.load(view.topic.topic, part.index, part.offset)
        except LastwordError as error:
            part.fail(code_of(error))

    def _load(self, part: _Part, view: PartitionView) -> asyncio.Future[None]:
        return asyncio.ensure_future(self._load_chunk(part, view))

    def _later(self, work: asyncio.Future[None]) -> None:
        """Try again when some slow work is done."""
        self._pending += 1
        work.add_done_callback(self._came)

    def _came(self, work: asyncio.Future[None]) -> None:
        self._pending -= 1
        if self._is_done:
            return
        if not work.cancelled() and (error := work.exception()) is not None:
            code = code_of(error) if isinstance(error, Exception) else ErrorCode.UNKNOWN_SERVER_ERROR
            for _, _, parts in self._topics:
                for part in parts:
                    if part.code is ErrorCode.NONE:
                        part.fail(code)
        if not self._pending:
            self._try()

    # --------------------------------------------------------------------------------------------- answer

    def _answer(self) -> None:
        self._end()
        for _, topic, parts in self._topics:
            if topic is not None and (size_bytes := sum(part.size_bytes for part in parts)):
                metrics.BYTES_FETCHED.labels(topic.name).inc(size_bytes)
            for part in parts:
                if part.code is not ErrorCode.NONE:
                    metrics.KAFKA_ERRORS.labels("Fetch", part.code.name).inc()
        self._done(self._pieces())

    def _pieces(self) -> list[Piece]:
        version, flexible = self._version, self._version >= FLEXIBLE_FROM
        pieces: list[Piece] = []
        head = bytearray(_TOP.pack(0, 0, 0) if version >= 7 else _INT32.pack(0))
        head += count_bytes(len(self._topics), flexible=flexible)
        for name, _, parts in self._topics:
            head += name.bytes if isinstance(name, UUID) else text_bytes(name, flexible=flexible)
            head += count_bytes(len(parts), flexible=flexible)
            for part in parts:
                head += self._partition_head(part, flexible)
                if part.pieces:
                    pieces.append(head)
                    pieces += part.pieces
                    head = bytearray()
                if flexible:
                    head += b"\0"
            if flexible:
                head += b"\0"
        if flexible:
            head += b"\0"
        if head:
            pieces.append(head)
        return pieces

    def _partition_head(self, part: _Part, flexible: bool) -> bytes:
        shown = log_start = -1
        if part.view is not None:
            shown = part.view.writer.shown.offset
            positions = part.view.positions
            log_start = positions.log_start if positions is not None else 0
            shown = max(shown, log_start)
        if self._version >= 5:
            head = _PARTITION.pack(part.index, part.code, shown, shown, log_start)
        else:
            head = _OLD_PARTITION.pack(part.index, part.code, shown, shown)
        # No transactions: none was aborted.
        head += count_bytes(-1, flexible=flexible)
        if self._version >= 11:
            head += _INT32.pack(-1)
        return head + count_bytes(part.size_bytes, flexible=flexible)
