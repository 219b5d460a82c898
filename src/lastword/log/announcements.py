"""Announces every commit that removes records to the process that serves the log, before the commit is made.

A broker answers fetches from its WAL and from memory. A record that a commit removes from the table may still be in
both. So each such commit takes these steps, in whichever process it is made:
1. the job announces to the writer's process the offsets that the commit affects. From then on that process reads the
   table before it answers a fetch of one of them;
2. the job makes the commit, or fails;
3. the job announces the end of the commit. The writer's process reads the table again and stores the result. Only then
   does the job continue.

If the job is killed between 1 and 3, its connection breaks, which counts as step 3. Without a running writer nothing is
served. A writer or listener that starts between 1 and 3 may have read the table before the commit: it gets both
announcements afterwards.
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
    """Announces commits: to the listeners if this log is its folder's writer, otherwise to the writer."""

    def __init__(self, data_folder: Path, *, is_writer: bool) -> None:
        self._data_folder = data_folder
        self._is_writer = is_writer
        self._listeners: list[Announce] = []

    def listen(self, listener: Announce) -> None:
        """Announce every commit to `listener`, on the thread that makes it or on a thread of the channel."""
        self._listeners.append(listener)

    def stop_listening(self, listener: Announce) -> None:
        self._listeners.remove(listener)

    @contextmanager
    def announce(self, commit: PendingCommit) -> Iterator[None]:
        """Notify the process that serves the records, on entry and on exit."""
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
        """Answer another process that announces a commit. The context exits when that commit has ended."""
        floors = dict(request["floors"])
        with self.announce(PendingCommit(topic_id=UUID(request["topic_id"]), floors=floors)):
            yield {"noted": True}
