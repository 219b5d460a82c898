"""Which neighbours become one file."""

from __future__ import annotations

from lastword.compaction.grouping import LARGE_ENOUGH_BYTES, MOST_FILES, Member, groups, large_enough


def member(index: int, size: int, *, free: bool = True, oldest: int = 0, newest: int | None = None) -> Member:
    return Member(
        index=index,
        expected_bytes=size,
        is_rewritten=False,
        free_to_join=free,
        min_timestamp_ms=oldest,
        max_timestamp_ms=oldest if newest is None else newest,
    )


def grouped(
    *members: Member, merge_bytes: int = 100, enough_bytes: int = 100, span_ms: int | None = None
) -> list[list[int]]:
    found = groups(members, merge_bytes=merge_bytes, enough_bytes=enough_bytes, span_ms=span_ms)
    return [[each.index for each in group] for group in found]


def test_nothing_makes_no_group() -> None:
    assert grouped() == []


def test_new_and_rewritten_ones_join_up_to_the_limit() -> None:
    assert grouped(member(4, 40), member(3, 40), member(2, 20), member(1, 1), member(0, 50)) == [
        [4, 3, 2],
        [1, 0],
    ]


def test_one_that_is_larger_than_the_limit_stays_alone() -> None:
    assert grouped(member(2, 1), member(1, 500), member(0, 1)) == [[2], [1], [0]]


def test_one_that_is_not_free_joins_only_if_its_file_grows_by_much() -> None:
    assert grouped(member(1, 10), member(0, 17, free=False)) == [[1], [0]]
    assert grouped(member(1, 10), member(0, 16, free=False)) == [[1, 0]]


def test_several_that_are_not_free_join_if_all_of_them_grow() -> None:
    assert grouped(member(1, 10, free=False), member(0, 20, free=False)) == [[1], [0]]
    assert grouped(member(1, 20, free=False), member(0, 10, free=False)) == [[1], [0]]
    assert grouped(member(1, 10, free=False), member(0, 9, free=False)) == [[1, 0]]
    assert grouped(member(2, 30), member(1, 10, free=False), member(0, 10, free=False)) == [[2, 1, 0]]


def test_a_group_with_a_clean_one_goes_on_with_what_is_rewritten_anyway() -> None:
    assert grouped(member(2, 10), member(1, 10, free=False), member(0, 10)) == [[2, 1, 0]]


def test_where_retention_applies_a_group_spans_no_more_than_segment_ms() -> None:
    found = [
        member(2, 1, oldest=100, newest=110),
        member(1, 1, oldest=90, newest=95),
        member(0, 1, oldest=89),
    ]
    assert grouped(*found, span_ms=20) == [[2, 1], [0]]
    assert grouped(*found, span_ms=21) == [[2, 1, 0]]
    assert grouped(*found, span_ms=None) == [[2, 1, 0]]


def test_groups_come_while_members_come() -> None:
    """So that a segment can be rewritten while the keys of the next one are read."""
    taken: list[int] = []

    def members() -> object:
        for index in (3, 2, 1, 0):
            taken.append(index)
            yield member(index, 60)

    first = next(iter(groups(members(), merge_bytes=100, enough_bytes=100, span_ms=None)))  # type: ignore[arg-type]
    assert [each.index for each in first] == [3]
    assert taken == [3, 2]


def test_what_is_large_enough_takes_in_no_more() -> None:
    members = [member(index, 20) for index in reversed(range(7))]
    assert grouped(*members, enough_bytes=50) == [[6, 5, 4], [3, 2, 1], [0]]


def test_large_enough_follows_the_partition_and_never_passes_the_limit() -> None:
    gigabyte = 1 << 30
    assert large_enough(gigabyte, 100 << 20) == LARGE_ENOUGH_BYTES
    assert large_enough(gigabyte, 10 * gigabyte) == 10 * gigabyte // MOST_FILES
    assert large_enough(gigabyte, 1000 * gigabyte) == gigabyte
    assert large_enough(1 << 20, 10 * gigabyte) == 1 << 20
