"""`run/server.json` in the data folder: the server that holds it, its addresses, and the state of its processes.

The supervisor of `lastword serve` writes it, and removes it when it ends. Until the server is ready there is
`run/starting.json` in its place. A killed supervisor leaves its file behind, so readers check whether that process is
still running.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lastword.folder import disk, state_file
from lastword.folder.identity import is_same_place
from lastword.folder.paths import CONFIG_FILE, FORMAT_FILE, RUN_FOLDER, SERVER_FILE, STARTING_FILE
from lastword.folder.processes import is_running, start_ticks

_NEW = frozenset({CONFIG_FILE, f"{FORMAT_FILE}.tmp", RUN_FOLDER})
_LOCAL = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
"""The local address of a server that listens on all addresses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildProcess:
    """A process of the server. Without a pid it is not running now."""

    pid: int | None = None
    since_ms: int | None = None
    restarts: int = 0
    last_end: str | None = None
    """How it ended when it last ended by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A server, as its supervisor describes it."""

    pid: int
    host: str
    start_ticks: int | None
    since_ms: int
    kafka: str
    admin: str
    """The bound host:port. Use `admin_url` for requests."""
    token_file: str | None = None
    folder: str | None = None
    """The data folder that it holds, noted because a copy of that folder also has a copy of this file."""
    children: dict[str, ChildProcess] = field(default_factory=dict)

    @property
    def admin_url(self) -> str:
        host, _, port = self.admin.rpartition(":")
        return f"http://{_LOCAL.get(host, host)}:{port}"

    @property
    def kafka_address(self) -> str:
        """The address of its Kafka endpoint for a client on this machine."""
        host, _, port = self.kafka.rpartition(":")
        return f"{_LOCAL.get(host, host)}:{port}"

    @property
    def is_running(self) -> bool:
        """Whether the process runs on this machine and is the one that wrote the file."""
        return _is_here(self.host) and is_running(self.pid, self.start_ticks or 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartingServer:
    """A server that is not ready yet, and the reason."""

    pid: int
    host: str
    start_ticks: int | None
    since_ms: int
    waits_for: str
    folder: str | None = None

    @property
    def is_running(self) -> bool:
        return _is_here(self.host) and is_running(self.pid, self.start_ticks or 0)


def strangers(data_folder: Path) -> list[str]:
    """Return the files in a folder that prevent creating a log there; none for a new folder."""
    try:
        return sorted(each.name for each in data_folder.iterdir() if each.name not in _NEW)
    except FileNotFoundError:
        return []


def this_process(*, since_ms: int, kafka: str, admin: str, token_file: str | None) -> RunningServer:
    return RunningServer(
        pid=os.getpid(),
        host=socket.gethostname(),
        start_ticks=start_ticks(os.getpid()),
        since_ms=since_ms,
        kafka=kafka,
        admin=admin,
        token_file=token_file,
    )


def this_process_starting(*, since_ms: int, waits_for: str) -> StartingServer:
    return StartingServer(
        pid=os.getpid(),
        host=socket.gethostname(),
        start_ticks=start_ticks(os.getpid()),
        since_ms=since_ms,
        waits_for=waits_for,
    )


def save(data_folder: Path, server: RunningServer | StartingServer) -> None:
    """Write a server's file. For a running server, remove the file of its start."""
    folder = data_folder / RUN_FOLDER
    if isinstance(server, StartingServer):
        disk.make_folder(folder)
    else:
        folder.mkdir(exist_ok=True)
    noted = replace(server, folder=str(data_folder.resolve()))
    is_starting = isinstance(server, StartingServer)
    name = STARTING_FILE if is_starting else SERVER_FILE
    state_file.save(folder / name, asdict(noted), indent=1)
    if not is_starting:
        (folder / STARTING_FILE).unlink(missing_ok=True)


def remove(data_folder: Path, pid: int) -> None:
    """Remove the files that a server's supervisor wrote. Those of another supervisor stay."""
    for found, name in ((load(data_folder), SERVER_FILE), (load_starting(data_folder), STARTING_FILE)):
        if found is None or found.pid == pid:
            (data_folder / RUN_FOLDER / name).unlink(missing_ok=True)
    if not (data_folder / FORMAT_FILE).exists():
        # No log was created.
        with suppress(OSError):
            (data_folder / RUN_FOLDER).rmdir()


def load(data_folder: Path) -> RunningServer | None:
    """Return the server that is running on a data folder; None if there is none."""
    server = state_file.load_if_whole(data_folder / RUN_FOLDER / SERVER_FILE, _server_from)
    return server if server is not None and _is_of_here(server, data_folder) and server.is_running else None


def load_starting(data_folder: Path) -> StartingServer | None:
    """Return the server that is starting on a data folder; None if there is none."""
    path = data_folder / RUN_FOLDER / STARTING_FILE
    server = state_file.load_if_whole(path, lambda saved: StartingServer(**saved))
    return server if server is not None and _is_of_here(server, data_folder) and server.is_running else None


def _server_from(saved: dict[str, Any]) -> RunningServer:
    children = {name: ChildProcess(**child) for name, child in saved.pop("children").items()}
    return RunningServer(**saved, children=children)


def _is_of_here(server: RunningServer | StartingServer, data_folder: Path) -> bool:
    """Return whether the file was written for this folder, and is not from a copy of another one."""
    return server.folder is None or is_same_place(Path(server.folder), data_folder)


def _is_here(host: str) -> bool:
    return host == socket.gethostname()
