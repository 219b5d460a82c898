"""The writer's channel: what the writer raises arrives as what it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lastword
from lastword import disk
from lastword.channel import ChannelServer, ask
from lastword.errors import (
    ClosedError,
    CorruptError,
    InvalidError,
    InvalidRecordError,
    UnavailableError,
    UnknownTopicError,
    WriteFailedError,
)
from lastword.locks import writer_channel
from lastword.staged import Piece, Sink, Unit

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
        channel = writer_channel(log.path)
        assert channel is not None
        request = {"do": "append", "topic": "t", "sink": "q", "number": 1}
        with pytest.raises(InvalidRecordError, match=r"max\.message\.bytes"):
            ask(channel, request)
        with pytest.raises(UnknownTopicError):
            ask(channel, {**request, "topic": "nobody"})
        with pytest.raises(InvalidError, match="it can roll and append"):
            ask(channel, {"do": "dance"})
