"""Tasks that are done once by whoever comes first, with threads and without."""

from __future__ import annotations

import threading
import time

import pytest

from lastword.compaction.pool import READS_AHEAD, Pool, Task


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_results_come_in_the_order_of_the_tasks(threads: int) -> None:
    done: list[int] = []

    def one(number: int) -> int:
        time.sleep(0.001 * (number % 3))
        done.append(number)
        return number

    with Pool(threads) as pool:
        tasks = [Task(lambda number=number: one(number)) for number in range(40)]
        assert list(pool.in_order(tasks)) == list(range(40))
    assert sorted(done) == list(range(40))


def test_no_more_is_begun_than_may_be_ahead() -> None:
    begun = 0
    lock = threading.Lock()

    def one() -> None:
        nonlocal begun
        with lock:
            begun += 1

    with Pool(2) as pool:
        results = pool.in_order([Task(one) for _ in range(30)])
        next(results)
        time.sleep(0.05)
        assert begun <= 1 + READS_AHEAD
        list(results)
    assert begun == 30


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_all_that_was_put_is_done_when_the_block_is_left(threads: int) -> None:
    done: list[int] = []
    with Pool(threads) as pool:
        for number in range(20):
            pool.put(lambda number=number: done.append(number))
    assert sorted(done) == list(range(20))


def test_what_is_put_may_share_its_work_with_the_others() -> None:
    found: list[int] = []

    def write() -> None:
        found.extend(pool.in_order([Task(lambda number=number: number) for number in range(10)]))

    with Pool(2) as pool:
        pool.put(write)
    assert found == list(range(10))


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_the_first_error_ends_it(threads: int) -> None:
    def fail() -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"), Pool(threads) as pool:
        pool.put(fail)
        for _ in range(100):
            time.sleep(0.001)
            pool.put(lambda: None)


def test_an_error_of_a_task_reaches_whoever_wants_its_result() -> None:
    def fail() -> int:
        raise ValueError("damaged")

    with Pool(1) as pool:
        task = Task(fail)
        pool.offer(task)
        time.sleep(0.01)
        with pytest.raises(ValueError, match="damaged"):
            task.take()


def test_what_is_only_offered_need_not_be_done() -> None:
    started = threading.Event()
    go_on = threading.Event()

    def slow() -> None:
        started.set()
        go_on.wait(180)

    done: list[int] = []
    with pytest.raises(RuntimeError), Pool(1) as pool:
        pool.offer(Task(slow))
        started.wait(180)
        for number in range(5):
            pool.offer(Task(lambda number=number: done.append(number)))
        go_on.set()
        raise RuntimeError
    assert len(done) <= 5
