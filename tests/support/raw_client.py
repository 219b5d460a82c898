"""A client that sends single requests of any version, for what real clients never send."""

from __future__ import annotations

import socket
import struct
from typing import Any, Self

from lastword.broker.wire import APIS, decode, skip_tags


class RawClient:
    """One connection. Each call sends a request and waits for its answer."""

    def __init__(self, address: str, *, client_id: str = "raw") -> None:
        host, port = address.split(":")
        self._socket = socket.create_connection((host, int(port)), timeout=180)
        self._client_id = client_id.encode()
        self._number = 0

    def ask(self, request: Any, response_class: Any, version: int) -> Any:
        """Send a message of kafka-python in a version of it; the answer."""
        api = APIS[request.API_KEY]
        self._number += 1
        header = struct.pack(">hhih", api.key, version, self._number, len(self._client_id)) + self._client_id
        flexible = version >= api.flexible_from
        body = header + (b"\0" if flexible else b"") + bytes(request.encode(version=version))
        self._socket.sendall(struct.pack(">i", len(body)) + body)
        answer = memoryview(self._read(struct.unpack(">i", self._read(4))[0]))
        (number,) = struct.unpack_from(">i", answer)
        assert number == self._number
        position = skip_tags(answer, 4) if flexible else 4
        return decode(response_class, version, answer, position)

    def _read(self, size_bytes: int) -> bytes:
        data = b""
        while len(data) < size_bytes:
            received = self._socket.recv(size_bytes - len(data))
            assert received, "the broker closed the connection"
            data += received
        return data

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
