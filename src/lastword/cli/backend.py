"""How commands reach a log: by opening it here, or through the admin API of the server that holds its data folder.

A command asks its session's backend and renders what it gets, plain data, without knowing which of the two it is.
Reading records (`consume`) is not here: it needs no role, so it is done here even beside a server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from lastword.record_json import Parsed

Data = dict[str, Any]
Progress = Callable[..., None]
"""Called with the name of a stage (`seal`, `compact`, `erase`) and numbers."""


class Appender(Protocol):
    """Appends to one topic."""

    def append(
        self, records: Sequence[Parsed], *, partition: int | None, compression: str
    ) -> list[tuple[int, int]]:
        """Append records, all or none of them; the partition and the offset of each."""
        ...

    def check(self, records: Sequence[Parsed], *, partition: int | None) -> None:
        """Raise what `append` would raise because of the records."""
        ...


class Backend(Protocol):
    """What commands ask for. Results and errors are the same, whoever does it."""

    def topics(self) -> list[Data]: ...

    def create_topic(self, name: str, *, partitions: int, config: dict[str, str]) -> Data: ...

    def describe_topic(self, name: str) -> Data: ...

    def alter_topic(
        self, name: str, *, set_config: dict[str, str], unset: list[str], partitions: int | None
    ) -> Data: ...

    def delete_topic(self, name: str) -> Data: ...

    def delete_records(self, name: str, *, partition: int, before: int) -> Data: ...

    def history(self, name: str) -> Data: ...

    def settings(self, topic: str | None) -> list[Data]: ...

    def seal(self, name: str, *, progress: Progress) -> Data: ...

    def plan_topic(self, name: str, *, partitions: list[int] | None, force: bool, seal: bool) -> Data: ...

    def compact_topic(
        self, name: str, *, partitions: list[int] | None, force: bool, seal: bool, progress: Progress
    ) -> Data: ...

    def plan_all(self, *, all_dirty: bool) -> Data: ...

    def compact_all(self, *, all_dirty: bool, progress: Progress) -> Data: ...

    def verify(self, name: str, *, before: int | None, after: int | None) -> Data: ...

    def erase(self, name: str, keys: list[bytes], *, progress: Progress) -> Data: ...

    def run_retention(self, *, dry_run: bool, topics: list[str] | None) -> Data: ...

    def show_wal(self, name: str | None) -> list[Data]: ...

    def wal_damage(self, name: str) -> Data: ...

    def skip_wal_damage(self, name: str) -> Data: ...

    def appender(self, name: str) -> AbstractContextManager[Appender]: ...

    def run_worker_once(self) -> Data: ...

    def status(self) -> Data: ...
