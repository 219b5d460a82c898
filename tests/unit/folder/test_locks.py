"""The two roles of a data folder."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.support.logs import open_files

from lastword.cli.main import run
from lastword.errors import LockedError
from lastword.folder import locks
from lastword.folder.locks import Role, RoleLock

HOLDER = """
import sys
from pathlib import Path
from lastword.clock import SystemClock
from lastword.folder.locks import Role, RoleLock
lock = RoleLock.acquire(Path(sys.argv[1]), Role.WRITER, SystemClock())
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_holder_gets_an_error_that_names_the_first(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Another test may have run a command in this process.
    monkeypatch.setattr(locks, "_command", None)
    with RoleLock.acquire(tmp_path, Role.WRITER, clock):
        with pytest.raises(LockedError, match=rf"process {os.getpid()} on .* is its writer") as caught:
            RoleLock.acquire(tmp_path, Role.WRITER, clock)
        assert Path(sys.argv[0]).name in str(caught.value)


def test_arguments_of_a_command_are_noted_nowhere(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_command", None)
    monkeypatch.setattr(sys, "argv", ["/bin/lastword", "erase", "users", "--key", "alice@example.com"])
    with RoleLock.acquire(tmp_path, Role.MAINTENANCE, clock):
        with pytest.raises(LockedError, match=r"\(`lastword`\)") as caught:
            RoleLock.acquire(tmp_path, Role.MAINTENANCE, clock)
        assert "alice" not in str(caught.value)
        assert b"alice" not in (tmp_path / "locks" / "maintenance.lock").read_bytes()


def test_a_command_is_named_without_its_arguments(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_command", None)
    assert run(["--data", str(tmp_path / "none"), "topic", "describe", "alice", "--json"]) != 0
    with RoleLock.acquire(tmp_path, Role.MAINTENANCE, clock):
        assert locks.holder(tmp_path, Role.MAINTENANCE) == (
            f"process {os.getpid()} on {socket.gethostname()} (`lastword topic describe`)"
        )


def test_the_roles_are_apart(tmp_path: Path, clock: ManualClock) -> None:
    with RoleLock.acquire(tmp_path, Role.WRITER, clock), RoleLock.acquire(tmp_path, Role.MAINTENANCE, clock):
        pass


def test_a_released_role_can_be_taken_again(tmp_path: Path, clock: ManualClock) -> None:
    for _ in range(3):
        lock = RoleLock.acquire(tmp_path, Role.WRITER, clock)
        lock.release()
        lock.release()


def test_no_file_is_left_open(tmp_path: Path, clock: ManualClock) -> None:
    before = open_files(tmp_path)
    with RoleLock.acquire(tmp_path, Role.WRITER, clock):
        for _ in range(5):
            with pytest.raises(LockedError):
                RoleLock.acquire(tmp_path, Role.WRITER, clock)

    assert open_files(tmp_path) == before


@pytest.mark.parametrize("content", [b"", b"garbage", b"[]", b'{"pid": 1}'])
def test_a_holder_that_is_not_known_is_another_process(
    tmp_path: Path, clock: ManualClock, content: bytes
) -> None:
    with RoleLock.acquire(tmp_path, Role.WRITER, clock):
        (tmp_path / "locks" / "writer.lock").write_bytes(content)
        with pytest.raises(LockedError, match="another process is its writer"):
            RoleLock.acquire(tmp_path, Role.WRITER, clock)


class WaitedFor(ManualClock):
    """Lets something happen whenever somebody waits."""

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__()
        self._happens = happens

    def sleep_ms(self, duration_ms: float) -> None:
        self._happens()


@pytest.mark.parametrize("pid", [None, 2**22 + 1])
def test_one_who_has_not_written_its_name_yet_is_waited_for(tmp_path: Path, pid: int | None) -> None:
    """It may be maintenance, that is the writer for a moment: the file names nobody, or the one before."""
    (tmp_path / "locks").mkdir()
    path = tmp_path / "locks" / "writer.lock"
    path.write_text(
        "" if pid is None else json.dumps({"pid": pid, "host": socket.gethostname(), "command": "x"})
    )
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        RoleLock.acquire(tmp_path, Role.WRITER, WaitedFor(lambda: fcntl.flock(held, fcntl.LOCK_UN))).release()


def test_the_kernel_gives_it_back_when_the_process_dies(tmp_path: Path, clock: ManualClock) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == b"held\n"
        with pytest.raises(LockedError, match=f"process {process.pid} on"):
            RoleLock.acquire(tmp_path, Role.WRITER, clock)
    finally:
        process.kill()
        process.communicate()

    RoleLock.acquire(tmp_path, Role.WRITER, clock).release()
