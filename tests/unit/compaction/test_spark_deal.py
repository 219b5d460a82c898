"""Which units share a task on Spark."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lastword.compaction.spark import TASK_BYTES, deal


def test_one_unit_is_one_task() -> None:
    assert deal([10], 8) == [[0]]


def test_small_units_share_as_many_tasks_as_run_at_a_time() -> None:
    assert sorted(map(sorted, deal([10] * 8, 2))) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_the_large_one_is_alone() -> None:
    assert sorted(map(sorted, deal([1, 100, 1, 1], 2))) == [[0, 2, 3], [1]]


def test_much_to_do_is_many_tasks() -> None:
    assert len(deal([TASK_BYTES] * 20, 2)) == 20
    assert len(deal([TASK_BYTES // 2] * 20, 2)) == 10


@given(st.lists(st.integers(0, 2 * TASK_BYTES), min_size=1, max_size=50), st.integers(1, 16))
def test_each_unit_is_in_one_task_and_no_task_is_empty(sizes: list[int], parallel: int) -> None:
    tasks = deal(sizes, parallel)
    assert sorted(index for task in tasks for index in task) == list(range(len(sizes)))
    assert len(tasks) <= len(sizes)
    if all(sizes):
        assert all(tasks)
