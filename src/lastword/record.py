"""A record, as producers pass it in and as readers get it back, and its Arrow form."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import pyarrow as pa

Header = tuple[str, bytes | None]

NO_TIMESTAMP_MS = -1
"""Kafka's 'no timestamp'. Readers see it unchanged. Rules about age use the time at which its WAL file was rolled."""

MAX_TIMESTAMP_MS = (2**63 - 1) // 1000
"""The last millisecond that a column of microseconds can hold."""


class TimestampType(IntEnum):
    """Kafka's timestamp types. The type is stored with each record, because a topic's setting may change."""

    NONE = -1
    CREATE = 0
    LOG_APPEND = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecord:
    """A record to append. Without a timestamp it gets the time of the append."""

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A record of the log. A key with a null value is a tombstone. An empty value is a value."""

    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: TimestampType
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()

    @property
    def is_tombstone(self) -> bool:
        return self.key is not None and self.value is None


HEADERS_TYPE = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]),
        nullable=False,
    )
)

PAYLOAD_SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        # Null if the record has no timestamp (TimestampType.NONE).
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestamp_type", pa.int32(), nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        # Null if the record has no headers.
        pa.field("headers", HEADERS_TYPE),
    ]
)
"""Records of one partition, in offset order."""

RECORD_SCHEMA = pa.schema([pa.field("partition", pa.int32(), nullable=False), *PAYLOAD_SCHEMA])
"""The schema that `Topic.read_arrow` yields: PAYLOAD_SCHEMA with the partition before it."""
