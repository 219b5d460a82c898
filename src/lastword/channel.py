"""The small local channel by which maintenance asks the writer to roll. Only the writer rolls its files.

A Unix socket of the writer's process, which the writer's lock file names. One request and one answer a
connection, each a line of JSON. When nobody answers there is no writer: the lock, not the socket, decides that.
"""

from __future__ import annotations

import json
import logging
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lastword.errors import LastwordError, UnavailableError

logger = logging.getLogger(__name__)

TIMEOUT_S = 60.0
_MAX_LINE_BYTES = 1 << 20

Handler = Callable[[dict[str, Any]], dict[str, Any]]


class ChannelServer:
    """Answers requests on a thread of its own, from `start` on until it is closed. Those that come before wait."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        # A socket's path may have about 100 characters only, so it can't be in the data folder.
        self._folder = tempfile.mkdtemp(prefix="lastword-")
        self.path = str(Path(self._folder) / "writer.sock")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(self.path)
        self._socket.listen(16)
        self._thread = threading.Thread(target=self._run, name="lastword-channel", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        try:
            # Wakes the thread up from its waiting.
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            logger.debug("the channel was closed already")
        if self._thread.ident is not None:
            self._thread.join()
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.settimeout(TIMEOUT_S)
                    self._answer(connection)
                except (OSError, ValueError) as error:
                    logger.warning("a request on the writer's channel failed: %s", error)

    def _answer(self, connection: socket.socket) -> None:
        request = json.loads(_read_line(connection))
        try:
            answer = self._handler(request)
        except LastwordError as error:
            answer = {"error": str(error)}
        except Exception as error:
            # The thread must outlive it, or whoever asks next would wait for an answer in vain.
            logger.exception("a request on the writer's channel met an unexpected error: %s", request)
            answer = {"error": f"The writer met an unexpected error: {error}"}
        connection.sendall(json.dumps(answer).encode() + b"\n")


def ask(path: str, request: dict[str, Any]) -> dict[str, Any] | None:
    """The writer's answer; None if nobody is there. UnavailableError if it could not do what was asked."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT_S)
        try:
            connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        try:
            connection.sendall(json.dumps(request).encode() + b"\n")
            line = _read_line(connection)
        except OSError as error:
            raise UnavailableError(f"The writer does not answer on {path}: {error}") from error
    if not line:
        return None
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise UnavailableError(str(answer["error"]))
    return answer


def _read_line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n") and len(line) < _MAX_LINE_BYTES:
        received = connection.recv(1 << 16)
        if not received:
            break
        line += received
    return line
