"""Memory for requests is given in the order of asking, and nobody waits for ever."""

from __future__ import annotations

from lastword.broker.memory import Memory


class Asker:
    """A connection, as far as memory is concerned."""

    def __init__(self) -> None:
        self.is_granted = False

    def granted(self) -> None:
        self.is_granted = True


def reserve(memory: Memory, size_bytes: int) -> Asker:
    asker = Asker()
    asker.is_granted = memory.reserve(size_bytes, asker)
    return asker


def test_small_ones_do_not_overtake_a_large_one() -> None:
    memory = Memory(100)
    assert reserve(memory, 60).is_granted
    large = reserve(memory, 90)
    small = [reserve(memory, 10) for _ in range(3)]
    assert not large.is_granted and not any(each.is_granted for each in small)
    memory.release(60, reserved_bytes=60)
    assert large.is_granted and [each.is_granted for each in small] == [True, False, False]
    memory.release(90, reserved_bytes=90)
    assert all(each.is_granted for each in small)
    assert memory.used_bytes == 30


def test_requests_that_stay_for_long_keep_no_large_one_waiting() -> None:
    memory = Memory(100)
    memory.take(40)  # Fetches that wait for records.
    assert reserve(memory, 90).is_granted
    other = reserve(memory, 500)
    memory.take(40)
    assert not other.is_granted
    memory.release(90, reserved_bytes=90)
    assert other.is_granted
    assert memory.used_bytes == 580


def test_who_has_gone_is_passed_over() -> None:
    memory = Memory(100)
    assert reserve(memory, 100).is_granted
    first, second = reserve(memory, 100), reserve(memory, 10)
    memory.forget(first)
    memory.release(0, reserved_bytes=0)
    assert not second.is_granted
    memory.release(100, reserved_bytes=100)
    assert second.is_granted and not first.is_granted
