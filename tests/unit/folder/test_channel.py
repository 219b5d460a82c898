"""The writer's channel: what the writer raises arrives as what it was."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lastword
from lastword.errors import (
    ClosedError,
    CorruptError,
    InvalidError,
    InvalidRecordError,
    UnavailableError,
    UnknownTopicError,
    WriteFailedError,
)
from lastword.folder import channel, disk, steps
from lastword.folder.channel import ChannelServer, ask, hold
from lastword.folder.locks import writer_channel
from lastword.wal.staged import Piece, Sink, Unit, ask_writer

RAISED = {
    "record": InvalidRecordError("a record has no key"),
    "topic": UnknownTopicError("there is no topic 'x'"),
    "disk": WriteFailedError("can't sync"),
    "damage": CorruptError("a file is damaged", path="/data/wal.1.log", offset=7),
    "closed": ClosedError("the log is closed"),
    "bug": ZeroDivisionError("by zero"),
}


def handle(request: dict[str, Any]) -> dict[str, Any]:
    if error := RAISED.get(request["do"]):
        raise error
    return {"did": request["do"]}


@pytest.fixture
def path() -> Iterator[str]:
    server = ChannelServer(handle)
    server.start()
    yield server.path
    server.close()


def test_an_answer_comes_back(path: str) -> None:
    assert ask(path, {"do": "roll"}) == {"did": "roll"}


def test_nobody_is_there(tmp_path: Path) -> None:
    assert ask(str(tmp_path / "nobody.sock"), {"do": "roll"}) is None


@pytest.mark.parametrize("kind", ["record", "topic", "disk", "damage"])
def test_an_error_is_what_it_was(path: str, kind: str) -> None:
    raised = RAISED[kind]
    with pytest.raises(type(raised)) as caught:
        ask(path, {"do": kind})
    assert type(caught.value) is type(raised)
    assert str(caught.value) == str(raised)
    if isinstance(caught.value, CorruptError):
        assert (caught.value.path, caught.value.offset) == ("/data/wal.1.log", 7)


def test_a_writer_that_is_closing_can_be_asked_again_later(path: str) -> None:
    with pytest.raises(UnavailableError, match="closing its log"):
        ask(path, {"do": "closed"})


def test_an_unexpected_error_does_not_end_the_channel(path: str) -> None:
    with pytest.raises(UnavailableError, match="unexpected ZeroDivisionError: by zero"):
        ask(path, {"do": "bug"})
    assert ask(path, {"do": "roll"}) == {"did": "roll"}


def test_a_log_refuses_as_if_it_was_open_here(tmp_path: Path) -> None:
    with lastword.open(tmp_path / "data") as log:
        topic = log.create_topic("t")
        sink = Sink(log.path, topic.id, "q")
        disk.make_folder(sink.folder)
        ((partition, data),) = topic.encode_arrow(pa.table({"key": ["a"], "value": ["b" * 1000]}))
        (sink.folder / "x.batches").write_bytes(data)
        sink.propose(Unit(number=1, pieces={partition: [Piece("x.batches", 0, len(data))]}))
        log.alter_topic("t", set_config={"max.message.bytes": 100})
        path = writer_channel(log.path)
        assert path is not None
        request = {"do": "append", "topic": "t", "sink": "q", "number": 1}
        with pytest.raises(InvalidRecordError, match=r"max\.message\.bytes"):
            ask(path, request)
        with pytest.raises(UnknownTopicError):
            ask(path, {**request, "topic": "nobody"})
        with pytest.raises(InvalidError, match="it can roll, append, hear of commits and finish deletions"):
            ask(path, {"do": "dance"})


class Noted:
    """A handler that notes who holds it."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.left = threading.Event()

    @contextmanager
    def __call__(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.events.append(f"begun {request['do']}")
        try:
            yield {"noted": True}
        finally:
            self.events.append(f"over {request['do']}")
            self.left.set()


@pytest.fixture
def noted() -> Iterator[tuple[Noted, str]]:
    handler = Noted()
    server = ChannelServer(handler)
    server.start()
    yield handler, server.path
    server.close()


def test_a_held_request_is_over_before_its_asker_goes_on(noted: tuple[Noted, str]) -> None:
    handler, path = noted
    with hold(path, {"do": "commit"}) as held:
        assert held.answer == {"noted": True}
        assert handler.events == ["begun commit"]
        # Others are answered meanwhile.
        assert ask(path, {"do": "roll"}) == {"noted": True}
    # The other one did not hold: its end is waited for by nobody.
    assert "over commit" in handler.events
    assert held.is_ended


def test_an_asker_that_is_killed_ends_what_it_holds(noted: tuple[Noted, str]) -> None:
    handler, path = noted
    code = "import os, sys; from lastword.folder.channel import hold; hold(sys.argv[1], {'do': 'commit'}).__enter__(); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == 9
    assert handler.left.wait(180)
    assert handler.events == ["begun commit", "over commit"]


@pytest.mark.parametrize("holds", [True, False])
def test_an_asker_that_is_killed_before_it_is_answered_is_no_error(
    caplog: pytest.LogCaptureFixture, holds: bool
) -> None:
    begun, gone, over = threading.Event(), threading.Event(), threading.Event()

    @contextmanager
    def held() -> Iterator[dict[str, Any]]:
        begun.set()
        assert gone.wait(180)
        try:
            yield {}
        finally:
            over.set()

    def handler(_request: dict[str, Any]) -> Any:
        if holds:
            return held()
        with held() as answer:
            return answer

    server = ChannelServer(handler)
    server.start()
    with socket.socket(socket.AF_UNIX) as asker:
        asker.connect(server.path)
        asker.sendall(b'{"do": "commit"}\n')
        assert begun.wait(180)
    gone.set()
    server.close()
    assert over.is_set()
    assert [each.levelname for each in caplog.records if each.levelno > logging.INFO] == []


def test_a_channel_that_closes_does_not_wait_for_those_who_hold(noted: tuple[Noted, str]) -> None:
    handler = Noted()
    server = ChannelServer(handler)
    server.start()
    with hold(server.path, {"do": "commit"}) as held:
        server.close()
        assert handler.events == ["begun commit", "over commit"]
    assert not held.is_ended


def test_nobody_is_there_to_hold(tmp_path: Path) -> None:
    with hold(str(tmp_path / "nobody.sock"), {"do": "commit"}) as held:
        assert held.answer is None
    assert not held.is_ended


class Working:
    """Lets the writer go on once it has said so often that it is working that the asker would have given up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(channel, "TIMEOUT_S", 0.5)
        self._enough = threading.Semaphore(0)
        send = channel._send

        def counted(connection: socket.socket, message: dict[str, Any]) -> None:
            send(connection, message)
            if "working" in message:
                self._enough.release()

        monkeypatch.setattr(channel, "_send", counted)

    def wait(self, timeouts: int = 3) -> None:
        for _ in range(timeouts * channel._WORKING_TIMES):
            assert self._enough.acquire(timeout=180)


def test_an_asker_waits_for_as_long_as_the_writer_works(monkeypatch: pytest.MonkeyPatch) -> None:
    working = Working(monkeypatch)

    def slow(_request: dict[str, Any]) -> dict[str, Any]:
        working.wait()
        return {"did": "it"}

    server = ChannelServer(slow)
    server.start()
    assert ask(server.path, {"do": "append"}) == {"did": "it"}
    server.close()


def test_a_hold_that_begins_and_ends_slowly_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    working = Working(monkeypatch)

    @contextmanager
    def slow(_request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        working.wait()
        yield {"noted": True}
        working.wait()

    server = ChannelServer(slow)
    server.start()
    with hold(server.path, {"do": "commit"}) as held:
        assert held.answer == {"noted": True}
    server.close()


def test_an_asker_gives_up_on_a_writer_that_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "TIMEOUT_S", 0.2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stopped:
        stopped.bind(str(tmp_path / "s"))
        stopped.listen()
        with pytest.raises(UnavailableError, match=r"has been silent .* may still carry out .* \(append\)"):
            ask(str(tmp_path / "s"), {"do": "append"})


def test_a_unit_that_takes_the_writer_long_is_appended_once_and_others_are_answered_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = Working(monkeypatch)
    with lastword.open(tmp_path / "data") as log:
        topic = log.create_topic("t")
        sink = Sink(log.path, topic.id, "q")
        disk.make_folder(sink.folder)
        ((partition, data),) = topic.encode_arrow(pa.table({"key": ["a"], "value": ["b"]}))
        (sink.folder / "x.batches").write_bytes(data)
        sink.propose(Unit(number=1, pieces={partition: [Piece("x.batches", 0, len(data))]}))

        def at(step: str) -> None:
            if step == "staged.noted":
                working.wait()
                path = writer_channel(log.path)
                assert path is not None
                assert ask(path, {"do": "roll", "topic": "t", "due_only": True}) == {"failed": []}

        steps.install(at)
        try:
            assert ask_writer(log.path, "t", "q", 1) == 1
        finally:
            steps.install(None)
        assert ask_writer(log.path, "t", "q", 1) == 0
        assert [record.value for record in topic.read()] == [b"b"]
