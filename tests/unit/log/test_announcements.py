"""Commits are told to whoever serves the records, also to those who come while one is being made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import lastword
from lastword.segments.model import PendingCommit

COMMIT = PendingCommit(topic_id=uuid4(), floors={0: 5})


class Listener:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []

    @contextmanager
    def __call__(self, commit: PendingCommit) -> Iterator[None]:
        assert commit == COMMIT
        self.events.append("begun")
        yield
        self.events.append("over")


def test_a_listener_that_comes_while_a_commit_is_made_is_told_of_its_end(tmp_path: Path) -> None:
    early, late = Listener(), Listener()
    with lastword.open(tmp_path / "data") as log:
        log.announcements.listen(early)
        with log.announcements.announce(COMMIT):
            log.announcements.listen(late)
            assert (early.events, late.events) == (["begun"], [])
        assert (early.events, late.events) == (["begun", "over"], ["begun", "over"])


def test_a_writer_that_is_started_again_while_a_commit_is_made_is_told_of_it(tmp_path: Path) -> None:
    first, second = Listener(), Listener()
    writer = lastword.open(tmp_path / "data")
    writer.announcements.listen(first)
    with lastword.open(tmp_path / "data", maintain_only=True) as job:
        with job.announcements.announce(COMMIT):
            assert first.events == ["begun"]
            writer.close()
            writer = lastword.open(tmp_path / "data")
            writer.announcements.listen(second)
        assert second.events == ["begun", "over"]
    writer.close()
