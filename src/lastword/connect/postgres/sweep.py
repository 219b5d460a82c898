"""Finds the rows that a topic has and the table does not, where no change says that they are gone.

Needed after a reset, because rows may have been deleted since the old position, and when partitions of a table were
truncated, dropped or detached. The keys of the topic are looked up in the table, some at a time, by the table's own
index. A key that is not of the table, such as one of another writer, has no row in it either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from lastword.connect.postgres.database import Table
from lastword.connect.postgres.pgoutput import Value
from lastword.connect.postgres.rows import Shape
from lastword.connect.postgres.snapshot import SnapshotReader

KEYS: Final = 5_000
"""The number of keys that are looked up together."""


def keys_without_rows(
    reader: SnapshotReader, table: Table, shape: Shape, keys: Iterable[bytes]
) -> Iterator[list[bytes]]:
    """Yield the keys without a row in the table, as one list, maybe empty, for each group that is looked up."""
    waiting = iter(keys)
    while some := list(islice(waiting, KEYS)):
        texts = {key: found for key in some if (found := shape.key_texts(key)) is not None}
        there = _keys_of_rows(reader, table, shape, list(texts.values()))
        yield [key for key in some if key not in there]


def _keys_of_rows(
    reader: SnapshotReader, table: Table, shape: Shape, keys: Sequence[Sequence[str]]
) -> set[bytes]:
    """Return the keys, as the topic has them, of the rows that are found by their texts.

    They are built from the rows found: two texts may be the same to PostgreSQL (1.0 and 1.00), but are two keys.
    """
    found: set[bytes] = set()
    for row in reader.rows_of_keys(table, keys):
        values: list[Value] = [None] * len(shape.names)
        for index, text in zip(shape.key_indexes, row, strict=True):
            values[index] = text.encode()
        found.add(shape.key(values))
    return found
