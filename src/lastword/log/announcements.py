"""Tells the process that serves a log's records of every commit that takes some of them away, before it is made.

A broker answers fetches from its WAL and from memory. A record that a commit removes from the table may still be in
both. So each such commit goes by these steps, in whichever process it is made:
1. the writer's process is told which offsets the commit is about, and from then on looks at the table before it
   answers a fetch of one of them;
2. the commit is made, or fails;
3. the writer's process is told that it is over. It looks at the table once more and takes note of what it finds; the
   job goes on only after that.

Killed between 1 and 3, the job's connection breaks, which is step 3. Where no writer is running nobody serves
anything. A writer, or a listener of it, that begins between 1 and 3 may have looked at the table before the commit: it is
told of both steps after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from lastword.folder.channel import Hold, hold
from lastword.folder.locks import writer_channel
from lastword.segments.model import Announce, PendingCommit


class Announcements:
    """The listeners of a log that is its folder's writer, and the way to the writer for every other log."""

    def __init__(self, data_folder: Path, *, is_writer: bool) -> None:
        self._data_folder = data_folder
        self._is_writer = is_writer
        self._listeners: list[Announce] = []

    def listen(self, listener: Announce) -> None:
        """Have every commit announced to `listener`, on the thread that makes it or on a thread of the channel."""
        self._listeners.append(listener)

    def stop_listening(self, listener: Announce) -> None:
        self._listeners.remove(listener)

    @contextmanager
    def announce(self, commit: PendingCommit) -> Iterator[None]:
        """Tell whoever serves the records, on entry and on exit."""
        if self._is_writer:
            with self._listeners_told(commit):
                yield
            return
        told: Hold | None = None
        try:
            with self._writer_told(commit) as told:
                yield
        finally:
            if told is not None and not told.is_ended:
                with self._writer_told(commit):
                    pass

    @contextmanager
    def _listeners_told(self, commit: PendingCommit) -> Iterator[None]:
        listeners = list(self._listeners)
        try:
            with ExitStack() as told:
                for listener in listeners:
                    told.enter_context(listener(commit))
                yield
        finally:
            for listener in [each for each in self._listeners if each not in listeners]:
                with listener(commit):
                    pass

    @contextmanager
    def _writer_told(self, commit: PendingCommit) -> Iterator[Hold]:
        path = writer_channel(self._data_folder)
        if path is None:
            yield Hold(None)
            return
        request = {
            "do": "commit",
            "topic_id": commit.topic_id.hex,
            "floors": [[partition, floor] for partition, floor in commit.floors.items()],
        }
        with hold(path, request) as held:
            yield held

    @contextmanager
    def held(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Answer another process that announces a commit; left when that commit is over."""
        floors = dict(request["floors"])
        with self.announce(PendingCommit(topic_id=UUID(request["topic_id"]), floors=floors)):
            yield {"noted": True}
