"""The writer role of a data folder: this process holds it, or asks the process that does.

Only the writer appends, rolls, and creates and deletes topics. It answers other processes of the folder on a local
socket: jobs ask it to roll, to append staged records and to finish deletions, and announce their commits to it. If
no process is the writer, a job takes the role itself for the duration of such a request.

A killed writer leaves its lock and its socket behind. The next process that wants the role detects that the holder has ended.
"""

from __future__ import annotations

import resource
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lastword.clock import Clock
from lastword.config import WalSync
from lastword.errors import InvalidError
from lastword.folder.channel import ChannelServer, ask
from lastword.folder.locks import Role, RoleLock, writer_channel
from lastword.log.announcements import Announcements
from lastword.log.topics import Topics
from lastword.maintenance.ownership import Confirmer, Ownership
from lastword.wal.flusher import Flusher

if TYPE_CHECKING:
    from lastword.segments.catalog import SegmentCatalog


class WriterRole:
    """The writer role, as one process sees it. Call `begin` before anything else."""

    def __init__(
        self, data_folder: Path, clock: Clock, announcements: Announcements, *, is_held: bool
    ) -> None:
        self.is_held = is_held
        """Whether this process is the writer."""
        self._data_folder = data_folder
        self._clock = clock
        self._announcements = announcements
        self._topics: Topics
        self._channel: ChannelServer | None = None
        self._lock: RoleLock | None = None
        self.flusher: Flusher | None = None
        self.confirmer: Confirmer | None = None
        if is_held:
            self._channel = ChannelServer(self._answer)
            try:
                self._lock = RoleLock.acquire(data_folder, Role.WRITER, clock, channel=self._channel.path)
            except BaseException:
                self._channel.close()
                raise
            _allow_many_files()

    def begin(self, topics: Topics, sync: WalSync, ownership: Ownership, catalog: SegmentCatalog) -> None:
        """Start the threads of a writer: interval syncs, the confirmation of ownership, answers to other processes."""
        self._topics = topics
        if self._channel is None:
            return
        if ownership.is_shared:
            self.confirmer = Confirmer(ownership, catalog, topics.lost)
        if sync.mode == "interval":
            assert sync.interval_ms is not None
            self.flusher = Flusher(topics.writers, sync.interval_ms)
        # Its answers need everything above. Requests that arrive earlier wait.
        self._channel.start()

    def check(self) -> None:
        """Raise InvalidError if this process is not the writer."""
        if not self.is_held:
            raise InvalidError(
                "The log was opened for reading or maintenance only; open it as its writer to change topics."
            )

    def roll(self, topic: str, due_only: bool) -> list[tuple[int, str]]:
        """Make the writer roll a topic. Return the partitions where that failed, and why."""
        if path := writer_channel(self._data_folder):
            answer = ask(path, {"do": "roll", "topic": topic, "due_only": due_only})
            if answer is not None:
                return [(partition, what) for partition, what in answer["failed"]]
        with RoleLock.acquire(self._data_folder, Role.WRITER, self._clock, brief=True):
            opened = self._topics.open(topic, writes=True)
            try:
                return opened.roll(due_only=due_only)
            finally:
                opened.close()

    def finish_deletions(self) -> None:
        """Remove the remains of deleted topics, or make the writer do it."""
        if self.is_held:
            self._topics.finish_deletions()
            return
        if not self._topics.has_deletions():
            return
        if (path := writer_channel(self._data_folder)) and ask(path, {"do": "finish-deletions"}) is not None:
            return
        with RoleLock.acquire(self._data_folder, Role.WRITER, self._clock, brief=True):
            self._topics.finish_deletions()

    def stop(self) -> None:
        """Stop answering other processes, and end the threads. The role is kept."""
        for each in (self._channel, self.flusher, self.confirmer):
            if each is not None:
                each.close()

    def release(self) -> None:
        """Release the role."""
        if self._lock is not None:
            self._lock.release()

    def _answer(self, request: dict[str, Any]) -> dict[str, Any] | AbstractContextManager[dict[str, Any]]:
        """Answer a request that another process sends to this writer."""
        match request.get("do"):
            case "commit":
                return self._announcements.held(request)
            case "roll":
                return {"failed": self._topics.get(request["topic"]).roll(due_only=request["due_only"])}
            case "append":
                topic = self._topics.get(request["topic"])
                return {"appended": topic.append_staged(request["sink"], request["number"])}
            case "finish-deletions":
                self._topics.finish_deletions()
                return {}
            case other:
                raise InvalidError(
                    f"the writer can't do {other!r}; it can roll, append, hear of commits and finish deletions"
                )


def _allow_many_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
