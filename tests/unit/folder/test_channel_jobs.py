"""Jobs over a local socket: progress, results, errors, and askers that go away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lastword.errors import CorruptError, InvalidError, UnavailableError, UnknownTopicError
from lastword.folder.channel import JobServer, ask_job
from lastword.folder.problems import from_problem, to_problem


class Handler:
    """Does what a test asks for."""

    def __init__(self) -> None:
        self.was_told = threading.Event()
        self.goes_on = threading.Event()

    def __call__(self, request: dict[str, Any], progress: Any, gone: Any) -> Any:
        match request["do"]:
            case "count":
                for number in range(request["to"]):
                    progress("count", number, request["to"])
                return {"counted": request["to"]}
            case "fail":
                raise UnknownTopicError("there is no topic 'nix'")
            case "crash":
                raise ZeroDivisionError("by zero")
            case "wait":
                progress("wait")
                while not gone():
                    self.goes_on.wait(0.01)
                self.was_told.set()
        return None


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
def path(tmp_path: Path, handler: Handler) -> Iterator[Path]:
    server = JobServer(tmp_path / "jobs.sock", handler)
    server.start()
    yield tmp_path / "jobs.sock"
    server.close()


def test_progress_comes_before_the_result(path: Path) -> None:
    seen: list[tuple[Any, ...]] = []
    assert ask_job(path, {"do": "count", "to": 3}, progress=lambda *each: seen.append(each)) == {"counted": 3}
    assert seen == [("count", 0, 3), ("count", 1, 3), ("count", 2, 3)]


def test_large_requests_and_answers(path: Path) -> None:
    assert ask_job(path, {"do": "count", "to": 2, "more": "x" * (4 << 20)}) == {"counted": 2}


def test_errors_come_back_as_what_they_were(path: Path) -> None:
    with pytest.raises(UnknownTopicError, match="'nix'"):
        ask_job(path, {"do": "fail"})
    with pytest.raises(UnavailableError, match="unexpected ZeroDivisionError"):
        ask_job(path, {"do": "crash"})


def test_a_job_is_told_when_its_asker_goes_away(path: Path, handler: Handler) -> None:
    started = threading.Event()
    with pytest.raises(UnavailableError, match="was cancelled"):
        ask_job(path, {"do": "wait"}, progress=lambda *_: started.set(), cancelled=lambda: started.is_set())
    assert handler.was_told.wait(180)


def test_a_job_is_told_when_the_server_closes(tmp_path: Path, handler: Handler) -> None:
    server = JobServer(tmp_path / "other.sock", handler)
    server.start()
    started = threading.Event()
    asker = threading.Thread(
        target=lambda: ask_job(tmp_path / "other.sock", {"do": "wait"}, progress=lambda *_: started.set())
    )
    asker.start()
    assert started.wait(180)
    server.close()
    assert handler.was_told.wait(180)
    asker.join(180)


def test_nobody_there_and_no_answer_in_time(tmp_path: Path, path: Path) -> None:
    with pytest.raises(UnavailableError, match="not running"):
        ask_job(tmp_path / "nix.sock", {"do": "count"})
    with pytest.raises(UnavailableError, match=r"within 0\.5 s"):
        ask_job(path, {"do": "wait"}, timeout_s=0.5)


def test_what_a_killed_server_left_is_not_in_the_way(tmp_path: Path, handler: Handler) -> None:
    (tmp_path / "left.sock").touch()
    server = JobServer(tmp_path / "left.sock", handler)
    server.start()
    assert ask_job(tmp_path / "left.sock", {"do": "count", "to": 0}) == {"counted": 0}
    server.close()


class LocalError(InvalidError):
    """Not in the tree of errors.py."""


def test_errors_as_data_and_back() -> None:
    corrupt = from_problem(to_problem(CorruptError("damaged", path="/a", offset=3)))
    assert isinstance(corrupt, CorruptError)
    assert (str(corrupt), corrupt.path, corrupt.offset) == ("damaged", "/a", 3)
    assert to_problem(LocalError("x")) == {"error": "InvalidError", "message": "x"}
    for unknown in (
        {"error": "OSError", "message": "x"},
        {"message": "x"},
        {"error": "annotations", "message": "x"},
    ):
        assert type(from_problem(unknown)) is UnavailableError
