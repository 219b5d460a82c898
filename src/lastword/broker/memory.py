"""The memory that requests may take."""

from __future__ import annotations

from typing import Protocol


class Waiting(Protocol):
    """A connection that waits for memory."""

    def granted(self) -> None:
        """Resume: the memory is reserved."""


class Memory:
    """Bounds the bytes of requests in memory. A request that does not fit waits in FIFO order.

    Small requests, which arrive whole together with others, are counted (`take`) but don't wait. Some stay for long, such
    as a fetch that waits for records. They must not make a large request wait forever, so a reservation is always
    granted if there is no other. While memory is full, a connection with requests in progress is not read, so small
    requests exceed the limit by at most one read per connection.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._reserved_bytes = 0
        self._waiting: dict[Waiting, int] = {}

    @property
    def is_full(self) -> bool:
        return self.used_bytes > self.limit_bytes

    def reserve(self, size_bytes: int, waiting: Waiting) -> bool:
        """Reserve memory and return True, or return False and call `waiting.granted()` once it is reserved."""
        if self._waiting or not self._is_free(size_bytes):
            self._waiting[waiting] = size_bytes
            return False
        self._reserve(size_bytes)
        return True

    def take(self, size_bytes: int) -> None:
        """Count bytes that are already in memory."""
        self.used_bytes += size_bytes

    def release(self, size_bytes: int, *, reserved_bytes: int) -> None:
        """Release memory, including `reserved_bytes` of reserved memory."""
        self.used_bytes -= size_bytes
        self._reserved_bytes -= reserved_bytes
        while self._waiting:
            waiting, wanted = next(iter(self._waiting.items()))
            if not self._is_free(wanted):
                return
            del self._waiting[waiting]
            self._reserve(wanted)
            waiting.granted()

    def forget(self, waiting: Waiting) -> None:
        """Remove a connection that waits. Release its memory after this, not before."""
        self._waiting.pop(waiting, None)

    def _is_free(self, size_bytes: int) -> bool:
        return not self._reserved_bytes or self.used_bytes + size_bytes <= self.limit_bytes

    def _reserve(self, size_bytes: int) -> None:
        self.used_bytes += size_bytes
        self._reserved_bytes += size_bytes
