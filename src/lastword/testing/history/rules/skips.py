"""Positions in a list, with skipped ones."""


class Skips:
    """The positions from 0 up to, but excluding, a count."""

    def __init__(self, count: int) -> None:
        self._next = list(range(count + 1))

    def skip(self, place: int) -> None:
        self._next[place] = place + 1

    def first_from(self, place: int) -> int:
        """Return the first position from `place` on that is not skipped, or the count. Compress the path to it."""
        following = self._next
        root = place
        while following[root] != root:
            root = following[root]
        while following[place] != root:
            following[place], place = root, following[place]
        return root
