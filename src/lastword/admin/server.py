"""The admin API on its own thread and event loop."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import threading
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from lastword.admin.guard import Guard
from lastword.broker.binding import bound
from lastword.errors import InvalidConfigError

logger = logging.getLogger(__name__)

BACKLOG = 128
START_S = 10.0
STOP_S = 5
THREADS = 16
"""Threads for handlers that block. Long jobs have their own."""


class AdminServer:
    """Listens as soon as it is made, and answers from `start` until `close`."""

    def __init__(self, host: str, port: int, *, token: str | None) -> None:
        if token is None and not is_loopback(host):
            raise InvalidConfigError(
                f"The admin API would listen at {host}, beyond this machine, without a token; name a file with a token "
                f"in admin.token.file, or listen at 127.0.0.1."
            )
        self._token = token
        self._socket = bound(host, port, "the admin API", backlog=BACKLOG)
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._socket.getsockname()[:2]
        return host, port

    def start(self, app: ASGIApp) -> None:
        config = uvicorn.Config(
            Guard(app, token=self._token),
            log_level="warning",
            access_log=False,
            log_config=None,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=STOP_S,
            timeout_keep_alive=30,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._run, args=(self._server,), name="lastword-admin", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(STOP_S + 5)
        self._socket.close()

    def _run(self, server: uvicorn.Server) -> None:
        async def serve() -> None:
            from anyio.to_thread import current_default_thread_limiter

            current_default_thread_limiter().total_tokens = THREADS
            await server.serve(sockets=[self._socket])

        try:
            asyncio.run(serve())
        except Exception:
            logger.exception("the admin API ended with an unexpected error")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(path: Path) -> str:
    """Read the token from a file."""
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"admin.token.file: can't read {path}: {error}") from error
    if len(token) < 16:
        raise InvalidConfigError(
            f"admin.token.file: the token in {path} has {len(token)} characters; at least 16 are needed, such as from "
            f"`openssl rand -hex 32`"
        )
    return token
