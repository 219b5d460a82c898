"""Maps topics, positions, snapshots and segments to Iceberg's terms, and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any
from uuid import UUID

from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record as PartitionRecord
from pyiceberg.types import (
    BinaryType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

from lastword.errors import StorageError, UnknownTopicError
from lastword.segments.model import (
    CompactedRange,
    Deadline,
    DeleteFile,
    LastRun,
    Marks,
    Owner,
    PastOwner,
    Positions,
    Segment,
    Snapshot,
    TopicInfo,
)
from lastword.segments.schema import FIELD_IDS, HEADER_FIELD_IDS

DEFAULT_NAMESPACE = "default"

NAME = "lastword.topic.name"
ID = "lastword.topic.id"
PARTITIONS = "lastword.topic.partitions"
STATE = "lastword.topic.state"
CONFIG_PREFIX = "lastword.config."
POSITIONS = "lastword.positions"

TABLE_FORMAT = "lastword.table.format"
FORMAT = 2
"""The format of tables that we write, and the newest that we read. Tables of the first one don't name it: they have no
marks, and no ranges that were compacted while they were sealed."""

OWNER = "lastword.owner"
OWNER_EPOCH = "lastword.owner.epoch"
OWNER_INCARNATION = "lastword.owner.incarnation"
OWNER_HOST = "lastword.owner.host"
OWNER_PATH = "lastword.owner.path"
PAST_OWNERS = "lastword.owner.past"
MAX_PAST_OWNERS = 64

LIVE_FIELDS = 2_147_000_000
"""Added to a column's field id, it is the id of the live rows' metrics in the manifest entry of a delete file. Iceberg
keeps metrics by field id, and engines ignore ids that they don't know."""
SINCE_FIELD = LIVE_FIELDS
"""The field id of the time of the oldest mark, in the lower bounds."""
FILE_PATH_FIELD = 2_147_483_546
"""Iceberg's field id of the column `file_path` of position-delete files."""

OPERATION = "lastword.operation"
COMMIT_ID = "lastword.commit-id"
COMMITTED_MS = "lastword.committed-ms"
DETAIL_PREFIX = "lastword.detail."

SCHEMA = Schema(
    NestedField(FIELD_IDS["partition"], "partition", IntegerType(), required=True),
    NestedField(FIELD_IDS["offset"], "offset", LongType(), required=True),
    NestedField(FIELD_IDS["timestamp"], "timestamp", TimestamptzType(), required=True),
    NestedField(
        FIELD_IDS["timestamp_type"],
        "timestamp_type",
        IntegerType(),
        required=True,
        doc="-1: the record came without one and has the time of the WAL file's roll, 0: CreateTime, 1: LogAppendTime",
    ),
    NestedField(FIELD_IDS["key"], "key", BinaryType(), required=False),
    NestedField(FIELD_IDS["value"], "value", BinaryType(), required=False),
    NestedField(
        FIELD_IDS["headers"],
        "headers",
        ListType(
            element_id=HEADER_FIELD_IDS["element"],
            element_type=StructType(
                NestedField(HEADER_FIELD_IDS["key"], "key", StringType(), required=True),
                NestedField(HEADER_FIELD_IDS["value"], "value", BinaryType(), required=False),
            ),
            element_required=True,
        ),
        required=False,
    ),
)
PARTITION_SPEC = PartitionSpec(PartitionField(FIELD_IDS["partition"], 1000, IdentityTransform(), "partition"))
SORT_ORDER = SortOrder(
    SortField(FIELD_IDS["offset"], IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST), order_id=1
)

TABLE_PROPERTIES = {
    "format-version": "2",
    # A snapshot is fenced by the one before it, so pyiceberg must neither retry nor look for other conflicts.
    "commit.retry.num-retries": "0",
    "write.delete.isolation-level": "snapshot",
    "write.update.isolation-level": "snapshot",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "10",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "16",
    "write.parquet.compression-codec": "zstd",
    "write.metadata.metrics.default": "counts",
    "write.metadata.metrics.column.partition": "full",
    "write.metadata.metrics.column.offset": "full",
    "write.metadata.metrics.column.timestamp": "full",
    "write.metadata.metrics.column.key": "counts",
    "write.metadata.metrics.column.value": "counts",
    "write.metadata.metrics.column.headers": "counts",
}


