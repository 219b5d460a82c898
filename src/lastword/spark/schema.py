"""The columns of a topic as Spark knows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from lastword.errors import InvalidError
from lastword.spark.options import ALL_COLUMNS

_HEADER: Final = StructType(
    [StructField("key", StringType(), nullable=False), StructField("value", BinaryType())]
)
_TYPES: Final[dict[str, tuple[DataType, bool]]] = {
    "partition": (IntegerType(), False),
    "offset": (LongType(), False),
    "timestamp": (TimestampType(), True),
    "key": (BinaryType(), True),
    "value": (BinaryType(), True),
    "headers": (ArrayType(_HEADER, containsNull=False), True),
    "timestamp_type": (IntegerType(), False),
}

_WRITABLE: Final = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "timestamp": ("timestamp",),
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
}


def read_schema(columns: Sequence[str]) -> StructType:
    """Return the schema of a read."""
    return StructType([StructField(name, *_TYPES[name]) for name in columns])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for a read. Raise InvalidError for unknown columns or wrong types."""
    for each in schema.fields:
        if each.name not in _TYPES:
            raise InvalidError(
                f"the schema has a column {each.name!r}; allowed: some of {', '.join(ALL_COLUMNS)}"
            )
        expected = _TYPES[each.name][0]
        if _plain(each.dataType) != _plain(expected):
            raise InvalidError(
                f"the schema has {each.name!r} as {each.dataType.simpleString()}; allowed: {expected.simpleString()}"
            )
    return to_arrow_schema(schema, timezone="UTC")


def check_writable(schema: StructType) -> None:
    """Raise InvalidError if rows with these columns can't be appended."""
    given = {each.name: _plain(each.dataType) for each in schema.fields}
    for name in ("key", "value"):
        if name not in given:
            raise InvalidError(f"there is no column {name!r} to write; key and value are needed")
    for name, own_type in given.items():
        if name not in _WRITABLE:
            raise InvalidError(f"a column {name!r} can't be written; allowed: {', '.join(_WRITABLE)}")
        if own_type not in _WRITABLE[name]:
            raise InvalidError(f"column {name!r} is {own_type}; allowed: {' or '.join(_WRITABLE[name])}")


def _plain(given: Any) -> str:
    return str(given.simpleString())
