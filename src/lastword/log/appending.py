"""Checks batches, writes them to the partitions of a topic, and acknowledges them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from lastword import batch, metrics
from lastword.batch import Limits
from lastword.errors import InvalidRecordError, LastwordError, PartlyAppendedError, WriteFailedError
from lastword.wal.writer import PartitionWriter, Produced

Batches = Mapping[int, Sequence[bytes | memoryview]]
"""Record batches by the partition that they go to."""


def append_batches(
    topic: str,
    batches: Batches,
    writer: Callable[[int], PartitionWriter],
    *,
    limits: Limits,
    check_owned: Callable[[], None],
) -> dict[int, range]:
    """Check all batches, then write them. Return the offset range that the batches of each partition got."""
    for own in batches.values():
        for data in own:
            batch.validate(data, limits)
    writers = {partition: writer(partition) for partition in batches}
    for each in writers.values():
        # Checked before anything is written, so that nothing is.
        if each.failed is not None:
            raise WriteFailedError(each.failed)
    offsets: dict[int, range] = {}
    failed: LastwordError | None = None
    for partition, own in batches.items():
        try:
            offsets[partition] = writers[partition].stage_all(own, append_time_ms=_append_time_ms(limits))
        except LastwordError as error:
            failed = error
            break
    for partition, span in list(offsets.items()):
        try:
            writers[partition].wait_durable(span.stop)
        except LastwordError as error:
            failed = failed or error
            del offsets[partition]
    # A sync may take long. If another folder took the topic meanwhile, nothing is acknowledged.
    check_owned()
    metrics.RECORDS_APPENDED.labels(topic).inc(sum(map(len, offsets.values())))
    metrics.BYTES_APPENDED.labels(topic).inc(sum(len(data) for each in offsets for data in batches[each]))
    if failed is not None:
        raise _partly(offsets, batches.keys() - offsets.keys(), failed) if offsets else failed
    return offsets


def append_produced(
    topic: str,
    data: bytes | memoryview,
    writer: PartitionWriter,
    *,
    limits: Limits,
    check_owned: Callable[[], None],
) -> int:
    """Append one batch as a Kafka producer made it, unless the log has it already.

    Return the offset of its first record.
    """
    batch.validate(data, limits)
    header = batch.read_header(data)
    assert header is not None
    (result,) = writer.stage_produced([Produced(header, bytearray(data), _append_time_ms(limits), None)])
    if isinstance(result, InvalidRecordError):
        raise result
    writer.wait_durable(result.end_offset)
    check_owned()
    if not result.is_duplicate:
        metrics.RECORDS_APPENDED.labels(topic).inc(header.record_count)
        metrics.BYTES_APPENDED.labels(topic).inc(len(data))
    return result.base_offset


def _append_time_ms(limits: Limits) -> int | None:
    return limits.now_ms if limits.log_append_time else None


def _partly(
    appended: Mapping[int, range], others: Iterable[int], failed: LastwordError
) -> PartlyAppendedError:
    places = ", ".join(f"{each} (offsets {own.start} to {own.stop - 1})" for each, own in appended.items())
    left = ", ".join(map(str, sorted(others)))
    return PartlyAppendedError(
        f"The records for partition {places} were appended, those for partition {left} were not acknowledged: {failed} "
        f"Resend only the latter; some records of a failed partition may turn out to be in the log.",
        appended={each: (own.start, own.stop - 1) for each, own in appended.items()},
    )
