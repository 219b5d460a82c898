"""Binds sockets for clients."""

from __future__ import annotations

import socket

from lastword.errors import UnavailableError


def bound(host: str, port: int, whom: str, *, backlog: int | None = None) -> socket.socket:
    """Return a socket at an address, which listens already if `backlog` is given. Raise UnavailableError if it can't.

    `whom` it is for is named in the error.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        if backlog is not None:
            listener.listen(backlog)
    except OSError as error:
        listener.close()
        raise UnavailableError(
            f"Can't listen for {whom} at {host}:{port}: {error.strerror or error}."
        ) from error
    return listener
