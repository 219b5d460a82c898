"""Which server holds a data folder."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lastword.folder import running


def server() -> running.RunningServer:
    return running.this_process(
        since_ms=1, kafka="127.0.0.1:9092", admin="127.0.0.1:9644", token_file="/etc/token"
    )


def test_what_is_saved_is_loaded_while_the_process_is_there(tmp_path: Path) -> None:
    assert running.load(tmp_path) is None
    mine = dataclasses.replace(server(), children={"worker": running.ChildProcess(pid=5, restarts=2)})
    running.save(tmp_path, mine)
    noted = dataclasses.replace(mine, folder=str(tmp_path))
    assert running.load(tmp_path) == noted
    running.remove(tmp_path, mine.pid + 1)
    assert running.load(tmp_path) == noted
    running.remove(tmp_path, mine.pid)
    running.remove(tmp_path, mine.pid)
    assert running.load(tmp_path) is None


def test_a_copy_of_the_file_says_nothing_of_the_copied_folder(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()
    running.save(original, server())
    shutil.copytree(original, copy)
    (tmp_path / "link").symlink_to(original)
    assert running.load(original) is not None
    assert running.load(tmp_path / "link") is not None
    assert running.load(copy) is None


def test_one_that_is_starting_is_known_until_it_runs_or_ends(tmp_path: Path) -> None:
    assert running.load_starting(tmp_path) is None
    starting = running.this_process_starting(since_ms=1, waits_for="the broker")
    running.save(tmp_path, starting)
    assert running.load_starting(tmp_path) == dataclasses.replace(starting, folder=str(tmp_path))
    assert running.load(tmp_path) is None
    running.save(tmp_path, server())
    assert (running.load_starting(tmp_path), running.load(tmp_path) is None) == (None, False)
    running.save(tmp_path, dataclasses.replace(starting, start_ticks=1))
    assert running.load_starting(tmp_path) is None


def test_a_file_that_a_killed_server_left_counts_for_nothing(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    running.save(tmp_path, dataclasses.replace(server(), pid=ended.pid))
    assert running.load(tmp_path) is None
    # The number is another process's now.
    running.save(tmp_path, dataclasses.replace(server(), start_ticks=1))
    assert running.load(tmp_path) is None
    running.save(tmp_path, dataclasses.replace(server(), host="another.machine"))
    assert running.load(tmp_path) is None


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"children": {"x": {"y": 1}}}', "null"])
def test_a_file_that_nobody_understands_counts_for_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "server.json").write_text(content)
    assert running.load(tmp_path) is None


@pytest.mark.parametrize(
    ("bound", "url"),
    [
        ("127.0.0.1:9644", "http://127.0.0.1:9644"),
        ("0.0.0.0:1", "http://127.0.0.1:1"),
        ("[::]:2", "http://[::1]:2"),
        ("10.0.0.1:3", "http://10.0.0.1:3"),
    ],
)
def test_where_to_ask(bound: str, url: str) -> None:
    assert dataclasses.replace(server(), admin=bound).admin_url == url
