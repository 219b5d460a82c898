"""How commands reach a log: they open it, or ask the admin API of the server that holds its data folder.

A command calls its session's backend and renders the plain data that it returns, without knowing which of the two it is.
Reading records (`consume`) is not in the backend: it needs no role, so this process does it even beside a server.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from lastword.record_json import Json, Parsed

if TYPE_CHECKING:
    from lastword.operations.table import Operation

P = ParamSpec("P")
R = TypeVar("R")


class Appender(Protocol):
    """Appends to one topic."""

    def append(
        self, records: Sequence[Parsed], *, partition: int | None, compression: str
    ) -> list[tuple[int, int]]:
        """Append records after checking all of them, and return the partition and the offset of each."""
        ...

    def check(self, records: Sequence[Parsed], *, partition: int | None) -> None:
        """Raise the error that `append` would raise because of the records."""
        ...


class Backend(Protocol):
    """The operations that commands call. Both implementations return the same results and raise the same errors."""

    def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run one of the operations of lastword.operations.table."""
        ...

    def broker_settings(self) -> list[Json]: ...

    def skip_wal_damage(self, name: str) -> Json: ...

    def appender(self, name: str) -> AbstractContextManager[Appender]: ...

    def connectors(self) -> list[Json]: ...

    def pause_connector(self, name: str) -> Json: ...

    def resume_connector(self, name: str) -> Json: ...

    def groups(self) -> list[Json]: ...

    def describe_group(self, name: str) -> Json: ...

    def delete_group(self, name: str) -> Json: ...

    def run_worker_once(self) -> Json: ...

    def status(self) -> Json: ...
