"""Shared state for the request handlers of the admin API, and the client of the worker's process.

Short requests are handled here, on the broker's open log, in a thread of the admin API. Heavy ones (sealing,
compaction, retention, verify, erase) are handled by the worker's process, which is asked through its channel.
"""

from __future__ import annotations

import base64
import binascii
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from lastword.errors import InvalidError, UnavailableError
from lastword.folder.channel import ReportProgress, ask_job
from lastword.log import Log

PING_S = 2.0
MOST_SEARCHES = 2
SEARCH_WAIT_S = 5.0


class GroupAdmin(Protocol):
    """The coordinator of consumer groups, as the admin API uses it. Called on the broker's event loop."""

    async def list_groups(self) -> list[dict[str, Any]]: ...

    async def describe_group(self, group: str) -> dict[str, Any]:
        """Describe a group. Raise UnknownGroupError if there is no such group."""
        ...

    async def lags(self) -> list[tuple[str, str, int, int]]:
        """Return tuples of group, topic, partition, and how far the group is behind in the partition."""
        ...

    async def write_again(self) -> None:
        """Write all known state again, at the end of the log, so that unreadable records can be skipped."""
        ...

    async def repaired(self) -> None:
        """Note that the unreadable records have been skipped."""
        ...

    async def delete_group(self, group: str) -> None:
        """Delete a group. Raise UnknownGroupError if there is no such group, InvalidError if it has members."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerClient:
    """The worker's process, reached through its channel."""

    channel: Path

    def ask(
        self,
        do: str,
        arguments: dict[str, Any],
        progress: ReportProgress | None = None,
        cancelled: Callable[[], bool] = lambda: False,
    ) -> Any:
        return ask_job(self.channel, {"do": do, **arguments}, progress=progress, cancelled=cancelled)

    def job(self, do: str, **arguments: Any) -> Callable[[ReportProgress, Callable[[], bool]], Any]:
        """Return a job for `Jobs`."""
        return lambda progress, gone: self.ask(do, arguments, progress, gone)

    def metrics(self) -> str:
        return str(ask_job(self.channel, {"do": "metrics"}, timeout_s=PING_S))

    def ping(self) -> None:
        """Raise UnavailableError if the worker does not answer."""
        ask_job(self.channel, {"do": "ping"}, timeout_s=PING_S)


class Searches:
    """Lets few requests at a time search all keys of a topic: they share the broker's memory and processors."""

    def __init__(self) -> None:
        self._turns = threading.BoundedSemaphore(MOST_SEARCHES)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn, but not for long: a waiting request occupies a thread."""
        if not self._turns.acquire(timeout=SEARCH_WAIT_S):
            raise UnavailableError(
                f"{MOST_SEARCHES} other requests are searching the keys of topics; try again in a moment."
            )
        try:
            yield
        finally:
            self._turns.release()


@dataclass(frozen=True, slots=True)
class AdminContext:
    """Shared state for the request handlers."""

    log: Log
    worker: WorkerClient
    searches: Searches = field(default_factory=Searches)


def keys_of(texts: list[str], encoded: list[str]) -> list[str]:
    """Return keys in base64, the form in which they are sent to the worker."""
    keys = [base64.b64encode(each.encode()).decode() for each in texts]
    for each in encoded:
        decoded(each, "keys_base64")
        keys.append(each)
    if not keys:
        raise InvalidError("No key was given to erase; give keys or keys_base64.")
    return keys


def one_key(text: str | None, encoded: str | None) -> bytes | None:
    """Return the key that a request names, as text or in base64, if any."""
    if text is not None and encoded is not None:
        raise InvalidError("key and key_base64 name two keys; give one of them.")
    if encoded is not None:
        return decoded(encoded, "key_base64")
    return None if text is None else text.encode()


def decoded(text: str, name: str) -> bytes:
    """Decode a parameter that is in base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidError(f"{name}: {text[:80]!r} is not base64: {error}") from None