def identifier_of(topic: str) -> tuple[str, str]:
    """Return a topic's table: `ns.rest` is `rest` in the namespace `ns`; a name without a dot is in `default`."""
    namespace, dot, rest = topic.partition(".")
    return (namespace, rest) if dot else (DEFAULT_NAMESPACE, topic)


def topic_of(identifier: Sequence[str]) -> str:
    namespace, name = identifier
    return name if namespace == DEFAULT_NAMESPACE else f"{namespace}.{name}"


def topic_properties(topic: TopicInfo) -> dict[str, str]:
    return {
        NAME: topic.name,
        ID: topic.id.hex,
        PARTITIONS: str(topic.partitions),
        STATE: "deleted" if topic.deleted else "live",
        **{CONFIG_PREFIX + key: value for key, value in topic.config.items()},
    }


def check_format(properties: Mapping[str, str]) -> None:
    """Raise StorageError if a newer version has written to a table: this one would misread it."""
    found = properties.get(TABLE_FORMAT, "1")
    if not found.isdigit() or int(found) > FORMAT:
        raise StorageError(
            f"The table of topic {properties.get(NAME, '?')!r} has format {found!r}; this version of Lastword reads up to "
            f"{FORMAT}. Use the version that wrote it, or a newer one."
        )


def topic_from(properties: Mapping[str, str]) -> TopicInfo:
    try:
        return TopicInfo(
            name=properties[NAME],
            id=UUID(properties[ID]),
            partitions=int(properties[PARTITIONS]),
            config={
                key.removeprefix(CONFIG_PREFIX): value
                for key, value in properties.items()
                if key.startswith(CONFIG_PREFIX)
            },
            deleted=properties[STATE] == "deleted",
            owner=owner_from(properties),
            past_owners=tuple(
                PastOwner(folder_id=folder_id, epoch=epoch, sealed_ends=tuple(ends))
                for folder_id, epoch, ends in json.loads(properties.get(PAST_OWNERS, "[]"))
            ),
        )
    except KeyError as error:
        raise UnknownTopicError(f"The table is not a topic: it has no property {error}.") from error


def owner_properties(owner: Owner) -> dict[str, str]:
    return {
        OWNER: owner.folder_id,
        OWNER_EPOCH: str(owner.epoch),
        OWNER_INCARNATION: owner.incarnation,
        OWNER_HOST: owner.host,
        OWNER_PATH: owner.path,
    }


def past_owners_to_json(owners: Sequence[PastOwner]) -> str:
    kept = owners[-MAX_PAST_OWNERS:]
    return json.dumps(
        [[each.folder_id, each.epoch, each.sealed_ends] for each in kept], separators=(",", ":")
    )


def owner_from(properties: Mapping[str, str]) -> Owner | None:
    """Return the folder that owns a table; None if no folder has claimed it yet, as in the first version."""
    if OWNER not in properties:
        return None
    return Owner(
        folder_id=properties[OWNER],
        epoch=int(properties.get(OWNER_EPOCH, "1")),
        incarnation=properties.get(OWNER_INCARNATION, ""),
        host=properties.get(OWNER_HOST, ""),
        path=properties.get(OWNER_PATH, ""),
    )


def positions_to_json(positions: Sequence[Positions]) -> str:
    """Encode one object per partition. Fields with their default value are left out."""
    return json.dumps([_changed_fields(each) for each in positions], separators=(",", ":"))


def positions_from_json(text: str) -> tuple[Positions, ...]:
    return tuple(_positions_from(each) for each in json.loads(text))


def _positions_from(values: Mapping[str, Any]) -> Positions:
    known = {field.name for field in fields(Positions)}
    given = {name: _as_tuples(value) for name, value in values.items() if name in known}
    if "deadlines" in given:
        given["deadlines"] = tuple(Deadline(*each) for each in given["deadlines"])
    if "rounds" in given:
        given["rounds"] = tuple(CompactedRange(*each) for each in given["rounds"])
    if "last_run" in given:
        given["last_run"] = LastRun(*given["last_run"])
    return Positions(**given)


def _changed_fields(positions: Positions) -> dict[str, Any]:
    values = {field.name: (getattr(positions, field.name), field.default) for field in fields(Positions)}
    return {
        name: value for name, (value, default) in values.items() if default is MISSING or value != default
    }


def _as_tuples(value: Any) -> Any:
    return tuple(_as_tuples(each) for each in value) if isinstance(value, list) else value


