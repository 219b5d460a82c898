"""What a connector is. Anybody can write one; the file names it as `module:Class`.

A connector reads from a position and yields chunks: records, and the position after them. Positions are JSON objects
that only the connector understands. The records of a chunk and its position become part of the log together: after any
crash `read` is called with the position of the last chunk that is in the log, no more and no less. So a connector that
yields the same records after the same position never needs to know about crashes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from lastword.clock import Clock
from lastword.connect.options import Options
from lastword.errors import InvalidConfigError
from lastword.record import Header

Position = Mapping[str, Any]
"""Where a source stands: a JSON object of its connector's making."""


class SourceRecord(NamedTuple):
    """A record for a topic. Without a partition it goes where its key belongs."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    offset: int | None = None
    """That it keeps. Either all records for a topic have one or none; a source that keeps them is its only writer."""


class Chunk(NamedTuple):
    """Records, and the position after them. Without records it only says that there is nothing now."""

    records: Sequence[SourceRecord]
    position: Position | None


class GroupOffset(NamedTuple):
    """Where a consumer group shall go on, and what it has noted beside it."""

    offset: int
    metadata: str = ""


class TakenOver(NamedTuple):
    """What became of the offsets of a group."""

    in_use: bool = False
    """It has members here: nothing was changed."""
    own: int = 0
    """Partitions for which it has committed by itself here: those were left alone."""


class Groups(Protocol):
    """The consumer groups of the log that a connector writes to."""

    def take_over(self, group: str, offsets: Mapping[tuple[str, int], GroupOffset]) -> TakenOver:
        """Make offsets that a group has elsewhere its offsets here, by topic and partition.

        A group that is in use here, or has committed here by itself, goes its own way.
        """
        ...


class TopicReads(Protocol):
    """What a connector may ask of the log that it writes to. It sees all chunks that it has yielded before."""

    def newest(self, topic: str, keys: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """The value of the newest record of each key; keys without a record are left out."""
        ...

    def live_keys(self, topic: str) -> Iterator[bytes]:
        """The keys of the topic's state."""
        ...

    def behind(self, topic: str, partition: int, header: str, number: int) -> int:
        """The offset behind the last record whose header is a lower number; those numbers only ever grow."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a connector is given beside its options."""

    source: str
    topic: str | None
    """As the file says it; for a connector with several topics, a pattern."""
    clock: Clock
    topics: TopicReads
    groups: Groups
    wait: Callable[[float], bool]
    """Let seconds pass; True at once if the source shall end or pause. Ask it with 0 in long loops."""
    report: Callable[[Mapping[str, Any]], None]
    """Say something for the status: lag, progress. What was said before under another key stays."""
    needs_topic: Callable[[str, int | None], None]
    """Make sure that a topic is there, with so many partitions if it is created; an error if it may not be, or if it is
    not the one any more that the source has appended to."""
    was_reset: bool = False
    """The source begins again after `connect reset`: its topics may have records of what is gone by now."""
    restored: str | None = None
    """The backup that the position comes from, if the log was restored and the source has not gone on since."""


@runtime_checkable
class Connector(Protocol):
    """A source. It is made with `(options, context)`, which checks its options and touches nothing outside."""

    def check(self) -> list[str]:
        """Look at the outside without changing it; what is in the way, for people to read."""
        ...

    def read(self, position: Position | None) -> Iterator[Chunk]:
        """Chunks after a position, without end. At least every second one is yielded, empty if need be."""
        ...

    def appended(self, position: Position | None) -> None:
        """Everything up to a position is in the log and lasts: the outside may forget it."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Watches(Protocol):
    """What a connector may have besides: a source that is paused or failing still costs something outside."""

    def look(self) -> None:
        """Report what that is, such as the WAL that a database keeps. Called now and then, and closed after it."""
        ...


Factory = Callable[[Options, Context], Connector]

SHIPPED: Final = {
    "postgres-cdc": "lastword.connect.postgres:PostgresConnector",
    "file": "lastword.connect.file:FileConnector",
    "kafka": "lastword.connect.kafka:KafkaConnector",
}


def load(name: str, *, where: str) -> Factory:
    """The class of a connector, by one of the names in SHIPPED or as `module:Class`."""
    module_name, colon, class_name = SHIPPED.get(name, name).partition(":")
    if not colon or not module_name or not class_name:
        raise InvalidConfigError(
            f"{where}: there is no connector {name!r}; allowed: {', '.join(SHIPPED)}, or module:Class"
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        # Somebody's own module may raise anything.
        hint = ""
        if (
            isinstance(error, ImportError)
            and error.name
            and error.name.partition(".")[0] in ("psycopg2", "confluent_kafka")
        ):
            hint = "; `pip install lastword[connect]` installs what the shipped connectors need"
        raise InvalidConfigError(f"{where}: the connector {name!r} can't be loaded: {error}{hint}") from error
    made = getattr(module, class_name, None)
    methods = ("check", "read", "appended", "close")
    if not isinstance(made, type) or not all(callable(getattr(made, each, None)) for each in methods):
        raise InvalidConfigError(
            f"{where}: {name!r} is not a connector: {class_name} in {module_name} must be a class with "
            f"{', '.join(methods)}"
        )
    factory: Factory = made
    return factory
