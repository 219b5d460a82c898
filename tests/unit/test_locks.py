"""The two roles of a data folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.support.logs import open_files

from lastword.errors import LockedError
from lastword.locks import Role, RoleLock

HOLDER = """
import sys
from pathlib import Path
from lastword.clock import SystemClock
from lastword.locks import Role, RoleLock
lock = RoleLock.acquire(Path(sys.argv[1]), Role.WRITER, SystemClock())
print("held", flush=True)
sys.stdin.read()
"""


def test_a_second_holder_gets_an_error_that_names_the_first(tmp_path: Path, clock: ManualClock) -> None:
    with RoleLock.acquire(tmp_path, Role.WRITER, clock):
        with pytest.raises(LockedError, match=rf"process {os.getpid()} on .* is its writer") as caught:
            RoleLock.acquire(tmp_path, Role.WRITER, clock)
        assert Path(sys.argv[0]).name in str(caught.value)


def test_the_roles_are_apart(tmp_path: Path, clock: ManualClock) -> None:
    with RoleLock.acquire(tmp_path, Role.WRITER, clock), RoleLock.acquire(tmp_path, Role.MAINTENANCE, clock):
        pass


def test_a_released_role_can_be_taken_again(tmp_path: Path, clock: ManualClock) -> None:
    for _ in range(3):
        lock = RoleLock.acquire(tmp_path, Role.WRITER, clock)
        lock.release()
        lock.release()


def test_no_file_is_left_open(tmp_path: Path, clock: ManualClock) -> None:
    before = open_files()
    with RoleLock.acquire(tmp_path, Role.WRITER, clock):
        for _ in range(5):
            with pytest.raises(LockedError):
                RoleLock.acquire(tmp_path, Role.WRITER, clock)

    assert open_files() == before


@pytest.mark.parametrize("content", [b"", b"garbage", b"[]", b'{"pid": 1}'])
def test_a_holder_that_is_not_known_is_another_process(
    tmp_path: Path, clock: ManualClock, content: bytes
) -> None:
    with RoleLock.acquire(tmp_path, Role.WRITER, clock):
        (tmp_path / "locks" / "writer.lock").write_bytes(content)
        with pytest.raises(LockedError, match="another process is its writer"):
            RoleLock.acquire(tmp_path, Role.WRITER, clock)


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
