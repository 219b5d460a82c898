"""How commands reach a log: they open it, or ask the admin API of the server that holds its data folder.

A command calls its session's backend and renders the plain data that it returns, without knowing which of the two it is.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from lastword.record_json import Json

if TYPE_CHECKING:
    from lastword.operations.table import Operation

P = ParamSpec("P")
R = TypeVar("R")


class Backend(Protocol):
    """Runs operations. Both implementations return the same results and raise the same errors."""

    def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run one of the operations of lastword.operations.table."""
        ...

    def writing(self) -> AbstractContextManager[Backend]:
        """Yield a backend for many operations in a row. Without a server, it keeps the log open for writing."""
        ...

    def status(self) -> Json: ...
