"""Reads of what moves meanwhile: they look again, not for ever, and tell what is lost."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import islice

import pytest

from lastword.errors import CorruptError, UnavailableError
from lastword.segments.model import READS, SegmentGoneError, resume_if_moved, retry_if_moved
from lastword.wal.reader import OffsetGoneError

Moved = SegmentGoneError | OffsetGoneError


class Moving:
    """Numbers from 0 on. Before some of them, everything moves; `moves` has the number and the error of each."""

    def __init__(self, moves: Sequence[tuple[int, Moved]], end: int = 3) -> None:
        self._moves = list(moves)
        self._end = end
        self._at = 0
        self.looks = 0
        self.closed = 0

    def read(self) -> Generator[int, None, None]:
        self.looks += 1
        try:
            while self._at < self._end:
                if self._moves and self._moves[0][0] == self._at:
                    raise self._moves.pop(0)[1]
                self._at += 1
                yield self._at - 1
        finally:
            self.closed += 1

    def read_whole(self) -> list[int]:
        self._at = 0
        return list(self.read())


def gone(path: str = "") -> SegmentGoneError:
    return SegmentGoneError(f"{path} is gone.", path=path, offset=7)


def test_a_read_resumes_where_it_was() -> None:
    moving = Moving([(0, OffsetGoneError()), (2, gone("a"))])
    assert list(resume_if_moved(moving.read, "It")) == [0, 1, 2]
    assert (moving.looks, moving.closed) == (3, 3)


def test_a_read_that_gets_on_may_be_resumed_any_number_of_times() -> None:
    moves = [(at, OffsetGoneError()) for at in range(50) for _ in range(READS - 1)]
    assert list(resume_if_moved(Moving(moves, end=50).read, "It")) == list(range(50))


@pytest.mark.parametrize("error", [OffsetGoneError(), gone()])
def test_what_moves_each_time_is_not_available(error: Moved) -> None:
    moving = Moving([(1, error)] * READS)
    found = resume_if_moved(moving.read, "It")
    assert next(found) == 0
    with pytest.raises(UnavailableError, match=f"It changed {READS} times while it was read"):
        next(found)
    moving = Moving([(1, error)] * READS)
    with pytest.raises(UnavailableError, match=f"It changed {READS} times while it was read"):
        retry_if_moved(moving.read_whole, "It")
    assert moving.looks == READS


def test_a_file_that_is_missing_at_two_looks_is_lost() -> None:
    for act in (
        lambda moving: list(resume_if_moved(moving.read, "It")),
        lambda moving: retry_if_moved(moving.read_whole, "It"),
    ):
        moving = Moving([(1, gone("a"))] * 2)
        with pytest.raises(CorruptError, match=r"a is gone\. The table still names it") as lost:
            act(moving)
        assert (lost.value.path, lost.value.offset, moving.looks) == ("a", 7, 2)


def test_another_file_each_time_is_not_lost() -> None:
    moving = Moving([(1, gone("a")), (1, gone("b")), (1, gone("a"))])
    assert retry_if_moved(moving.read_whole, "It") == [0, 1, 2]


def test_a_read_is_closed_with_its_consumer() -> None:
    moving = Moving([])
    found = resume_if_moved(moving.read, "It")
    assert list(islice(found, 2)) == [0, 1]
    found.close()
    assert moving.closed == 1
