"""Small files that are replaced as a whole."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lastword.clock import SystemClock
from lastword.folder import disk

WAIT_S = 60


def test_two_that_replace_the_same_file_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "positions.json"
    is_synced, goes_on, second_waits = threading.Event(), threading.Event(), threading.Event()

    def stopped_fsync(fd: int) -> None:
        monkeypatch.setattr(disk, "fsync", os.fsync)
        is_synced.set()
        assert goes_on.wait(WAIT_S)
        os.fsync(fd)

    def waits(_clock: SystemClock, duration_ms: float) -> None:
        second_waits.set()
        goes_on.wait(duration_ms / 1000)

    monkeypatch.setattr(disk, "fsync", stopped_fsync)
    monkeypatch.setattr(SystemClock, "sleep_ms", waits)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(disk.replace_file, path, b"the first, which is longer")
        assert is_synced.wait(WAIT_S)
        second = pool.submit(disk.replace_file, path, b"the second")
        assert second_waits.wait(WAIT_S)
        assert not path.exists()
        goes_on.set()
        first.result(WAIT_S)
        second.result(WAIT_S)
    assert path.read_bytes() == b"the second"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_what_a_killed_writer_left_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "positions.json"
    (tmp_path / "positions.json.tmp").write_bytes(b"half of something that was longer")
    disk.replace_file(path, b"whole")
    assert path.read_bytes() == b"whole"
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