def snapshot_from(metadata: TableMetadata, snapshot: IcebergSnapshot) -> Snapshot:
    """Convert a snapshot. The current one has the table's positions, which never move down; older ones their own."""
    topic = topic_from(metadata.properties)
    summary = _summary_of(snapshot)
    return Snapshot(
        id=snapshot.snapshot_id,
        parent_id=snapshot.parent_snapshot_id,
        committed_ms=committed_ms_of(snapshot),
        topic=topic,
        positions=_positions_at(metadata, snapshot, topic.partitions),
        operation=summary.get(OPERATION, "foreign"),
        details={
            key.removeprefix(DETAIL_PREFIX): value
            for key, value in summary.items()
            if key.startswith(DETAIL_PREFIX)
        },
    )


def committed_ms_of(snapshot: IcebergSnapshot) -> int:
    return int(_summary_of(snapshot).get(COMMITTED_MS, snapshot.timestamp_ms))


def commit_id_of(snapshot: IcebergSnapshot) -> str | None:
    return _summary_of(snapshot).get(COMMIT_ID)


def _summary_of(snapshot: IcebergSnapshot) -> dict[str, str]:
    return dict(snapshot.summary.additional_properties) if snapshot.summary else {}


def _positions_at(
    metadata: TableMetadata, snapshot: IcebergSnapshot, partitions: int
) -> tuple[Positions, ...]:
    is_current = snapshot.snapshot_id == metadata.current_snapshot_id
    at = None if is_current else snapshot
    # A snapshot that another engine made has no positions: nothing of ours moved with it.
    while at is not None:
        if text := _summary_of(at).get(POSITIONS):
            break
        parent = at.parent_snapshot_id
        at = metadata.snapshot_by_id(parent) if parent is not None else None
    else:
        text = metadata.properties[POSITIONS]
    positions = positions_from_json(text)
    # Partitions that were added since then are at their beginning.
    return positions + (Positions(),) * (partitions - len(positions))


def data_file_from(segment: Segment, spec_id: int) -> DataFile:
    """Return the entry of a segment in a manifest. Keys and values are only counted, so manifests stay small."""
    lower = {
        FIELD_IDS["partition"]: to_bytes(IntegerType(), segment.partition),
        FIELD_IDS["offset"]: to_bytes(LongType(), segment.first_offset),
        FIELD_IDS["timestamp"]: to_bytes(TimestamptzType(), segment.min_timestamp_ms * 1000),
    }
    upper = {
        FIELD_IDS["partition"]: to_bytes(IntegerType(), segment.partition),
        FIELD_IDS["offset"]: to_bytes(LongType(), segment.last_offset),
        FIELD_IDS["timestamp"]: to_bytes(TimestamptzType(), segment.max_timestamp_ms * 1000),
    }
    counted = ("partition", "offset", "timestamp", "timestamp_type", "key", "value")
    nulls = {"key": segment.null_keys, "value": segment.null_values}
    data_file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=segment.path,
        file_format=FileFormat.PARQUET,
        partition=PartitionRecord(segment.partition),
        record_count=segment.records,
        file_size_in_bytes=segment.size_bytes,
        value_counts={FIELD_IDS[name]: segment.records for name in counted},
        null_value_counts={FIELD_IDS[name]: nulls.get(name, 0) for name in counted},
        lower_bounds=lower,
        upper_bounds=upper,
        sort_order_id=SORT_ORDER.order_id,
    )
    data_file.spec_id = spec_id
    return data_file


