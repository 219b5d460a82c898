"""A history: operations in the order in which they were invoked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lastword.testing.history.events import Operation
from lastword.testing.history.lines import operations_of, write_operation


@dataclass(frozen=True, slots=True)
class History:
    """Operations, ordered by `invoked`."""

    operations: tuple[Operation, ...]

    @classmethod
    def of(cls, operations: Iterable[Operation]) -> History:
        """Sort operations by `invoked`."""
        return cls(tuple(sorted(operations, key=lambda each: each.invoked)))

    @classmethod
    def read(cls, *paths: str | Path) -> History:
        """Read and merge the files of recorders on one machine."""
        found: list[Operation] = []
        for path in paths:
            with Path(path).open(encoding="utf-8") as file:
                found += operations_of(file, name=str(path))
        return cls.of(found)

    def write(self, path: str | Path) -> None:
        """Write the operations to a file of JSON lines."""
        with Path(path).open("w", encoding="utf-8") as file:
            for operation in self.operations:
                write_operation(file, operation)

    def __iter__(self) -> Iterator[Operation]:
        return iter(self.operations)

    def __len__(self) -> int:
        return len(self.operations)
