"""Marked rows are gone for every reader, ours and others, and come back for none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record as PartitionRecord
from tests.support.marks import commit_entries, commit_foreign_deletes, mark_offsets, marked
from tests.support.other_engines import ENGINES, read_by
from tests.support.s3 import S3Server
from tests.support.segments import (
    START_MS,
    Place,
    append,
    local_place,
    new_topic,
    offsets_of,
    records,
    write_segment,
)

from lastword.errors import ConflictError, CorruptError, StorageError
from lastword.segments.model import Segment, SegmentGoneError
from lastword.segments.raw import RawSegment
from lastword.segments.sketch import Sketches
from lastword.segments.table import SegmentTable


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place = local_place(tmp_path)
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3")
        place.root = f"{server.bucket}/{uuid4().hex}"
        place.warehouse = f"s3://{place.root}"
        place.properties |= server.properties
        place.file_system = server.file_system()
    yield place
    place.close()


@pytest.fixture
def table(place: Place) -> SegmentTable:
    return place.open().create(new_topic())


def seen_by_all(place: Place, table: SegmentTable) -> list[int]:
    """The offsets that every engine sees in the first partition; all must see the same."""
    ours = offsets_of(table, table.snapshot())
    assert offsets_of(place.open().load("events"), table.snapshot()) == ours
    # The others are not told how to reach the object store.
    for engine in ["pyiceberg"] if place.warehouse.startswith("s3:") else ENGINES:
        found = read_by(engine, place.properties, "events")
        assert [offset for partition, offset in found if partition == 0] == ours, engine
    return ours


def only(table: SegmentTable) -> Segment:
    (segment,) = table.plan(table.snapshot(), 0)
    return segment


def test_marked_rows_are_gone_for_everyone(place: Place, table: SegmentTable) -> None:
    append(table, 0, 100)
    append(table, 100, 50)

    mark_offsets(table, [0, 7, 8, 99, 120])
    gone = {0, 7, 8, 99, 120}
    assert seen_by_all(place, table) == [each for each in range(150) if each not in gone]

    # Again: the new delete file has the earlier marks too, and takes the place of the first.
    mark_offsets(table, [1, 50])
    gone |= {1, 50}
    assert seen_by_all(place, table) == [each for each in range(150) if each not in gone]
    first, second = table.plan(table.snapshot(), 0)
    assert first.marks is not None and second.marks is not None
    assert [each.records for each in first.marks.files] == [6]
    assert [each.records for each in second.marks.files] == [1]


def test_counts_and_bounds_are_those_of_the_live_rows(place: Place, table: SegmentTable) -> None:
    batch = records(
        10,
        6,
        keys=[b"a", None, b"b", b"c", None, b"d"],
        values=[b"v", b"v", None, None, b"v", b"v"],
        timestamps_ms=[START_MS + each for each in (500, 100, 200, 900, 300, 400)],
    )
    segment = write_segment(table, batch)
    base = table.snapshot()
    table.append(base, [segment], {0: replace(base.positions[0], sealed_end=16)}, operation="seal")
    mark_offsets(table, [10, 11, 13, 15])
    # As this process has noted it, and as another one reads it from the manifest.
    for found in (only(table), only(place.open().load("events"))):
        assert (found.first_offset, found.last_offset, found.records) == (12, 14, 2)
        assert (found.null_keys, found.null_values) == (1, 1)
        assert (found.min_timestamp_ms, found.max_timestamp_ms) == (START_MS + 200, START_MS + 300)
        assert (found.rows, found.whole) == (6, segment)
        assert found.size_bytes == segment.size_bytes * 2 // 6
        assert found.marks is not None
        assert found.file_bytes == segment.size_bytes + found.marks.files[0].size_bytes
        assert found.marks.since_ms == 1


def test_every_way_to_read_a_segment_leaves_marked_rows_out(table: SegmentTable) -> None:
    segment = write_segment(
        table, records(0, 40_000, values=[None if each % 5 == 0 else b"v" for each in range(40_000)])
    )
    gone = {*range(3, 20_000, 7), *range(16_384, 32_768), 39_999}
    left = [each for each in range(40_000) if each not in gone]
    segment = marked(table, segment, gone)
    files = table.files
    assert [o for batch in files.read(segment) for o in batch.column("offset").to_pylist()] == left
    assert [
        o for batch in files.read(segment, ["key", "offset"], 30_000) for o in batch.column(1).to_pylist()
    ] == [each for each in left if each >= 30_000]
    assert [o for batch in files.stream(segment) for o in batch.column("offset").to_pylist()] == left
    assert np.concatenate([offsets for offsets, _ in files.times(segment, 5, 39_000)]).tolist() == [
        each for each in left if 5 <= each < 39_000
    ]
    assert files.count(segment, 5, 39_000) == len([each for each in left if 5 <= each < 39_000])
    with RawSegment(files, segment) as raw:
        assert raw.columns(["offset"]).column("offset").to_pylist() == left
        assert raw.positions().tolist() == left
        assert sum(group.rows for group in raw.row_groups) == len(left) == segment.records
        for group in raw.row_groups:
            rows = raw.rows(group)
            assert rows.column("offset").to_pylist() == left[group.first_row : group.first_row + group.rows]
            nulls = rows.column("value").is_null().to_numpy()
            assert raw.without_value(group).tolist() == nulls.tolist()
            assert group.null_values == nulls.sum()
            mask = np.zeros(len(left), np.uint8)
            mask[group.first_row : group.first_row + group.rows : 3] = 1
            assert (
                raw.kept(group, mask).column("offset").to_pylist() == rows.column("offset").to_pylist()[::3]
            )
    assert segment.null_values == sum(each % 5 == 0 for each in left)


def test_sketches_count_the_live_keys(table: SegmentTable) -> None:
    segment = write_segment(table, records(0, 1_000, keys=[b"key-%d" % each for each in range(1_000)]))
    half = marked(table, segment, range(500))
    assert abs(Sketches(table.files).distinct_keys([segment]) - 1_000) < 50
    assert abs(Sketches(table.files).distinct_keys([half]) - 500) < 25


def test_marks_go_with_their_file(place: Place, table: SegmentTable) -> None:
    append(table, 0, 10)
    append(table, 10, 10)
    mark_offsets(table, [3, 13])
    base = table.snapshot()
    first, second = table.plan(base, 0)
    assert first.marks is not None and second.marks is not None
    rewritten = write_segment(table, records(0, 3), job_id="job-3")
    table.replace(base, [first], [rewritten], {}, operation="compact")
    assert seen_by_all(place, table) == [0, 1, 2, *(each for each in range(10, 20) if each != 13)]
    summary = table._table.metadata.current_snapshot().summary.additional_properties
    assert (summary["total-delete-files"], summary["total-position-deletes"]) == ("1", "1")
    assert summary["total-data-files"] == "2"
    table.expire(retention_ms=None)
    place.clock.move(10_000)
    gone = table.collect(grace_ms=None).files
    assert first.path in gone and first.marks.files[0].path in gone
    assert second.path not in gone and second.marks.files[0].path not in gone
    assert len(seen_by_all(place, table)) == 12


def test_an_older_snapshot_shows_what_was_there(table: SegmentTable) -> None:
    append(table, 0, 10)
    before = table.snapshot()
    mark_offsets(table, [3])
    between = table.snapshot()
    mark_offsets(table, [4])
    assert offsets_of(table, before) == list(range(10))
    assert 3 not in offsets_of(table, between) and 4 in offsets_of(table, between)


def test_other_marks_are_a_conflict(table: SegmentTable) -> None:
    append(table, 0, 10)
    base, segment = table.snapshot(), only(table)
    planned = marked(table, segment, [1])
    mark_offsets(table, [2])
    with pytest.raises(ConflictError):
        table.replace(base, [segment], [planned], {}, operation="compact")
    with pytest.raises(ConflictError, match="no longer in snapshot"):
        table.replace(table.snapshot(), [segment], [planned], {}, operation="compact")
    assert 1 in offsets_of(table, table.snapshot())


def test_a_damaged_or_missing_delete_file_is_reported_and_brings_nothing_back(
    place: Place, table: SegmentTable
) -> None:
    append(table, 0, 1_000)
    mark_offsets(table, range(0, 1_000, 3))
    segment = only(table)
    assert segment.marks is not None
    path = segment.marks.files[0].path
    whole = place.read_bytes(path)
    for at in range(4, len(whole) - 4, max(1, len(whole) // 150)):
        place.write_bytes(path, whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        fresh = place.open().load("events")
        try:
            assert offsets_of(_uncached(fresh), fresh.snapshot()) == [e for e in range(1_000) if e % 3]
        except CorruptError as error:
            assert path in str(error)
    place.remove_file(path)
    with pytest.raises(SegmentGoneError, match="deletes"):
        offsets_of(_uncached(table), table.snapshot())


def _uncached(table: SegmentTable) -> SegmentTable:
    from lastword.segments import marks

    marks._cache = marks._Cache()
    return table


# --------------------------------------------------------------------------------------------- other engines


@pytest.mark.parametrize("bounded", [False, True])
def test_delete_files_of_other_engines_are_honoured(place: Place, table: SegmentTable, bounded: bool) -> None:
    append(table, 0, 10)
    append(table, 10, 10)
    first, second = table.plan(table.snapshot(), 0)
    commit_foreign_deletes(
        table,
        [{first.path: [0, 9], second.path: [3]}, {first.path: [9, 1], "file:///gone/long/ago.parquet": [5]}],
        bounded=bounded,
    )
    assert seen_by_all(place, table) == [*range(2, 9), 10, 11, 12, *range(14, 20)]
    found = table.plan(table.snapshot(), 0)
    assert [each.records for each in found] == [7, 9]
    assert (found[0].first_offset, found[0].last_offset) == (2, 8)


def test_our_marks_take_the_place_of_shared_ones(place: Place, table: SegmentTable) -> None:
    append(table, 0, 10)
    append(table, 10, 10)
    append(table, 20, 10)
    first, second, _ = table.plan(table.snapshot(), 0)
    commit_foreign_deletes(table, [{first.path: [0], second.path: [3]}])
    mark_offsets(table, [5])
    left = [each for each in range(30) if each not in (0, 5, 13)]
    assert seen_by_all(place, table) == left
    # Each has its own file now, so that either can be replaced without the other.
    for segment in table.plan(table.snapshot(), 0)[:2]:
        assert segment.marks is not None
        assert [each.is_shared for each in segment.marks.files] == [False]
    mark_offsets(table, [15])
    assert seen_by_all(place, table) == [each for each in left if each != 15]


@pytest.mark.parametrize("kind", ["equality deletes", "deletion vectors"])
def test_other_kinds_of_deletes_are_refused_by_name(table: SegmentTable, kind: str) -> None:
    append(table, 0, 10)
    is_equality = kind == "equality deletes"
    entry = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES if is_equality else DataFileContent.POSITION_DELETES,
        file_path=f"{table.location}/data/other",
        file_format=FileFormat.PARQUET if is_equality else "PUFFIN",
        partition=PartitionRecord(0),
        record_count=1,
        file_size_in_bytes=1,
        equality_ids=[5] if is_equality else None,
    )
    entry.spec_id = 0
    commit_entries(table, [entry])
    with pytest.raises(StorageError, match=kind):
        table.plan(table.snapshot())


def test_a_file_of_another_engine_in_any_order(place: Place, table: SegmentTable) -> None:
    append(table, 0, 10)
    segment = only(table)
    # Another engine has written the same rows, backwards and without our footer.
    stream = table.files.file_io().new_input(segment.path).open()
    with stream:
        rows = pq.read_table(stream).replace_schema_metadata(None).take(list(reversed(range(10))))
    path = segment.path.replace(".parquet", "-other.parquet")
    with table.files.file_io().new_output(path).create() as out:
        pq.write_table(rows, out)
        size_bytes = out.tell()
    base = table.snapshot()
    table.replace(
        base, [segment], [replace(segment, path=path, size_bytes=size_bytes)], {}, operation="other"
    )
    # The positions are those in the file: 0 is offset 9.
    commit_foreign_deletes(table, [{path: [0, 2]}])
    assert seen_by_all(place, table) == [0, 1, 2, 3, 4, 5, 6, 8]
    with RawSegment(table.files, only(table)) as raw:
        assert raw.columns(["offset"]).column("offset").to_pylist() == [0, 1, 2, 3, 4, 5, 6, 8]
