"""A process of the server, seen from within.

It is forked (template.py) with its options and one end of a socket pair, the leash. It sends one message on it: that
it is ready, or why it could not start. When the other end is closed, the supervisor is gone, killed or not. Then the
process ends, in order if it can do so in time.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lastword.errors import LastwordError
from lastword.folder.locks import name_command
from lastword.folder.problems import to_problem

ORPHAN_S = 30.0
"""How long a process whose supervisor is gone may take to end in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The options of both processes."""

    data: str
    config: str | None
    kafka_host: str
    kafka_port: int
    advertised_host: str | None
    advertised_port: int | None
    admin_host: str
    admin_port: int
    token_file: str | None
    channel: str
    connect_file: str | None = None
    restarted: bool = False
    """Whether the server has run before with these options."""
    verbose: int = 0


class Leash:
    """The child's end of the pair."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)

    @property
    def is_loose(self) -> bool:
        """Whether the supervisor is already gone."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def ready(self, **details: Any) -> None:
        self._say({"ready": details})

    def failed(self, error: LastwordError) -> None:
        self._say({"failed": to_problem(error)})

    def watch(self, lost: Callable[[], None]) -> None:
        """Call `lost` when the supervisor is gone. End the process if it has not ended after ORPHAN_S."""

        def wait() -> None:
            try:
                while self._socket.recv(64):
                    pass
            except OSError:
                pass
            logging.getLogger(__name__).warning("the supervisor is gone; ending")
            lost()
            time.sleep(ORPHAN_S)
            os._exit(1)

        threading.Thread(target=wait, name="lastword-leash", daemon=True).start()

    def _say(self, message: dict[str, Any]) -> None:
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            # The supervisor is gone; `watch` finds out.
            logging.getLogger(__name__).debug("could not send %s", message)


def run(name: str, serve: Callable[[ServeOptions, Leash], None], options: ServeOptions, leash: Leash) -> int:
    """Run a child process and return its exit code. Errors go to the log and, if it can't start, to the supervisor."""
    # Lock files show this name.
    name_command(f"lastword serve ({name})")
    set_up_logging(name, options.verbose)
    try:
        serve(options, leash)
    except LastwordError as error:
        leash.failed(error)
        logging.getLogger("lastword.serve").error("%s", error)
        return 1
    finally:
        logging.shutdown()
    return 0


class _Formatter(logging.Formatter):
    def __init__(self, name: str) -> None:
        self.converter = time.gmtime
        super().__init__(
            f"%(asctime)s.%(msecs)03dZ {name} %(levelname)s %(message)s", datefmt="%Y-%m-%dT%H:%M:%S"
        )


def set_up_logging(name: str, verbose: int) -> None:
    """Log to stderr: Lastword's messages, with -v also its debug messages, with -vv also those of libraries."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter(name))
    logging.basicConfig(handlers=[handler], level=logging.INFO if verbose > 1 else logging.ERROR, force=True)
    logging.captureWarnings(True)
    logging.getLogger("lastword").setLevel(logging.DEBUG if verbose else logging.INFO)
    if verbose < 2:
        for library in ("py4j", "pyspark"):
            logging.getLogger(library).setLevel(logging.CRITICAL)
