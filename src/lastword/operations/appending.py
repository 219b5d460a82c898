"""Appending records. The caller bounds their number and size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lastword.errors import InvalidError
from lastword.record_json import Json, Parsed

if TYPE_CHECKING:
    from lastword.log import Log


def append_records(
    log: Log,
    name: str,
    records: Sequence[Parsed],
    *,
    partition: int | None = None,
    compression: str = "none",
    check_only: bool = False,
) -> Json:
    """Append records after checking all of them. If one is invalid, none is appended.

    If a disk fails after some partitions have been written, the problem's `appended` lists them and the offsets that
    their records got. A request that got no answer may have been carried out, wholly or in part.
    """
    from lastword.batch import Compression

    topic = log.topic(name)
    compressions = {each.name.lower(): each for each in Compression}
    if compression not in compressions:
        raise InvalidError(f"compression is {compression!r}; allowed: {', '.join(compressions)}")
    given = [each.record for each in records]
    targets = [each.partition if partition is None else partition for each in records]
    if check_only:
        topic.check_many(given, partition=targets)
        return {"topic": name, "positions": []}
    positions = topic.append_many(given, partition=targets, compression=compressions[compression])
    return {
        "topic": name,
        "positions": [{"partition": each.partition, "offset": each.offset} for each in positions],
    }
