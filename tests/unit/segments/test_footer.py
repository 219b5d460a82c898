"""What a segment file says of itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lastword.batch import decode, encode
from lastword.errors import CorruptError, StorageError
from lastword.record import NewRecord
from lastword.segments.model import Segment
from lastword.segments.parquet import SegmentFiles
from lastword.segments.raw import RawSegment

READS: dict[str, Callable[[SegmentFiles, Segment], object]] = {
    "records": lambda files, segment: list(files.read(segment)),
    "stream": lambda files, segment: list(files.stream(segment, ["offset"])),
    "times": lambda files, segment: list(files.times(segment, 0, 2)),
    "count": lambda files, segment: files.count(segment, 1, 2),
    "columns": lambda files, segment: RawSegment(files, segment),
}


@pytest.fixture
def files(tmp_path: Path) -> SegmentFiles:
    return SegmentFiles(location=tmp_path.as_uri(), properties={})


def written(files: SegmentFiles, **metadata: bytes) -> Segment:
    """A segment of three records, with other metadata in its footer."""
    records = [NewRecord(key=b"%d" % number, value=b"v", timestamp_ms=1) for number in range(3)]
    with files.writer(0, 0, "job") as writer:
        writer.write(decode(encode(records, now_ms=1)))
        segment = writer.close()
    assert segment is not None
    path = segment.path.removeprefix("file://")
    rows = pq.read_table(path)
    changed = {name.replace("_", ".").encode(): value for name, value in metadata.items()}
    pq.write_table(rows.replace_schema_metadata({**(rows.schema.metadata or {}), **changed}), path)
    return segment


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("version", [b"2", b"17"])
def test_a_format_that_is_not_known_is_not_read(files: SegmentFiles, read: str, version: bytes) -> None:
    segment = written(files, lastword_segment_format=version)
    with pytest.raises(StorageError, match=f"has format {version.decode()}; .* reads up to 1") as raised:
        READS[read](files, segment)
    assert not isinstance(raised.value, CorruptError)
    assert segment.path in str(raised.value)


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("version", [b"", b"0", b"x", b"-1", b"\xff"])
def test_a_format_that_makes_no_sense_is_damage(files: SegmentFiles, read: str, version: bytes) -> None:
    segment = written(files, lastword_segment_format=version)
    with pytest.raises(CorruptError, match="its footer names the format"):
        READS[read](files, segment)


@pytest.mark.parametrize("read", READS)
def test_the_format_that_is_written_is_read(files: SegmentFiles, read: str) -> None:
    READS[read](files, written(files))


def test_a_footer_that_makes_no_sense_is_damage(files: SegmentFiles) -> None:
    segment = written(files, **{"lastword_segment_null-values": b"["})
    with pytest.raises(CorruptError, match="its footer can't be read"):
        RawSegment(files, segment)


def test_rows_without_a_timestamp(files: SegmentFiles) -> None:
    from lastword.segments.rows import has_timestamp, timestamps

    moment = pa.scalar(5, pa.timestamp("us", tz="UTC"))
    rows = pa.table(
        {
            "timestamp": pa.array([moment.as_py(), moment.as_py(), None], pa.timestamp("us", tz="UTC")),
            "timestamp_type": pa.array([0, -1, -1], pa.int32()),
        }
    )
    assert has_timestamp(rows).tolist() == [True, False, False]
    assert timestamps(rows).is_valid().to_pylist() == [True, False, False]