def segment_from(data_file: DataFile) -> Segment:
    lower, upper, nulls = data_file.lower_bounds, data_file.upper_bounds, data_file.null_value_counts
    try:
        return Segment(
            path=data_file.file_path,
            partition=int(data_file.partition[0]),
            first_offset=_long(lower[FIELD_IDS["offset"]]),
            last_offset=_long(upper[FIELD_IDS["offset"]]),
            records=data_file.record_count,
            size_bytes=data_file.file_size_in_bytes,
            min_timestamp_ms=_long(lower[FIELD_IDS["timestamp"]]) // 1000,
            max_timestamp_ms=-(-_long(upper[FIELD_IDS["timestamp"]]) // 1000),
            null_keys=nulls[FIELD_IDS["key"]],
            null_values=nulls[FIELD_IDS["value"]],
        )
    except (KeyError, TypeError) as error:
        raise StorageError(
            f"The file {data_file.file_path} was added by another engine without metrics for offset, timestamp, "
            "key and value. Roll the table back, and write with the table's metrics properties."
        ) from error


def delete_file_from(segment: Segment, spec_id: int) -> DataFile:
    """Return the entry of a segment's marks in a manifest. It has the metrics of the live rows, so that none is read."""
    assert segment.marks is not None
    (file,) = segment.marks.files
    path = to_bytes(StringType(), segment.path)
    offset, timestamp = LIVE_FIELDS + FIELD_IDS["offset"], LIVE_FIELDS + FIELD_IDS["timestamp"]
    data_file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        partition=PartitionRecord(segment.partition),
        record_count=file.records,
        file_size_in_bytes=file.size_bytes,
        value_counts={offset: segment.records},
        null_value_counts={
            LIVE_FIELDS + FIELD_IDS["key"]: segment.null_keys,
            LIVE_FIELDS + FIELD_IDS["value"]: segment.null_values,
        },
        lower_bounds={
            FILE_PATH_FIELD: path,
            offset: to_bytes(LongType(), segment.first_offset),
            timestamp: to_bytes(LongType(), segment.min_timestamp_ms),
            SINCE_FIELD: to_bytes(LongType(), segment.marks.since_ms),
        },
        # The same path at both ends tells every engine that the rows are of this file alone.
        upper_bounds={
            FILE_PATH_FIELD: path,
            offset: to_bytes(LongType(), segment.last_offset),
            timestamp: to_bytes(LongType(), segment.max_timestamp_ms),
        },
    )
    data_file.spec_id = spec_id
    return data_file


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedDeletes:
    """A position-delete file as a manifest lists it."""

    file: DeleteFile
    target: str | None
    """The data file whose rows it lists, if there is only one."""
    data_file: DataFile

    def applied_to(self, whole: Segment) -> Segment | None:
        """Return the segment with these marks, if the entry has the metrics of the live rows: it is one of ours."""
        offset, timestamp = LIVE_FIELDS + FIELD_IDS["offset"], LIVE_FIELDS + FIELD_IDS["timestamp"]
        lower, upper = self.data_file.lower_bounds or {}, self.data_file.upper_bounds or {}
        nulls = self.data_file.null_value_counts or {}
        try:
            records = self.data_file.value_counts[offset]
            return replace(
                whole,
                first_offset=_long(lower[offset]),
                last_offset=_long(upper[offset]),
                records=records,
                size_bytes=live_bytes(whole, records),
                min_timestamp_ms=_long(lower[timestamp]),
                max_timestamp_ms=_long(upper[timestamp]),
                null_keys=nulls[LIVE_FIELDS + FIELD_IDS["key"]],
                null_values=nulls[LIVE_FIELDS + FIELD_IDS["value"]],
                marks=Marks(files=(self.file,), whole=whole, since_ms=_long(lower[SINCE_FIELD])),
            )
        except (KeyError, TypeError):
            return None


def live_bytes(whole: Segment, records: int) -> int:
    """Return the share that some live records have in the bytes of a segment's file."""
    return whole.size_bytes * records // whole.records if whole.records else 0


def listed_deletes(data_file: DataFile) -> ListedDeletes:
    """Convert the entry of a delete file. Raise StorageError if it is of a kind that only other engines read."""
    is_position_deletes = data_file.content == DataFileContent.POSITION_DELETES
    if not is_position_deletes or data_file.file_format != FileFormat.PARQUET:
        kind = "deletion vectors" if is_position_deletes else "equality deletes"
        raise StorageError(
            f"The table has {kind} ({data_file.file_path}), which another engine wrote. Lastword reads position deletes "
            "in Parquet files. Roll the table back, or let that engine rewrite the data files."
        )
    lower = (data_file.lower_bounds or {}).get(FILE_PATH_FIELD)
    upper = (data_file.upper_bounds or {}).get(FILE_PATH_FIELD)
    target = lower.decode() if lower is not None and lower == upper else None
    return ListedDeletes(
        file=DeleteFile(
            path=data_file.file_path,
            size_bytes=data_file.file_size_in_bytes,
            records=data_file.record_count,
            is_shared=target is None,
        ),
        target=target,
        data_file=data_file,
    )


def _long(bound: bytes) -> int:
    return int(from_bytes(LongType(), bound))
