"""Sockets of the simulation: in-memory streams between simulated processes, and the selector of an event loop.

They implement the part of `socket` and `select` that the product uses. A message arrives at once, but the scheduler decides
when a fiber that waits for it continues. The ends of a killed process are closed, as by the kernel.
"""

from __future__ import annotations

import asyncio
import errno
import selectors
import socket as real
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lastword.testing.simulation.fibers import Fiber, Scheduler

_FIRST_FD = 1 << 20
_CAPACITY_BYTES = 1 << 20


class Network:
    """All sockets of a simulation."""

    def __init__(self, scheduler: Scheduler, owner: Callable[[], Any]) -> None:
        self.scheduler = scheduler
        self.owner = owner
        """Returns the calling simulated process."""
        self.listeners: dict[object, Socket] = {}
        self.open: dict[int, Socket] = {}
        self.watching: list[Selector] = []
        self._fds = _FIRST_FD
        self._ports = 40_000

    def next_fd(self) -> int:
        self._fds += 1
        return self._fds

    def next_port(self) -> int:
        self._ports += 1
        return self._ports

    def changed(self) -> None:
        """Wake every event loop, so that each checks its own sockets."""
        for selector in self.watching:
            selector.wake()

    def killed(self, owner: Any) -> None:
        """Close the sockets of a process."""
        for each in [each for each in self.open.values() if each.owner is owner]:
            each.close()


class Socket:
    """A stream, or a listener."""

    network: Network

    def __init__(self, family: int = real.AF_INET, type: int = real.SOCK_STREAM, proto: int = 0) -> None:  # noqa: A002
        self.family = family
        self.owner = self.network.owner()
        self._fd = self.network.next_fd()
        self.network.open[self._fd] = self
        self._timeout_s: float | None = None
        self._address: Any = None
        self._peer: Socket | None = None
        self._peer_address: Any = None
        self._in = bytearray()
        self._is_eof = False
        self._is_closed = False
        self._is_reset = False
        self._pending: list[Socket] | None = None
        self._readers: list[Fiber] = []
        self._writers: list[Fiber] = []

    # ------------------------------------------------------------------------------------------ state

    def fileno(self) -> int:
        return -1 if self._is_closed else self._fd

    def settimeout(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s

    def setblocking(self, blocking: bool) -> None:
        self._timeout_s = None if blocking else 0.0

    def setsockopt(self, *_: object) -> None:
        """Do nothing: there is no delay."""

    def getsockname(self) -> Any:
        return self._address

    def getpeername(self) -> Any:
        return self._peer_address

    @property
    def is_readable(self) -> bool:
        if self._pending is not None:
            return bool(self._pending)
        return bool(self._in) or self._is_eof or self._is_reset

    @property
    def is_writable(self) -> bool:
        return self._peer is None or self._is_reset or len(self._peer._in) < _CAPACITY_BYTES

    # -------------------------------------------------------------------------------------- connecting

    def bind(self, address: Any) -> None:
        if self.family == real.AF_INET and address[1] == 0:
            address = (address[0], self.network.next_port())
        bound = self.network.listeners.get(address)
        if bound is not None and not bound._is_closed:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self._address = address
        self.network.listeners[address] = self

    def listen(self, backlog: int = 0) -> None:
        self._pending = []

    def connect(self, address: Any) -> None:
        self.network.scheduler.point("connect")
        listener = self.network.listeners.get(address)
        if listener is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        if listener._pending is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        other = Socket(self.family)
        other.owner = listener.owner
        self._peer, other._peer = other, self
        self._address = self._peer_address = other._peer_address = other._address = ("127.0.0.1", self._fd)
        listener._pending.append(other)
        listener._notify_readers()

    def accept(self) -> tuple[Socket, Any]:
        while True:
            if self._is_closed or self._is_reset or self._pending is None:
                raise OSError(errno.EINVAL, "Invalid argument")
            if self._pending:
                accepted = self._pending.pop(0)
                return accepted, accepted._peer_address
            self._wait(self._readers)

    # ------------------------------------------------------------------------------------------ bytes

    def recv(self, size_bytes: int, flags: int = 0) -> bytes:
        self.network.scheduler.point("recv")
        while True:
            if self._is_closed:
                raise OSError(errno.EBADF, "Bad file descriptor")
            if self._in:
                data = bytes(self._in[:size_bytes])
                del self._in[:size_bytes]
                if self._peer is not None:
                    self.network.scheduler.wake(self._peer._writers, 1_000)
                    self.network.changed()
                return data
            if self._is_reset:
                raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
            if self._is_eof:
                return b""
            self._wait(self._readers)

    def recv_into(self, buffer: Any, nbytes: int = 0) -> int:
        view = memoryview(buffer).cast("B")
        data = self.recv(nbytes or len(view))
        view[: len(data)] = data
        return len(data)

    def send(self, data: Any, flags: int = 0) -> int:
        view = memoryview(data).cast("B")
        while True:
            if self._is_closed:
                raise OSError(errno.EBADF, "Bad file descriptor")
            peer = self._peer
            if peer is None or peer._is_closed:
                raise BrokenPipeError(errno.EPIPE, "Broken pipe")
            if self.is_writable:
                some = view[: _CAPACITY_BYTES - len(peer._in)]
                peer._in += some
                peer._notify_readers()
                return len(some)
            self._wait(self._writers)

    def sendmsg(self, buffers: Sequence[Any]) -> int:
        return self.send(b"".join(bytes(each) for each in buffers))

    def sendall(self, data: Any) -> None:
        self.network.scheduler.point("send")
        view = memoryview(data).cast("B")
        while view:
            view = view[self.send(view) :]

    # ------------------------------------------------------------------------------------------- ending

    def shutdown(self, how: int) -> None:
        if self._pending is not None:
            self._is_reset = True
            self._notify_readers()
            return
        if self._peer is None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        if how in (real.SHUT_RD, real.SHUT_RDWR):
            self._is_eof = True
            self._notify_readers()
        if how in (real.SHUT_WR, real.SHUT_RDWR):
            self._peer._is_eof = True
            self._peer._notify_readers()

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self.network.open.pop(self._fd, None)
        if self._address is not None and self.network.listeners.get(self._address) is self:
            if self.family == real.AF_UNIX:
                # The name stays in the folder, without a listener.
                self._pending, dropped = None, self._pending or []
            else:
                del self.network.listeners[self._address]
                dropped = self._pending or []
            for each in dropped:
                each.close()
        if self._peer is not None and not self._peer._is_closed:
            if self._in:
                self._peer._is_reset = True
            self._peer._is_eof = True
            self._peer._notify_readers()
            self.network.scheduler.wake(self._peer._writers, 1_000)
        self._notify_readers()

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self, queue: list[Fiber]) -> None:
        if self._timeout_s == 0.0:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        scheduler = self.network.scheduler
        until_s = float("inf") if self._timeout_s is None else scheduler.now_s + self._timeout_s
        if not scheduler.wait(queue, until_s) and scheduler.now_s >= until_s:
            raise TimeoutError("timed out")

    def _notify_readers(self) -> None:
        self.network.scheduler.wake(self._readers, 1_000)
        self.network.changed()


