"""Deadlines that are set, moved, cancelled and taken."""

from __future__ import annotations

from lastword.broker.groups.timers import Timers


def test_due_ones_come_in_order_and_once() -> None:
    timers: Timers[str] = Timers()
    timers.set("late", 30)
    timers.set("early", 10)
    timers.set("never", 99)
    assert list(timers.due(9)) == []
    assert list(timers.due(30)) == ["early", "late"]
    assert list(timers.due(30)) == []
    assert timers.next_ms() == 99


def test_moved_later() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 10)
    timers.set("a", 20)
    assert list(timers.due(19)) == []
    assert timers.next_ms() == 20
    assert list(timers.due(20)) == ["a"]


def test_moved_earlier_and_back() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 20)
    timers.set("a", 5)
    timers.set("a", 15)
    assert list(timers.due(14)) == []
    assert list(timers.due(15)) == ["a"]
    assert list(timers.due(100)) == []


def test_cancelled_and_set_again() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 10)
    timers.cancel("a")
    timers.cancel("a")
    assert len(timers) == 0
    timers.set("a", 30)
    assert list(timers.due(29)) == []
    assert list(timers.due(30)) == ["a"]


def test_a_deadline_that_is_moved_often_takes_no_room() -> None:
    timers: Timers[str] = Timers()
    for deadline_ms in range(10_000):
        timers.set("a", deadline_ms)
    assert len(timers._heap) == 1


def test_set_while_the_due_ones_are_taken() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 1)
    timers.set("b", 2)
    taken = []
    for name in timers.due(10):
        taken.append(name)
        if name == "a":
            timers.cancel("b")
            timers.set("c", 5)
    assert taken == ["a", "c"]
