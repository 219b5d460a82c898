"""A reader that takes batches by their headers and decodes no record: as fast as a socket, so that it is never the brake."""

from __future__ import annotations

import socket
import struct
from typing import Self

MAX_BYTES = 4 << 20

_PARTITION = struct.Struct(">ihqqii")


class RawReader:
    """Reads partition 0 of a topic from its beginning."""

    def __init__(self, address: str, topic: str) -> None:
        host, _, port = address.rpartition(":")
        self.offset = 0
        self.received_bytes = 0
        self._topic = topic.encode()
        self._socket = socket.create_connection((host, int(port)), timeout=180)
        self._buffer = memoryview(bytearray(MAX_BYTES + (2 << 20)))

    def fetch(self) -> None:
        """Fetch (version 4) what comes next; at the end it waits for half a second."""
        body = struct.pack(">hhih", 1, 4, 0, -1) + struct.pack(">iiiib", -1, 500, 1, MAX_BYTES, 0)
        body += struct.pack(">ih", 1, len(self._topic)) + self._topic
        body += struct.pack(">iiqi", 1, 0, self.offset, MAX_BYTES)
        self._socket.sendall(struct.pack(">i", len(body)) + body)
        self._receive(4)
        (size_bytes,) = struct.unpack_from(">i", self._buffer)
        self._receive(size_bytes)
        # Correlation id, throttle time, one topic with its name, one partition without aborted transactions.
        at = 4 + 4 + 4 + 2 + len(self._topic) + 4
        _, error, _, _, _, records_bytes = _PARTITION.unpack_from(self._buffer, at)
        at += _PARTITION.size
        assert error == 0 and at + records_bytes == size_bytes, error
        while at < size_bytes:
            base_offset, length = struct.unpack_from(">qi", self._buffer, at)
            (last_delta,) = struct.unpack_from(">i", self._buffer, at + 23)
            assert base_offset + last_delta >= self.offset, (base_offset, last_delta, self.offset)
            self.offset = base_offset + last_delta + 1
            at += 12 + length
        assert at == size_bytes
        self.received_bytes += records_bytes

    def _receive(self, size_bytes: int) -> None:
        into = self._buffer[:size_bytes]
        while into:
            received = self._socket.recv_into(into)
            assert received, "the broker closed the connection"
            into = into[received:]

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