class SocketModule:
    """Replaces the module `socket` in the modules that open sockets."""

    def __init__(self) -> None:
        self.socket = Socket

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)


class SelectModule:
    """Replaces the module `select`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def select(
        self,
        readers: Sequence[Socket],
        writers: Sequence[Socket],
        errors: Sequence[Socket],
        timeout_s: float | None = None,
    ) -> tuple[list[Socket], list[Socket], list[Socket]]:
        until_s = float("inf") if timeout_s is None else self._scheduler.now_s + timeout_s
        (each,) = readers
        while not each.is_readable and self._scheduler.now_s < until_s:
            self._scheduler.wait(each._readers, until_s)
        return [each] if each.is_readable else [], [], []


class Selector(selectors.BaseSelector):
    """Returns the ready sockets of an event loop."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._waiting: list[Fiber] = []
        self._is_woken = False
        network.watching.append(self)

    def wake(self) -> None:
        self._is_woken = True
        self._network.scheduler.wake(self._waiting)

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if fd in self._keys:
            raise KeyError(f"{fd} is registered")
        key = self._keys[fd] = selectors.SelectorKey(fileobj, fd, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        self.unregister(fileobj)
        return self.register(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[fileobj if isinstance(fileobj, int) else fileobj.fileno()]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        scheduler = self._network.scheduler
        until_s = float("inf") if timeout is None else scheduler.now_s + max(timeout, 0.0)
        while True:
            ready = self._ready()
            if ready or self._is_woken or scheduler.now_s >= until_s:
                self._is_woken = False
                # Other fibers may run before the loop checks its sockets.
                scheduler.point("loop")
                return ready or self._ready()
            scheduler.wait(self._waiting, until_s)

    def _ready(self) -> list[tuple[selectors.SelectorKey, int]]:
        found = []
        for key in self._keys.values():
            each = self._network.open.get(key.fd)
            if each is None:
                continue
            events = key.events & (
                (selectors.EVENT_READ if each.is_readable else 0)
                | (selectors.EVENT_WRITE if each.is_writable else 0)
            )
            if events:
                found.append((key, events))
        return found

    def close(self) -> None:
        if self in self._network.watching:
            self._network.watching.remove(self)


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose waits are decided by the scheduler."""

    def __init__(self, network: Network) -> None:
        self._sim_selector = Selector(network)
        super().__init__(self._sim_selector)

    def _write_to_self(self) -> None:
        self._sim_selector.wake()

    def add_signal_handler(self, *_: object) -> None:
        """Do nothing: simulated processes get no signals."""
