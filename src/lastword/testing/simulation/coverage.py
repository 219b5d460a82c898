"""Coverage: the pairs of steps that have met, in all simulations so far.

Two steps meet when a job reaches one of them while another job is stopped right after the other. Not all pairs can meet:
some steps belong to jobs that exclude each other.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from lastword.testing.simulation.plan import STEPS

_SHOWN = 40


class Coverage:
    """The pairs that have met. With a path, they are kept in a file, and later runs add to it."""

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        self.met: Counter[tuple[str, str]] = Counter()
        """How often a job reached the second step while another one was right after the first."""
        if self._path is not None and self._path.exists():
            self.met.update({(first, second): count for first, second, count in self._load()["met"]})

    def _load(self) -> dict[str, list[tuple[str, str, int]]]:
        assert self._path is not None
        found: dict[str, list[tuple[str, str, int]]] = json.loads(self._path.read_text())
        return found

    def add(self, pairs: tuple[tuple[str, str, int], ...]) -> None:
        self.met.update({(first, second): count for first, second, count in pairs})

    def unmet(self) -> list[tuple[str, str]]:
        """Return the pairs of `STEPS` that have never met, in either order."""
        return [
            (first, second)
            for number, first in enumerate(STEPS)
            for second in STEPS[number + 1 :]
            if not self.met[first, second] and not self.met[second, first]
        ]

    def save(self) -> None:
        """Write the file."""
        if self._path is not None:
            met = [[*pair, count] for pair, count in sorted(self.met.items())]
            self._path.write_text(json.dumps({"met": met, "unmet": self.unmet()}))

    def words(self) -> str:
        """Return the coverage as text, with the pairs that have not met."""
        unmet = self.unmet()
        whole = len(STEPS) * (len(STEPS) - 1) // 2
        lines = [f"{whole - len(unmet)} of {whole} pairs of steps have met."]
        if unmet:
            lines += ["Not yet:", *(f"  {first} and {second}" for first, second in unmet[:_SHOWN])]
        if len(unmet) > _SHOWN:
            lines.append(f"  … and {len(unmet) - _SHOWN} more, in the file")
        return "\n".join(lines)
