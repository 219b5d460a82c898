"""The server's clock over the order of a history, and when doubts end.

The clock is known where operations recorded it. In between, it may have shown any time up to the next recorded one. It may
jump: an effect that depends on an age is possible as soon as the clock may have shown that time once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from lastword.testing.history.events import Operation, Outcome, Restart

NEVER = 1 << 62
"""A number of the order that is never reached."""


class Clockline:
    """The times that the server's clock showed, by numbers of the order."""

    def __init__(self, operations: Sequence[Operation], skew_ms: int = 0) -> None:
        readings = [(each.invoked, each.invoked_ms) for each in operations]
        readings += [
            (each.completed, each.completed_ms)
            for each in operations
            if each.completed is not None and each.completed_ms is not None
        ]
        readings.sort()
        self._skew_ms = skew_ms
        self._numbers = [number for number, _ in readings]
        self._times = [time_ms for _, time_ms in readings]
        self._highest = list(accumulate(self._times, max))
        self._lowest = list(accumulate(reversed(self._times), min))[::-1]
        self._restarts = sorted(
            (each.invoked, each.completed)
            for each in operations
            if isinstance(each, Restart) and each.outcome is Outcome.OK and each.completed is not None
        )

    def reached(self, time_ms: float) -> int:
        """Return the earliest number at which the clock may have shown this time."""
        index = bisect_left(self._highest, time_ms - self._skew_ms)
        if index == len(self._highest):
            return NEVER
        return self._numbers[index - 1] + 1 if index else 0

    def lowest_from(self, number: int) -> float:
        """Return the lowest time that the clock showed at or after a number."""
        index = bisect_left(self._numbers, number)
        return (self._lowest[index] if index < len(self._lowest) else self._times[-1]) - self._skew_ms

    def span_ms(self, since: int, until: int) -> float:
        """Return the difference between the extreme times that the clock showed between two numbers."""
        times = self._times[bisect_left(self._numbers, since) : bisect_right(self._numbers, until)]
        return max(times) - min(times) + self._skew_ms if times else 0

    def effect_until(self, operation: Operation) -> int:
        """Return the number by which an operation has taken effect.

        An operation in doubt may take effect after its client has given up, until the server is restarted.
        """
        if operation.completed is None:
            return NEVER
        if operation.outcome is Outcome.OK or operation.is_over:
            return operation.completed
        index = bisect_left(self._restarts, (operation.completed, 0))
        return self._restarts[index][1] if index < len(self._restarts) else NEVER
