"""The columns of a segment file, in Arrow's terms, with Iceberg's field ids."""

from __future__ import annotations

import pyarrow as pa

from lastword.record import PAYLOAD_SCHEMA
from lastword.segments.footer import OWN_METADATA

FIELD_IDS = {
    "partition": 1,
    "offset": 2,
    "timestamp": 3,
    "timestamp_type": 4,
    "key": 5,
    "value": 6,
    "headers": 7,
}
HEADER_FIELD_IDS = {"element": 8, "key": 9, "value": 10}


def _with_id(field: pa.Field, field_id: int) -> pa.Field:
    return field.with_metadata({b"PARQUET:field_id": str(field_id).encode()})


def _file_schema() -> pa.Schema:
    header = pa.struct(
        [
            _with_id(pa.field("key", pa.string(), nullable=False), HEADER_FIELD_IDS["key"]),
            _with_id(pa.field("value", pa.binary()), HEADER_FIELD_IDS["value"]),
        ]
    )
    headers = pa.list_(_with_id(pa.field("element", header, nullable=False), HEADER_FIELD_IDS["element"]))
    types = {field.name: field.type for field in PAYLOAD_SCHEMA} | {
        "partition": pa.int32(),
        "headers": headers,
    }
    optional = {"key", "value", "headers"}
    return pa.schema(
        [
            _with_id(pa.field(name, types[name], nullable=name in optional), field_id)
            for name, field_id in FIELD_IDS.items()
        ],
        metadata=OWN_METADATA,
    )


FILE_SCHEMA = _file_schema()
