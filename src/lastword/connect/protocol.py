"""The interface of a connector. Users can write their own; the file of sources names it as `module:Class`.

A connector reads from a position and yields chunks: records, and the position after them. Positions are JSON objects
that only the connector understands. The records of a chunk and its position take effect together: after any crash,
`read` is called with the position of exactly the last chunk that is in the log. So a connector that yields the same
records after the same position never needs to know about crashes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from lastword.clock import Clock
from lastword.connect.options import Options
from lastword.errors import InvalidConfigError
from lastword.loading import let_arrow_use_pandas
from lastword.record import Header

Position = Mapping[str, Any]
"""The position of a source: a JSON object that its connector defines."""


class SourceRecord(NamedTuple):
    """A record for a topic. Without a partition, the partitioner chooses one by its key."""

    topic: str
    key: bytes | None
    value: bytes | None
    timestamp_ms: int | None = None
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    offset: int | None = None
    """The offset that it keeps. Either all records for a topic have one or none; the source is then the only writer."""


class Chunk(NamedTuple):
    """Records, and the position after them. Without records, it only says that there is nothing to read now."""

    records: Sequence[SourceRecord]
    position: Position | None


class GroupOffset(NamedTuple):
    """The offset at which a consumer group continues, and the metadata of its commit."""

    offset: int
    metadata: str = ""


class TakenOver(NamedTuple):
    """The result of taking over the offsets of a group."""

    in_use: bool = False
    """The group has members here: nothing was changed."""
    own: int = 0
    """The number of partitions for which the group itself has committed here: those were left alone."""


class Groups(Protocol):
    """The consumer groups of the log that a connector writes to."""

    def take_over(self, group: str, offsets: Mapping[tuple[str, int], GroupOffset]) -> TakenOver:
        """Commit the offsets that a group has elsewhere as its offsets here, by topic and partition.

        A group that is in use here, or has itself committed here, is left alone.
        """
        ...


class TopicReads(Protocol):
    """The reads of a connector in the log that it writes to. They see all chunks that it has yielded before."""

    def newest(self, topic: str, keys: Iterable[bytes]) -> dict[bytes, bytes | None]:
        """Return the value of the newest record of each key; keys without a record are left out."""
        ...

    def live_keys(self, topic: str) -> Iterator[bytes]:
        """Yield the keys of the topic's state."""
        ...

    def behind(self, topic: str, partition: int, header: str, number: int) -> int:
        """Return the offset after the last record with a lower number in the header; the numbers only ever grow."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The environment of a connector, besides its options."""

    source: str
    topic: str | None
    """As in the file; a pattern for a connector with several topics."""
    clock: Clock
    topics: TopicReads
    groups: Groups
    wait: Callable[[float], bool]
    """Wait for some seconds; return True at once if the source must stop or pause. Call it with 0 in long loops."""
    report: Callable[[Mapping[str, Any]], None]
    """Add facts to the status, such as lag or progress. Earlier facts under other keys stay."""
    needs_topic: Callable[[str, int | None], None]
    """Make sure that a topic exists, and create it with this many partitions if not. Raise an error if it may not be
    created, or if it is no longer the topic that the source has appended to."""
    was_reset: bool = False
    """The source starts over after `connect reset`: its topics may have records of data that is gone by now."""
    restored: str | None = None
    """The backup that the position comes from, if the log was restored and the source has not advanced since."""


@runtime_checkable
class Connector(Protocol):
    """A source. Its constructor takes `(options, context)`, checks the options, and touches nothing outside."""

    def check(self) -> list[str]:
        """Check the external system without changing it; return the problems, for people to read."""
        ...

    def read(self, position: Position | None) -> Iterator[Chunk]:
        """Yield the chunks after a position, without end: at least one per second, empty if necessary."""
        ...

    def appended(self, position: Position | None) -> None:
        """Take note that everything up to a position is durable in the log: the external system may forget it."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Watches(Protocol):
    """An optional part of a connector, for a source that costs something outside even while it is paused or failing."""

    def look(self) -> None:
        """Report that cost, such as the WAL that a database keeps. Called now and then, with `close` after it."""
        ...


Factory = Callable[[Options, Context], Connector]

SHIPPED: Final = {
    "postgres-cdc": "lastword.connect.postgres:PostgresConnector",
    "file": "lastword.connect.file:FileConnector",
    "kafka": "lastword.connect.kafka:KafkaConnector",
}


def load(name: str, *, where: str) -> Factory:
    """Return the class of a connector, by one of the names in SHIPPED or as `module:Class`."""
    module_name, colon, class_name = SHIPPED.get(name, name).partition(":")
    if not colon or not module_name or not class_name:
        raise InvalidConfigError(
            f"{where}: there is no connector {name!r}; allowed: {', '.join(SHIPPED)}, or module:Class"
        )
    try:
        module = importlib.import_module(module_name)
        if not module_name.startswith("lastword."):
            let_arrow_use_pandas()
    except Exception as error:
        # A user's module may raise anything.
        hint = ""
        if (
            isinstance(error, ImportError)
            and error.name
            and error.name.partition(".")[0] in ("psycopg2", "confluent_kafka")
        ):
            hint = "; `pip install lastword[connect]` installs the packages that the shipped connectors need"
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
