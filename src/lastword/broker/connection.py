"""One client's connection: reads frames, and writes answers in the order of the requests.

1. Bytes are read into a buffer that all connections share. An incomplete frame gets its own buffer, for which memory
   must be free (`Memory`). Until then the connection is not read.
2. Requests are processed one after the other, as in Kafka. Only a Produce does not hold up the next request: its
   batches are queued in order, and many share a sync.
3. Answers wait for those before them, and all that are ready go out in one call.

A client that does not read its answers is not read from either, and its further requests are not processed. A client
that sends anything but a request is disconnected, with one line in the log. Sockets are used without asyncio's
transports, which copy.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
from prometheus_client import Counter, Histogram

from lastword import metrics
from lastword.broker.memory import Memory
from lastword.broker.node import Node
from lastword.broker.wire import (
    APIS,
    CLOSE,
    PRODUCE,
    Answer,
    Cancel,
    FastHandler,
    Handler,
    MalformedError,
    Peer,
    Piece,
    Request,
    frame_of,
    read_request,
)

logger = logging.getLogger(__name__)

SCRATCH_BYTES: Final = 256 << 10
MAX_UNSENT_BYTES: Final = 1 << 20
"""While more than this is unsent, no further request of the connection is processed."""

MAX_WAITING_BYTES: Final = 16 << 20
"""While requests of more than this are waiting or in progress, the connection is not read."""

MAX_WAITING: Final = 1000
MAX_OTHER_REQUEST_BYTES: Final = 4 << 20
"""The largest request other than Produce: decoding turns few bytes into many objects."""

STALL_S: Final = 30.0
"""A connection is closed if a frame or an answer makes no progress for this long."""

MAX_DROPPED_BYTES: Final = 64 << 20
"""The limit on sent bytes of a client that are still read, and dropped, when the broker stops."""

MAX_PIECES: Final = 512

SocketAddress = tuple[str | int, ...]
"""An address as the socket module has it: its first part is the host."""

_LENGTH: Final = struct.Struct(">i")
_API_KEY: Final = struct.Struct(">h")
_MIN_REQUEST_BYTES: Final = 10


@dataclass(slots=True, eq=False)
class Context:
    """State shared by all connections of a broker."""

    loop: asyncio.AbstractEventLoop
    handlers: Mapping[int, Handler]
    fast_handlers: Mapping[int, FastHandler]
    memory: Memory
    max_request_bytes: int
    closed: Callable[[Connection], None]
    node: Node
    raw: frozenset[int] = frozenset()
    metrics: Mapping[int, tuple[Counter, Histogram]] = field(default_factory=lambda: _metrics())
    scratch: memoryview = field(default_factory=lambda: memoryview(bytearray(SCRATCH_BYTES)))


def _metrics() -> dict[int, tuple[Counter, Histogram]]:
    """Return the counter and the histogram of each API, so that labels are looked up only once."""
    return {
        key: (metrics.KAFKA_REQUESTS.labels(api.name), metrics.KAFKA_REQUEST_DURATION.labels(api.name))
        for key, api in APIS.items()
    }


@dataclass(slots=True, eq=False)
class _Slot:
    """A request in progress. Its answer goes out after those before it."""

    request: Request | None
    size_bytes: int
    reserved_bytes: int
    started_s: float
    is_done: bool = False
    pieces: list[Piece] | None = None

    @property
    def is_produce(self) -> bool:
        return self.request is not None and self.request.api_key == PRODUCE


class Connection:
    """A client's connection. Everything runs on the event loop."""

    def __init__(self, sock: socket.socket, peer: Peer, context: Context) -> None:
        self.peer = peer
        self.last_active_s = context.loop.time()
        self._sock = sock
        self._context = context
        self._loop = context.loop
        self._head = b""
        self._frame: memoryview | None = None
        self._filled = 0
        self._wanted_bytes = 0
        # Each with the bytes that were reserved for it: all or none.
        self._waiting: deque[tuple[memoryview, int]] = deque()
        self._waiting_bytes = self._reserved_bytes = 0
        self._slots: deque[_Slot] = deque()
        self._busy: _Slot | None = None
        self._cancel: Cancel | None = None
        self._out: deque[Piece] = deque()
        self._out_bytes = 0
        self._is_flushing = False
        self._is_reading = False
        self._is_writing = False
        self._is_closed = False
        self._is_closing = False
        self._read_more()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in progress or waiting, in either direction."""
        return not (self._slots or self._waiting or self._out)

    @property
    def unsent_bytes(self) -> int:
        return self._out_bytes

    @property
    def is_stalled(self) -> bool:
        """Whether an answer is not fully sent, or a frame not fully received while the connection is read."""
        return bool(self._out) or (self._frame is not None and self._is_reading)

    # ---------------------------------------------------------------------------------------------- in

    def _read_more(self) -> None:
        """Start or stop reading, as the state requires."""
        wanted = (
            not self._is_closed
            and not self._is_closing
            and not self._wanted_bytes
            and self._waiting_bytes <= MAX_WAITING_BYTES
            # A connection with requests in progress can wait: each of its answers leads here again.
            and not (self._waiting_bytes and self._context.memory.is_full)
            and len(self._slots) + len(self._waiting) <= MAX_WAITING
        )
        if wanted and not self._is_reading:
            self._loop.add_reader(self._sock.fileno(), self._on_readable)
        elif not wanted and self._is_reading:
            self._loop.remove_reader(self._sock.fileno())
        self._is_reading = wanted

    def _on_readable(self) -> None:
        try:
            if self._frame is not None:
                self._fill_frame()
            else:
                self._take_frames()
        except (BlockingIOError, InterruptedError):
            return
        except MalformedError as error:
            self._cut_off(str(error))
        except OSError:
            self.close()
        else:
            if not self._is_closed:
                self._pump()
                self._read_more()

    def _fill_frame(self) -> None:
        assert self._frame is not None
        received = self._sock.recv_into(self._frame[self._filled :])
        if not received:
            self.close()
            return
        self.last_active_s = self._loop.time()
        self._filled += received
        if self._filled == len(self._frame):
            self._waiting.append((self._frame, self._filled))
            self._waiting_bytes += self._filled
            self._reserved_bytes += self._filled
            self._frame = None

    def _take_frames(self) -> None:
        scratch, position = self._context.scratch, 0
        end = len(self._head)
        scratch[:end] = self._head
        received = self._sock.recv_into(scratch[end:])
        if not received:
            self.close()
            return
        self.last_active_s = self._loop.time()
        end += received
        self._head = b""
        while end - position >= 4:
            (size_bytes,) = _LENGTH.unpack_from(scratch, position)
            self._check_size(size_bytes, scratch[position + 4 : end])
            position += 4
            if end - position < size_bytes:
                self._begin_frame(size_bytes, scratch[position:end])
                return
            # Writable, because a batch gets its offset in place.
            self._waiting.append((memoryview(bytearray(scratch[position : position + size_bytes])), 0))
            self._waiting_bytes += size_bytes
            self._context.memory.take(size_bytes)
            position += size_bytes
        self._head = bytes(scratch[position:end])

    def _check_size(self, size_bytes: int, begin: memoryview) -> None:
        if not _MIN_REQUEST_BYTES <= size_bytes <= self._context.max_request_bytes:
            raise MalformedError(
                f"a request of {size_bytes} bytes; {_MIN_REQUEST_BYTES} to {self._context.max_request_bytes} "
                f"(socket.request.max.bytes) are allowed"
            )
        if size_bytes > MAX_OTHER_REQUEST_BYTES and len(begin) >= 2:
            (api_key,) = _API_KEY.unpack_from(begin)
            if api_key != PRODUCE:
                raise MalformedError(
                    f"a request of {size_bytes} bytes; only Produce may exceed {MAX_OTHER_REQUEST_BYTES}"
                )

    def _begin_frame(self, size_bytes: int, begin: memoryview) -> None:
        # Not zeroed, and not touched before its bytes arrive: a length alone takes no memory.
        self._frame = np.empty(size_bytes, np.uint8).data
        self._frame[: len(begin)] = begin
        self._filled = len(begin)
        if not self._context.memory.reserve(size_bytes, self):
            self._wanted_bytes = size_bytes

    def granted(self) -> None:
        """Resume reading: the memory that this connection waited for is reserved."""
        self._wanted_bytes = 0
        self._read_more()

    # ---------------------------------------------------------------------------------------- requests

    def _pump(self) -> None:
        """Start waiting requests, as far as their order and the unsent answers allow."""
        context = self._context
        while self._waiting and self._busy is None and self._out_bytes <= MAX_UNSENT_BYTES:
            frame, reserved_bytes = self._waiting.popleft()
            size_bytes = len(frame)
            slot = _Slot(None, size_bytes, reserved_bytes, self._loop.time())
            self._slots.append(slot)
            try:
                request = read_request(frame, context.raw)
                if size_bytes > MAX_OTHER_REQUEST_BYTES and request.api_key != PRODUCE:
                    raise MalformedError(f"a request of {size_bytes} bytes; only Produce may be this large")
                slot.request = request
                if fast := context.fast_handlers.get(request.api_key):
                    is_pipelined = request.api_key == PRODUCE
                    if not is_pipelined:
                        self._busy = slot
                    cancel = fast(request, self.peer, partial(self._answered, slot))
                    if not is_pipelined and not slot.is_done:
                        self._cancel = cancel
                elif handler := context.handlers.get(request.api_key):
                    self._busy = slot
                    task = self._loop.create_task(self._run(handler, request, slot))
                    self._cancel = partial(_cancel, task)
                else:
                    raise MalformedError(f"API {request.api_key} is not served")
            except MalformedError as error:
                slot.is_done = True
                self._cut_off(str(error))
                return
            except Exception:
                slot.is_done = True
                # As in `_run`: a disconnected client retries, a client without an answer waits forever.
                logger.exception("a request from %s failed", self.peer.client_host)
                self.close("a fault of the broker")
                return

    async def _run(self, handler: Handler, request: Request, slot: _Slot) -> None:
        try:
            # An answer that can't be encoded is a fault like any other: the client must not wait for it.
            self._answered(slot, await handler(request, self.peer))
        except MalformedError as error:
            self._cut_off(str(error))
        except Exception:
            # A client must not bring the server down, and no error code fits an unknown fault.
            logger.exception("a request of API %d from %s failed", request.api_key, self.peer.client_host)
            self.close("a fault of the broker")

    def _answered(self, slot: _Slot, answer: Answer) -> None:
        if slot.is_done:
            return
        slot.is_done = True
        if self._is_closed:
            if slot.is_produce:
                self._context.memory.release(slot.size_bytes, reserved_bytes=slot.reserved_bytes)
            return
        if slot is self._busy:
            self._busy = self._cancel = None
        assert slot.request is not None
        if answer is CLOSE:
            self.close("a produce without an answer failed")
            return
        if answer is not None:
            slot.pieces = frame_of(slot.request, answer)
        requests, duration = self._context.metrics[slot.request.api_key]
        requests.inc()
        duration.observe(self._loop.time() - slot.started_s)
        slots = self._slots
        released = reserved = 0
        while slots and slots[0].is_done:
            ready = slots.popleft()
            released += ready.size_bytes
            reserved += ready.reserved_bytes
            if ready.pieces is not None:
                self._out.extend(ready.pieces)
                size_bytes = sum(map(len, ready.pieces))
                self._out_bytes += size_bytes
                self._context.node.unsent_bytes += size_bytes
        if released:
            self._waiting_bytes -= released
            self._reserved_bytes -= reserved
            self._context.memory.release(released, reserved_bytes=reserved)
        if not self._is_flushing:
            # Deferred, so that answers that are ready together go out together.
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    # --------------------------------------------------------------------------------------------- out

    def _flush(self) -> None:
        self._is_flushing = False
        if self._is_closed:
            return
        try:
            self._send()
        except OSError:
            self.close()
            return
        if self._waiting:
            self._pump()
        if not self._is_closed:
            self._read_more()
            if self._is_closing and self.is_idle:
                self._close_in_order()

    def _send(self) -> None:
        out = self._out
        while out:
            try:
                if len(out) == 1:
                    sent = self._sock.send(out[0])
                else:
                    sent = self._sock.sendmsg([out[at] for at in range(min(len(out), MAX_PIECES))])
            except (BlockingIOError, InterruptedError):
                break
            self.last_active_s = self._loop.time()
            self._out_bytes -= sent
            self._context.node.unsent_bytes -= sent
            while sent:
                size_bytes = len(out[0])
                if sent < size_bytes:
                    out[0] = memoryview(out[0])[sent:]
                    break
                sent -= size_bytes
                out.popleft()
        if out and not self._is_writing:
            self._loop.add_writer(self._sock.fileno(), self._flush)
        elif not out and self._is_writing:
            self._loop.remove_writer(self._sock.fileno())
        self._is_writing = bool(out)

    # --------------------------------------------------------------------------------------------- end

    def finish(self) -> None:
        """Accept no more requests. Close when those in progress are answered."""
        self._is_closing = True
        dropped = sum(len(frame) for frame, _ in self._waiting)
        reserved = sum(reserved_bytes for _, reserved_bytes in self._waiting)
        self._waiting.clear()
        self._waiting_bytes -= dropped
        self._reserved_bytes -= reserved
        self._context.memory.release(dropped, reserved_bytes=reserved)
        self._read_more()
        if self.is_idle:
            self._close_in_order()

    def _close_in_order(self) -> None:
        """Close after the last answer. If unread bytes were left, the system would reset the connection, and the
        client might never see its answers.
        """
        left = MAX_DROPPED_BYTES
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)
            while left > 0 and (received := self._sock.recv_into(self._context.scratch)):
                left -= received
        self.close()

    def _cut_off(self, why: str) -> None:
        if not self._is_closed:
            logger.warning("closed the connection from %s: %s", self.peer.client_host, why)
            self.close("not a request")

    def close(self, reason: str = "by the client") -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_reading:
            self._loop.remove_reader(self._sock.fileno())
        if self._is_writing:
            self._loop.remove_writer(self._sock.fileno())
        self._is_reading = self._is_writing = False
        self._sock.close()
        context = self._context
        if self._wanted_bytes:
            context.memory.forget(self)
        held, reserved = self._waiting_bytes, self._reserved_bytes
        if self._frame is not None and not self._wanted_bytes:
            held += len(self._frame)
            reserved += len(self._frame)
        for slot in self._slots:
            # Its batches are still written, and stay in memory until then.
            if slot.is_produce and not slot.is_done:
                held -= slot.size_bytes
                reserved -= slot.reserved_bytes
        self._waiting.clear()
        self._slots.clear()
        self._out.clear()
        context.node.unsent_bytes -= self._out_bytes
        self._out_bytes = 0
        self._frame = None
        cancel, self._cancel, self._busy = self._cancel, None, None
        if cancel is not None:
            cancel()
        context.memory.release(held, reserved_bytes=reserved)
        metrics.KAFKA_CONNECTIONS_CLOSED.labels(reason).inc()
        context.closed(self)


def _cancel(task: asyncio.Task[None]) -> None:
    # A task that closes its own connection is ending anyway.
    if task is not asyncio.current_task():
        task.cancel()


def peer_of(address: SocketAddress, reached: SocketAddress) -> Peer:
    """Return the peer of a socket, from the addresses of both ends."""
    return Peer(
        client_host=str(address[0]) if address else "",
        # An IPv4 address on a dual-stack socket.
        reached_at=str(reached[0]).removeprefix("::ffff:") if reached else "",
    )
