"""What every catalog and every storage must do: one suite, run over each of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pafs
import pytest
from pyiceberg.exceptions import CommitFailedException
from tests.support.s3 import S3Server
from tests.support.segments import (
    START_MS,
    Place,
    append,
    bare,
    local_place,
    new_topic,
    offsets_of,
    records,
    write_segment,
)

from lastword.errors import (
    ConflictError,
    CorruptError,
    InvalidTopicError,
    StorageError,
    TopicExistsError,
    UnknownPartitionError,
    UnknownTopicError,
)
from lastword.folder import steps
from lastword.record import PAYLOAD_SCHEMA, TimestampType
from lastword.segments.catalog import SegmentCatalog
from lastword.segments.commit import Change, commit
from lastword.segments.fileio import SyncedFileIO
from lastword.segments.model import Collected, Positions, SegmentGoneError, retry_on_conflict
from lastword.segments.scan import STREAM_ROWS
from lastword.segments.table import SegmentTable


@pytest.fixture(params=["local", "s3", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    place = local_place(tmp_path)
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3")
        place.root = f"{server.bucket}/{uuid4().hex}"
        place.warehouse = f"s3://{place.root}"
        place.properties |= server.properties
        place.file_system = server.file_system()
    elif request.param == "postgres":
        place.properties["uri"] = request.getfixturevalue("postgres_uri")
    yield place
    if request.param == "postgres":
        # The database outlives a test; what a test made must not be there in the next one.
        catalog = place.open()
        for name in catalog.list():
            catalog.drop(name, catalog.place(name).topic_id)
    place.close()


@pytest.fixture
def catalog(place: Place) -> SegmentCatalog:
    return place.open()


@pytest.fixture
def table(catalog: SegmentCatalog) -> SegmentTable:
    return catalog.create(new_topic())


def remove(catalog: SegmentCatalog, name: str) -> None:
    """Drop a topic and remove its files."""
    found = catalog.place(name)
    catalog.drop(name, found.topic_id)
    catalog.remove_files(found.location, found.topic_id)


class TestCatalog:
    def test_a_created_topic_is_found_with_all_that_was_given(
        self, place: Place, catalog: SegmentCatalog
    ) -> None:
        topic = replace(new_topic("orders", 3), config={"cleanup.policy": "compact", "retention.ms": "-1"})

        created = catalog.create(topic)

        loaded = place.open().load("orders")
        for snapshot in (created.snapshot(), loaded.snapshot()):
            assert snapshot.id is not None
            assert snapshot.topic == topic
            assert snapshot.positions == (Positions(),) * 3
            assert snapshot.operation == "create"
            assert snapshot.committed_ms == START_MS
        assert loaded.location == f"{created.location}"
        assert loaded.location.endswith(f"/default/orders/{topic.id.hex}")
        assert loaded.plan(loaded.snapshot()) == []

    def test_names_with_dots_dashes_and_underscores_are_kept_apart(self, catalog: SegmentCatalog) -> None:
        names = ["a", "a-b", "a.b", "a.b.c", "a.b_c", "a_b", "a_b.c", "x.a"]
        for name in names:
            catalog.create(new_topic(name))

        assert catalog.list() == sorted(names)
        locations = {catalog.load(name).location for name in names}
        assert len(locations) == len(names)
        assert [catalog.load(name).snapshot().topic.name for name in names] == names

    def test_a_name_that_is_taken_is_refused_and_leaves_nothing(
        self, place: Place, catalog: SegmentCatalog
    ) -> None:
        table = catalog.create(new_topic("events"))
        before = place.files()

        with pytest.raises(TopicExistsError):
            catalog.create(new_topic("events"))

        assert place.files() == before
        assert table.snapshot().operation == "create"

    def test_a_name_that_is_taken_in_the_last_moment_is_refused_and_leaves_nothing(
        self, place: Place, catalog: SegmentCatalog
    ) -> None:
        winner = new_topic("events")

        def another_is_faster(step: str) -> None:
            if step == "create.before":
                steps.install(None)
                place.open().create(winner)

        steps.install(another_is_faster)
        try:
            with pytest.raises(TopicExistsError):
                catalog.create(new_topic("events"))
        finally:
            steps.install(None)

        assert catalog.load("events").snapshot().topic == winner
        assert all(winner.id.hex in path for path in place.files())

    def test_unknown_topics(self, catalog: SegmentCatalog) -> None:
        with pytest.raises(UnknownTopicError):
            catalog.load("nobody")
        with pytest.raises(UnknownTopicError):
            catalog.load("no.body")

    def test_drop_leaves_nothing_of_the_topic_and_all_of_its_neighbours(
        self, place: Place, catalog: SegmentCatalog
    ) -> None:
        neighbour, doomed = catalog.create(new_topic("foo-bar")), catalog.create(new_topic("foo"))
        append(neighbour, 0)
        append(doomed, 0)
        of_neighbour = place.files(neighbour.location)

        place_of_doomed = catalog.place("foo")
        remove(catalog, "foo")
        catalog.drop("foo", place_of_doomed.topic_id)
        catalog.remove_files(place_of_doomed.location, place_of_doomed.topic_id)

        assert catalog.list() == ["foo-bar"]
        assert place.files() == of_neighbour
        with pytest.raises(UnknownTopicError):
            doomed.snapshot()
        assert offsets_of(neighbour, neighbour.snapshot()) == list(range(10))

    def test_drop_removes_empty_folders(self, place: Place, catalog: SegmentCatalog) -> None:
        if not isinstance(place.file_system, pafs.LocalFileSystem):
            pytest.skip("object stores have no folders")
        catalog.create(new_topic("ns.foo"))
        remove(catalog, "ns.foo")
        assert not (Path(place.root) / "ns").exists()

    def test_a_drop_that_comes_late_leaves_the_topic_that_was_created_again(
        self, place: Place, catalog: SegmentCatalog
    ) -> None:
        old, new = new_topic("foo"), new_topic("foo")
        append(catalog.create(old), 0)

        def another_is_faster(step: str) -> None:
            if step == "drop.looked":
                steps.install(None)
                other = place.open()
                remove(other, "foo")
                append(other.create(new), 0)

        steps.install(another_is_faster)
        try:
            catalog.drop("foo", old.id)
        finally:
            steps.install(None)
        catalog.drop("foo", old.id)

        table = catalog.load("foo")
        assert table.snapshot().topic == new
        assert offsets_of(table, table.snapshot()) == list(range(10))

    def test_a_commit_that_comes_between_does_not_keep_a_topic(
        self, place: Place, catalog: SegmentCatalog
    ) -> None:
        topic = new_topic("foo")
        catalog.create(topic)

        def another_commits(step: str) -> None:
            if step == "drop.looked":
                steps.install(None)
                append(place.open().load("foo"), 0)

        steps.install(another_commits)
        try:
            catalog.drop("foo", topic.id)
        finally:
            steps.install(None)
        assert catalog.list() == []

    def test_files_are_removed_from_a_place_of_one_topic_alone(
        self, place: Place, catalog: SegmentCatalog
    ) -> None:
        topic = new_topic("foo")
        table = catalog.create(topic)
        before = place.files()
        for location in (place.warehouse, table.location.removesuffix(f"/{topic.id.hex}")):
            with pytest.raises(StorageError, match="not the location of a single topic"):
                catalog.remove_files(location, topic.id)
        assert place.files() == before

    def test_a_table_that_can_not_be_read_is_found_and_dropped(
        self, place: Place, catalog: SegmentCatalog
    ) -> None:
        topic = new_topic("foo")
        table = catalog.create(topic)
        place.write_bytes(table._table.metadata_location, b"{")

        reopened = place.open()
        with pytest.raises(CorruptError):
            reopened.load("foo")
        found = reopened.place("foo")
        assert (found.topic_id, found.location) == (topic.id, table.location)
        reopened.drop("foo", uuid4())
        assert reopened.list() == ["foo"]
        remove(reopened, "foo")
        assert reopened.list() == []
        assert place.files() == []

    def test_a_table_that_can_not_be_read_goes_back_to_an_older_state(
        self, place: Place, catalog: SegmentCatalog
    ) -> None:
        table = catalog.create(new_topic("foo"))
        append(table, 0)
        before = table.snapshot()
        newest_path = table._table.metadata_location
        other = place.open().load("foo")
        other.append(before, [], {0: Positions(sealed_end=15)}, operation="seal")
        # A commit that was never made leaves a metadata file, too.
        folder, _, name = newest_path.rpartition("/")
        orphan = place.read_bytes(other._table.metadata_location)
        place.write_bytes(f"{folder}/{name.partition('-')[0]}-{uuid4()}.metadata.json", orphan)
        place.write_bytes(other._table.metadata_location, b"{")

        reopened = place.open()
        newest, first = reopened.older_states("foo")
        assert (newest.problem, first.problem) == (None, None)
        assert (newest.metadata_location, newest.snapshot) == (newest_path, before)
        reopened.go_back("foo", newest)

        table = reopened.load("foo")
        assert offsets_of(table, table.snapshot()) == list(range(10))
        append(table, 10)
        assert offsets_of(table, table.snapshot()) == list(range(20))

    def test_a_topic_created_again_shares_nothing_with_the_old_one(
        self, place: Place, catalog: SegmentCatalog
    ) -> None:
        old = catalog.create(new_topic("foo"))
        segment = append(old, 0)
        remove(catalog, "foo")
        new = catalog.create(new_topic("foo"))

        assert new.location != old.location
        assert new.plan(new.snapshot()) == []
        assert new.snapshot().positions[0] == Positions()
        with pytest.raises(UnknownTopicError):
            old.snapshot()
        with pytest.raises(SegmentGoneError):
            list(old.read(segment))


class TestRecords:
    def test_everything_comes_back_as_it_was(self, table: SegmentTable) -> None:
        batch = records(
            5,
            6,
            keys=[b"a", None, b"", b"\x00\xff", b"a", b"z"],
            values=[b"1", b"no key", b"empty key", None, b"", b"x" * 100_000],
            timestamps_ms=[START_MS, START_MS - 5, START_MS, START_MS, START_MS + 9, START_MS],
            types=[
                TimestampType.CREATE,
                TimestampType.LOG_APPEND,
                TimestampType.NONE,
                TimestampType.CREATE,
                TimestampType.NONE,
                TimestampType.CREATE,
            ],
            headers=[None, [("h", b"1"), ("h", None), ("", b"")], [], None, None, [("é", b"\xff")]],
        )

        segment = write_segment(table, batch, partition=1)

        (read,) = table.read(segment)
        assert read.schema.equals(PAYLOAD_SCHEMA)
        expected = batch.to_pydict()
        expected["timestamp"][2] = expected["timestamp"][4] = None
        assert read.to_pydict() == expected
        assert (segment.partition, segment.first_offset, segment.last_offset) == (1, 5, 10)
        assert (segment.records, segment.null_keys, segment.null_values) == (6, 1, 1)
        assert (segment.min_timestamp_ms, segment.max_timestamp_ms) == (START_MS - 5, START_MS + 9)

    def test_columns_and_a_first_offset(self, table: SegmentTable) -> None:
        segment = write_segment(table, records(100, 50_000))

        batches = list(table.read(segment, columns=["key", "timestamp"], from_offset=40_000))

        assert sum(batch.num_rows for batch in batches) == 10_100
        assert all(
            batch.schema.equals(pa.schema([PAYLOAD_SCHEMA.field("key"), PAYLOAD_SCHEMA.field("timestamp")]))
            for batch in batches
        )
        assert batches[0].column("key")[0].as_py() == b"key-%d" % (40_000 % 7)
        (only,) = table.read(segment, columns=["offset"], from_offset=50_099)
        assert only.to_pydict() == {"offset": [50_099]}
        assert list(table.read(segment, from_offset=50_100)) == []
        assert sum(batch.num_rows for batch in table.read(segment, from_offset=3)) == 50_000

    def test_a_stream_has_the_same_records_a_few_at_a_time(self, table: SegmentTable) -> None:
        segment = write_segment(
            table, records(100, 40_000, values=[None if i % 3 else b"%d" % i for i in range(40_000)])
        )
        batches = list(table.files.stream(segment))
        assert pa.Table.from_batches(batches).equals(
            pa.Table.from_batches(table.read(segment)).combine_chunks()
        )
        assert max(batch.num_rows for batch in batches) <= STREAM_ROWS
        # The row groups are asked about by their offsets; here there are three.
        asked: list[tuple[int, int]] = []

        def wanted(first: int, last: int) -> bool:
            asked.append((first, last))
            return first <= 20_000 <= last

        some = pa.Table.from_batches(table.files.stream(segment, ["key", "offset"], wanted))
        assert len(asked) == 3
        assert some.column_names == ["key", "offset"]
        assert some.column("offset").to_pylist() == list(range(100 + 16_384, 100 + 2 * 16_384))

    def test_times_and_counts_of_a_span(self, table: SegmentTable) -> None:
        first = records(100, 20_000)
        gap = records(30_000, 20_000, types=[TimestampType.NONE] * 20_000)
        with table.writer(0, 100, "job") as writer:
            writer.write(first)
            writer.write(gap)
            segment = writer.close()
        assert segment is not None
        offsets = [*range(100, 20_100), *range(30_000, 50_000)]
        for start, end in ((0, 60_000), (100, 50_000), (5_000, 40_000), (20_100, 30_000), (30_000, 30_001)):
            expected = [each for each in offsets if start <= each < end]
            assert table.files.count(segment, start, end) == len(expected)
            found = list(table.files.times(segment, start, end))
            assert [each for own, _ in found for each in own.tolist()] == expected
            times = [each for _, own in found for each in own.tolist()]
            assert [each >= 0 for each in times] == [each < 30_000 for each in expected]
            turned = list(table.files.times(segment, start, end, backwards=True))
            assert [each for own, _ in turned for each in own[::-1].tolist()] == expected[::-1]

    def test_row_groups_bound_memory(self, table: SegmentTable) -> None:
        big = [b"x" * (30 << 20)] * 5
        segment = write_segment(table, records(0, 5, values=big))
        rows = [batch.num_rows for batch in table.read(segment)]
        assert sum(rows) == 5
        assert max(rows) == 2

    def test_a_segment_in_the_table_says_what_its_writer_said(
        self, place: Place, table: SegmentTable
    ) -> None:
        batch = records(0, 4, keys=[b"a", None, None, b"b"], values=[None, None, b"", b"x"])
        written = write_segment(table, batch)
        table.append(table.snapshot(), [written], {}, operation="seal")

        fresh = place.open().load("events")

        assert fresh.plan(fresh.snapshot()) == [written]
        assert (written.null_keys, written.null_values) == (2, 2)
        assert written.size_bytes == len(place.read_bytes(written.path))

    def test_a_writer_that_wrote_nothing_makes_no_file(self, place: Place, table: SegmentTable) -> None:
        before = place.files()
        with table.writer(0, 0, "job") as writer:
            writer.write(records(0, 0))
            assert writer.close() is None
        assert place.files() == before

    def test_an_abandoned_writer_leaves_no_file(self, place: Place, table: SegmentTable) -> None:
        before = place.files()
        with pytest.raises(ZeroDivisionError), table.writer(0, 0, "job") as writer:
            writer.write(records(0, 40_000))
            raise ZeroDivisionError
        assert place.files() == before

    @pytest.mark.parametrize("second", [records(9, 1), records(3, 1)])
    def test_offsets_must_rise(self, table: SegmentTable, second: pa.RecordBatch) -> None:
        with pytest.raises(ValueError, match="must increase"), table.writer(0, 0, "job") as writer:
            writer.write(records(0, 10))
            writer.write(second)

    def test_timestamps_must_be_filled_in(self, table: SegmentTable) -> None:
        batch = records(0, 2)
        missing = batch.set_column(1, PAYLOAD_SCHEMA.field(1), pa.nulls(2, PAYLOAD_SCHEMA.field(1).type))
        with pytest.raises(ValueError, match="timestamp"), table.writer(0, 0, "job") as writer:
            writer.write(missing)

    def test_a_segment_that_is_gone(self, place: Place, table: SegmentTable) -> None:
        segment = append(table, 0)
        place.remove_file(segment.path)
        for read in (table.read, table.files.stream, lambda gone: table.files.times(gone, 0, 1)):
            with pytest.raises(SegmentGoneError, match=segment.path):
                list(read(segment))
        with pytest.raises(SegmentGoneError, match=segment.path):
            table.files.count(segment, 1, 2)

    def test_storage_that_fails_for_a_moment_is_no_damage(
        self, place: Place, table: SegmentTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        segment = append(table, 0)
        new_input = SyncedFileIO.new_input

        def fail_once(file_io: SyncedFileIO, location: str) -> object:
            monkeypatch.setattr(SyncedFileIO, "new_input", new_input)
            raise OSError("AWS Error NETWORK_CONNECTION during HeadObject operation: Empty reply from server")

        for read in (table.read, table.files.stream, lambda one: table.files.times(one, 0, 1)):
            monkeypatch.setattr(SyncedFileIO, "new_input", fail_once)
            with pytest.raises(StorageError, match=r"NETWORK_CONNECTION.*It is not damaged; try again"):
                list(read(segment))
            assert list(read(segment))

    @pytest.mark.parametrize("keep", [0, 1, 100, -1])
    def test_a_truncated_segment_is_corrupt(self, place: Place, table: SegmentTable, keep: int) -> None:
        segment = append(table, 0, 1000)
        place.write_bytes(segment.path, place.read_bytes(segment.path)[:keep])
        for read in (table.read, table.files.stream):
            with pytest.raises(CorruptError) as caught:
                list(read(segment))
            assert caught.value.path == segment.path
        assert segment.path in str(caught.value)

    def test_a_flipped_bit_is_found_wherever_it_is(self, place: Place, table: SegmentTable) -> None:
        values = [bytes([byte % 251 for byte in range(i, i + 40)]) for i in range(200)]
        segment = write_segment(table, records(0, 200, values=values))
        whole = place.read_bytes(segment.path)
        expected = pa.Table.from_batches(table.read(segment))
        found = streamed = 0
        for at in range(4, len(whole), max(1, len(whole) // 60)):
            damaged = bytearray(whole)
            damaged[at] ^= 0x10
            place.write_bytes(segment.path, bytes(damaged))
            try:
                # Bytes that no reader of records looks at (names, sizes for other tools) may differ.
                assert pa.Table.from_batches(table.read(segment)).equals(expected)
            except CorruptError as error:
                assert error.path == segment.path
                found += 1
            try:
                assert pa.Table.from_batches(table.files.stream(segment)).equals(expected)
            except CorruptError as error:
                assert error.path == segment.path
                streamed += 1
        assert found > 20
        assert streamed == found


class TestCommits:
    def test_append_moves_positions_and_files_together(self, place: Place, table: SegmentTable) -> None:
        segment = write_segment(table, records(0))
        before = table.snapshot()
        place.clock.move(5)
        positions = Positions(log_start=2, first_dirty=3, sealed_end=10, epochs=((0, 0), (2, 7)))

        after = table.append(
            before, [segment], {1: positions}, operation="seal", details={"files": "wal.1.log"}
        )

        assert after.parent_id == before.id
        assert (after.operation, dict(after.details)) == ("seal", {"files": "wal.1.log"})
        assert after.committed_ms == START_MS + 5
        assert after.positions == (Positions(), positions)
        fresh = place.open().load("events")
        assert fresh.snapshot() == table.snapshot() == after
        assert fresh.plan(after) == table.plan(after) == [segment]
        assert table.plan(before) == []

    def test_plan_by_partition_and_offset(self, place: Place, table: SegmentTable) -> None:
        zero = [append(table, first) for first in (0, 10, 30)]
        one = append(table, 5, partition=1)

        for each in (table, place.open().load("events")):
            now = each.snapshot()
            assert each.plan(now) == [*zero, one]
            assert each.plan(now, 0, 9) == zero
            assert each.plan(now, 0, 10) == zero[1:]
            assert each.plan(now, 0, 25) == zero[2:]
            assert each.plan(now, 0, 40) == []
            assert each.plan(now, from_offset=12) == [*zero[1:], one]
            assert each.plan(now, 7) == []

    def test_replace_swaps_exactly_the_named_segments(self, place: Place, table: SegmentTable) -> None:
        old = [append(table, first) for first in (0, 10, 20)]
        other = append(table, 0, partition=1)
        before = table.snapshot()
        merged = write_segment(table, records(3, 12), job_id="compaction-7")

        after = table.replace(
            before, old[:2], [merged], {0: Positions(first_dirty=20, sealed_end=30)}, operation="compact"
        )

        for each in (table, place.open().load("events")):
            assert each.plan(after) == [merged, old[2], other]
            assert each.plan(before) == [*old, other]
        assert after.positions[0] == Positions(first_dirty=20, sealed_end=30)
        emptied = table.replace(after, [merged, old[2], other], [], {}, operation="delete")
        assert place.open().load("events").plan(emptied) == []
        assert emptied.positions == after.positions

    def test_every_summary_has_all_positions(self, place: Place, table: SegmentTable) -> None:
        expected = [table.snapshot().positions]
        for first in (0, 10, 20):
            append(table, first, partition=first // 10 % 2)
            expected.append(table.snapshot().positions)
        table.alter(table.snapshot(), config={"a": "b"})
        expected.append(expected[-1])

        history = place.open().load("events").history()

        assert [each.positions for each in history] == expected
        assert [each.operation for each in history] == ["create", "seal", "seal", "seal", "alter"]
        for each in history:
            assert each.id is not None
            assert table.snapshot(each.id) == each

    def test_many_commits_merge_manifests_and_keep_every_segment(
        self, place: Place, table: SegmentTable
    ) -> None:
        segments = [append(table, first) for first in range(0, 200, 10)]
        now = table.snapshot()
        assert place.open().load("events").plan(now) == segments
        metadata = [path for path in place.files(table.location) if path.endswith(".metadata.json")]
        assert len(metadata) <= 11

    def test_alter(self, place: Place, table: SegmentTable) -> None:
        append(table, 0)
        first = table.alter(table.snapshot(), config={"retention.ms": "5", "cleanup.policy": "compact"})
        second = table.alter(first, partitions=4)
        third = table.alter(second, config={"retention.ms": "6"})
        fourth = table.alter(third, deleted=True)

        for each in (fourth, place.open().load("events").snapshot()):
            assert dict(each.topic.config) == {"retention.ms": "6"}
            assert (each.topic.partitions, each.topic.deleted) == (4, True)
            assert each.positions == (Positions(sealed_end=10), *(Positions(),) * 3)
        assert "events" in place.open().list()
        assert len({first.id, second.id, third.id, fourth.id}) == 4
        with pytest.raises(InvalidTopicError):
            table.alter(fourth, partitions=3)

    def test_positions_never_move_down(self, table: SegmentTable) -> None:
        top = Positions(log_start=5, first_dirty=6, sealed_end=7, epochs=((3, 1),))
        now = table.append(table.snapshot(), [], {0: top}, operation="x")
        for lower in (
            replace(top, log_start=4),
            replace(top, first_dirty=5),
            replace(top, sealed_end=6),
            replace(top, epochs=((2, 1),)),
            replace(top, epochs=()),
        ):
            with pytest.raises(ValueError, match="move down"):
                table.append(now, [], {0: lower}, operation="x")
        assert table.snapshot() == now

    def test_partitions_that_are_not_there(self, table: SegmentTable) -> None:
        now = table.snapshot()
        with pytest.raises(UnknownPartitionError):
            table.append(now, [], {2: Positions(sealed_end=1)}, operation="x")
        segment = write_segment(table, records(0), partition=2)
        with pytest.raises(UnknownPartitionError):
            table.append(now, [segment], {}, operation="x")

    def test_segments_may_not_overlap(self, table: SegmentTable) -> None:
        append(table, 0)
        now = table.snapshot()
        with pytest.raises(StorageError, match="overlap"):
            table.append(now, [write_segment(table, records(9))], {}, operation="seal")
        assert table.snapshot() == now


class TestConflicts:
    """`stale` looks at the table; `other` commits; what `stale` had planned must not come through."""

    @pytest.fixture
    def other(self, place: Place, table: SegmentTable) -> SegmentTable:
        append(table, 0)
        return place.open().load("events")

    def test_append_after_append(self, table: SegmentTable, other: SegmentTable) -> None:
        base = table.snapshot()
        mine = write_segment(table, records(10))
        append(other, 10)

        with pytest.raises(ConflictError):
            table.append(base, [mine], {0: Positions(sealed_end=20)}, operation="seal")

        assert offsets_of(table, table.snapshot()) == list(range(20))

    def test_positions_after_positions(self, table: SegmentTable, other: SegmentTable) -> None:
        base = table.snapshot()
        other.append(other.snapshot(), [], {0: Positions(log_start=9, sealed_end=10)}, operation="x")

        with pytest.raises(ConflictError):
            table.append(base, [], {0: Positions(log_start=5, sealed_end=10)}, operation="x")

        assert table.snapshot().positions[0].log_start == 9

    def test_alter_after_append_and_append_after_alter(
        self, table: SegmentTable, other: SegmentTable
    ) -> None:
        base = table.snapshot()
        append(other, 10)
        with pytest.raises(ConflictError):
            table.alter(base, config={"a": "b"})
        assert dict(table.snapshot().topic.config) == {}

        base = table.snapshot()
        other.alter(other.snapshot(), config={"a": "c"})
        with pytest.raises(ConflictError):
            table.append(base, [], {0: Positions(sealed_end=30)}, operation="x")
        assert table.snapshot().positions[0].sealed_end == 20

    def test_replace_after_an_append_elsewhere(self, table: SegmentTable, other: SegmentTable) -> None:
        base = table.snapshot()
        append(other, 0, partition=1)

        with pytest.raises(ConflictError):
            table.replace(base, table.plan(base), [], {}, operation="compact")

        # Nothing it planned with has changed, so the next try goes through.
        fresh = table.snapshot()
        table.replace(fresh, table.plan(base), [], {}, operation="compact")
        assert [each.partition for each in table.plan(table.snapshot())] == [1]

    def test_the_catalog_checks_too(self, place: Place, table: SegmentTable, other: SegmentTable) -> None:
        """The other commit comes after our last look at the table."""
        base = table.snapshot()
        mine = write_segment(table, records(10))

        def another_is_faster(step: str) -> None:
            if step == "commit.before":
                steps.install(None)
                append(other, 10)

        steps.install(another_is_faster)
        try:
            with pytest.raises(ConflictError):
                table.append(base, [mine], {0: Positions(sealed_end=20)}, operation="seal")
        finally:
            steps.install(None)
        assert offsets_of(table, table.snapshot()) == list(range(20))
        assert [each.operation for each in table.history()] == ["create", "seal", "seal"]

    def test_a_replaced_segment_is_gone(self, table: SegmentTable, other: SegmentTable) -> None:
        (old,) = table.plan(table.snapshot())
        other.replace(other.snapshot(), [old], [], {}, operation="delete")
        with pytest.raises(ConflictError, match="no longer"):
            table.replace(
                table.snapshot(), [old], [write_segment(table, records(1))], {}, operation="compact"
            )
        assert table.plan(table.snapshot()) == []

    def test_retry_on_conflict_ends_with_one_commit(self, table: SegmentTable, other: SegmentTable) -> None:
        tries = []

        def attempt() -> None:
            base = table.snapshot()
            if not tries:
                append(other, 10)
            tries.append(base)
            table.append(base, [], {1: Positions(sealed_end=1)}, operation="x")

        retry_on_conflict(attempt)

        assert len(tries) == 2
        assert table.snapshot().positions == (Positions(sealed_end=20), Positions(sealed_end=1))

    def test_a_snapshot_that_expired_before_it_was_read_is_a_conflict_too(
        self, place: Place, table: SegmentTable
    ) -> None:
        tries = []

        def attempt() -> list[int]:
            base = table.snapshot()
            tries.append(base)
            if len(tries) == 1:
                other = place.open().load("events")
                append(other, 10)
                append(other, 20)
                other.expire(retention_ms=None)
                # Another process has not seen its manifests.
                return offsets_of(place.open().load("events"), base)
            return offsets_of(table, base)

        append(table, 0)

        assert retry_on_conflict(attempt) == list(range(30))
        assert len(tries) == 2


class LostAnswerError(OSError):
    """The connection broke: nobody knows what the other side did."""


class TestManyCommits:
    def test_a_commit_reads_no_metadata_again(
        self, place: Place, catalog: SegmentCatalog, table: SegmentTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Else each one costs more than the one before, until snapshots expire."""
        append(table, 0)
        loaded: list[object] = []
        real = catalog._catalog.load_table
        monkeypatch.setattr(catalog._catalog, "load_table", lambda *rest: loaded.append(rest) or real(*rest))
        for number in range(1, 6):
            append(table, 10 * number)
            assert (
                offsets_of(catalog.load(table.snapshot().topic.name), table.snapshot())[-1] == 10 * number + 9
            )
        assert loaded == []

    def test_a_commit_on_metadata_that_is_not_the_newest_is_a_conflict(
        self, place: Place, catalog: SegmentCatalog, table: SegmentTable
    ) -> None:
        """Also if nothing but a property has changed, which makes no snapshot."""
        append(table, 0)
        stale = table._refresh()
        other = catalog._catalog.load_table(stale.name())
        with other.transaction() as transaction:
            transaction.set_properties({"other": "1"})
        change = Change(operation="seal", positions=table.snapshot().positions)
        with pytest.raises(ConflictError):
            commit(stale, stale.metadata.current_snapshot_id, change, now_ms=START_MS, reload=lambda: stale)
        append(table, 10)
        assert table._refresh().metadata.properties["other"] == "1"


class TestUnknownOutcome:
    @pytest.mark.parametrize("error", [LostAnswerError("lost"), CommitFailedException("said twice")])
    def test_a_commit_that_was_made_counts_as_made(
        self,
        catalog: SegmentCatalog,
        table: SegmentTable,
        monkeypatch: pytest.MonkeyPatch,
        error: Exception,
    ) -> None:
        commit_table = catalog._catalog.commit_table

        def lose_the_answer(*args: Any) -> None:
            commit_table(*args)
            raise error

        segment = write_segment(table, records(0))
        with monkeypatch.context() as patch:
            patch.setattr(catalog._catalog, "commit_table", lose_the_answer)
            after = table.append(table.snapshot(), [segment], {0: Positions(sealed_end=10)}, operation="seal")

        assert table.snapshot() == after
        assert after.positions[0].sealed_end == 10
        assert offsets_of(table, after) == list(range(10))
        append(table, 10)
        assert offsets_of(table, table.snapshot()) == list(range(20))

    def test_a_commit_that_was_not_made_can_be_tried_again(
        self, place: Place, catalog: SegmentCatalog, table: SegmentTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def never_arrive(*args: Any) -> None:
            raise LostAnswerError("lost")

        segment = write_segment(table, records(0))
        base = table.snapshot()
        with monkeypatch.context() as patch:
            patch.setattr(catalog._catalog, "commit_table", never_arrive)
            with pytest.raises(StorageError):
                table.append(base, [segment], {0: Positions(sealed_end=10)}, operation="seal")

        assert table.snapshot() == base
        assert bare(segment.path) in place.files()
        table.append(base, [segment], {0: Positions(sealed_end=10)}, operation="seal")
        assert offsets_of(table, table.snapshot()) == list(range(10))

    def test_a_topic_that_was_created_counts_as_created(
        self, catalog: SegmentCatalog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        commit_table = catalog._catalog.commit_table

        def lose_the_answer(*args: Any) -> None:
            commit_table(*args)
            raise LostAnswerError("lost")

        topic = new_topic("orders")
        with monkeypatch.context() as patch:
            patch.setattr(catalog._catalog, "commit_table", lose_the_answer)
            table = catalog.create(topic)
        assert table.snapshot().topic == topic


class TestDamagedMetadata:
    def test_a_metadata_file_that_was_removed_before_it_was_read_is_looked_up_again(
        self, catalog: SegmentCatalog, table: SegmentTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        load_table = catalog._catalog.load_table
        calls = []

        def gone_at_first(*args: Any) -> Any:
            calls.append(args)
            if len(calls) < 3:
                raise FileNotFoundError("00001.metadata.json")
            return load_table(*args)

        monkeypatch.setattr(catalog._catalog, "load_table", gone_at_first)
        assert catalog.load("events").snapshot() == table.snapshot()

    @pytest.mark.parametrize("ending", [".metadata.json", "-m0.avro", "snap-"])
    @pytest.mark.parametrize("damage", ["missing", "empty", "half", "noise"])
    def test_it_is_named(self, place: Place, table: SegmentTable, ending: str, damage: str) -> None:
        append(table, 0)
        current = table._table.metadata_location
        candidates = [path for path in place.files(table.location) if ending in path]
        (damaged,) = [bare(current)] if ending == ".metadata.json" else candidates[-1:]
        if ending == "snap-":
            (damaged,) = [path for path in candidates if str(table.snapshot().id) in path]
        whole = place.read_bytes(damaged)
        noise = bytes(byte ^ 0x55 for byte in whole)
        if damage == "missing":
            place.remove_file(damaged)
        else:
            place.write_bytes(
                damaged, {"empty": b"", "half": whole[: len(whole) // 2], "noise": noise}[damage]
            )

        def look() -> None:
            fresh = place.open().load("events")
            fresh.plan(fresh.snapshot())

        if damage == "missing" and ending != ".metadata.json":
            with pytest.raises(SegmentGoneError, match=damaged):
                look()
        else:
            with pytest.raises(CorruptError) as caught:
                look()
            assert bare(caught.value.path) == damaged
        orphan = write_segment(table, records(50))
        if ending != ".metadata.json":
            with pytest.raises((CorruptError, SegmentGoneError)):
                table.collect(grace_ms=None)
            assert bare(orphan.path) in place.files()
        # So that the catalog can be cleaned up.
        place.write_bytes(damaged, whole)


class TestExpiry:
    def test_expire_keeps_the_current_one_and_those_asked_for(
        self, place: Place, table: SegmentTable
    ) -> None:
        for first in (0, 10, 20, 30):
            place.clock.move(1000)
            append(table, first)
        oldest, second, third, fourth, last = (each.id for each in table.history())
        assert oldest is not None
        assert second is not None
        files = place.files(table.location)

        gone = table.expire(retention_ms=1000, keep=[second])

        assert sorted(gone) == sorted([oldest, third])
        fresh = place.open().load("events")
        assert [each.id for each in fresh.history()] == [second, fourth, last]
        assert fresh.snapshot().id == last
        assert fresh.plan(fresh.snapshot(second)) == table.plan(table.snapshot(second))
        with pytest.raises(SegmentGoneError):
            fresh.snapshot(oldest)
        assert {path for path in files if path.endswith(".parquet")} <= set(place.files(table.location))
        assert sorted(table.expire(retention_ms=None)) == sorted([second, fourth])
        assert table.expire(retention_ms=None) == []
        assert offsets_of(fresh, fresh.snapshot()) == list(range(40))

    def test_a_snapshot_is_kept_from_when_it_was_superseded(self, place: Place, table: SegmentTable) -> None:
        append(table, 0)
        quiet = table.snapshot()
        place.clock.move(7_200_000)
        append(table, 10)

        table.expire(retention_ms=1)

        assert quiet.id in [each.id for each in table.history()], "two hours old, and superseded just now"
        told = table.expire(retention_ms=0, dry_run=True)
        assert quiet.id in told
        assert table.expire(retention_ms=0) == told
        assert [each.operation for each in table.history()] == ["seal"]

    def test_a_clock_that_is_put_back_makes_no_snapshot_stay_for_ever(
        self, place: Place, table: SegmentTable
    ) -> None:
        place.clock.move(31_536_000_000)
        append(table, 0)
        ahead = table.snapshot()
        append(table, 10)
        place.clock.put(START_MS + 1000)
        append(table, 20)
        assert table.expire(retention_ms=1) == []
        place.clock.move(3_600_000)
        assert ahead.id in table.expire(retention_ms=3_600_000)
        assert len(table.history()) == 1

    def test_a_clock_that_was_slow_makes_none_go_at_once(self, place: Place, table: SegmentTable) -> None:
        place.clock.move(7_200_000)
        append(table, 0)
        before = table.snapshot()
        place.clock.put(START_MS)
        append(table, 10)
        place.clock.move(7_260_000)
        table.expire(retention_ms=3_600_000)
        assert before.id in [each.id for each in table.history()]

    def test_snapshots_of_branches_are_no_part_of_the_history(
        self, place: Place, table: SegmentTable
    ) -> None:
        append(table, 0)
        foreign = table._table
        branch = "audit"
        foreign.manage_snapshots().create_branch(foreign.current_snapshot().snapshot_id, branch).commit()
        foreign.append(foreign.scan(limit=1).to_arrow(), branch=branch)
        append(table, 10)
        assert [each.operation for each in table.history()] == ["create", "seal", "seal"]
        assert len(table.expire(retention_ms=None)) == 2
        assert set(table._refresh().refs()) == {"main", branch}

    def test_all_others_expire_whatever_their_time(self, place: Place, table: SegmentTable) -> None:
        append(table, 0)
        append(table, 10)
        place.clock.move(-86_400_000)
        assert len(table.expire(retention_ms=None)) == 2

    def test_an_expiry_is_no_conflict_for_a_commit_planned_before_it(self, table: SegmentTable) -> None:
        append(table, 0)
        base = table.snapshot()
        table.expire(retention_ms=None)
        table.append(
            base, [write_segment(table, records(10))], {0: Positions(sealed_end=20)}, operation="seal"
        )
        assert offsets_of(table, table.snapshot()) == list(range(20))


class TestCollection:
    def test_only_what_nobody_names_goes(self, place: Place, table: SegmentTable) -> None:
        old = [append(table, 0), append(table, 10)]
        before = table.snapshot()
        new = write_segment(table, records(0, 20))
        table.replace(before, old, [new], {}, operation="compact")
        orphan = write_segment(table, records(50), job_id="crashed-job")

        first = table.collect(grace_ms=None)

        assert orphan.path in first.files
        assert first.size_bytes >= orphan.size_bytes
        fresh = place.open().load("events")
        for snapshot in fresh.history():
            assert offsets_of(fresh, snapshot) == list(range(snapshot.positions[0].sealed_end))

        table.expire(retention_ms=None)
        second = table.collect(grace_ms=None)

        assert {each.path for each in old} <= set(second.files)
        left = place.files(table.location)
        assert [path for path in left if path.endswith(".parquet")] == [bare(new.path)]
        assert not [bare(path) for path in second.files if bare(path) in left]
        fresh = place.open().load("events")
        assert offsets_of(fresh, fresh.snapshot()) == list(range(20))
        append(fresh, 20)
        assert offsets_of(fresh, fresh.snapshot()) == list(range(30))
        assert fresh.collect(grace_ms=0).files == ()

    def test_young_files_and_files_of_live_jobs_stay(self, place: Place, table: SegmentTable) -> None:
        live = write_segment(table, records(0), job_id="seal-a-1")
        dead = write_segment(table, records(0), job_id="seal-a")
        place.clock.put(int(time.time() * 1000))

        assert table.collect(grace_ms=3_600_000) == Collected()
        collected = table.collect(grace_ms=None, live_jobs={"seal-a-1"})

        assert collected.files == (dead.path,)
        assert bare(live.path) in place.files(table.location)

    def test_a_file_stays_for_the_grace_after_the_last_snapshot_that_named_it(
        self, place: Place, table: SegmentTable
    ) -> None:
        grace_ms = 3_600_000
        # Listings have the machine's times.
        place.clock.put(int(time.time() * 1000) + 24 * grace_ms)
        old = append(table, 0)
        new = write_segment(table, records(0, 5))
        table.replace(table.snapshot(), [old], [new], {}, operation="compact")
        place.clock.move(24 * grace_ms)

        def collect() -> tuple[str, ...]:
            # Each time by a process that knows nothing but what is noted.
            return place.open().load("events").collect(grace_ms=grace_ms).files

        assert collect() == ()
        table.expire(retention_ms=None)
        assert collect() == (), "a query that began a minute ago still reads it"
        place.clock.move(grace_ms - 1)
        assert collect() == ()
        place.clock.move(-12 * grace_ms)
        assert collect() == (), "the clock was put back"
        place.clock.move(grace_ms)
        assert old.path in collect()
        assert bare(old.path) not in place.files()
        assert collect() == ()
        append(table, 10)
        assert collect() != (), "metadata goes once a commit has come after it"
        assert not [path for path in place.files() if path.endswith("unnamed.json")]
        assert collect() == ()
        fresh = place.open().load("events")
        assert offsets_of(fresh, fresh.snapshot()) == [*range(5), *range(10, 20)]

    def test_metadata_of_a_commit_in_progress_stays_however_long_it_takes(
        self, place: Place, table: SegmentTable
    ) -> None:
        append(table, 0)
        collected: list[str] = []

        def reached(step: str) -> None:
            if step == "commit.before":
                steps.install(None)
                # Not even noted as unnamed when the commit begins to take days.
                for _ in range(3):
                    place.clock.move(86_400_000)
                    fresh = place.open().load("events")
                    collected.extend(fresh.collect(grace_ms=1000, live_jobs={"job-1"}).files)

        place.clock.put(int(time.time() * 1000))
        steps.install(reached)
        try:
            append(table, 10)
        finally:
            steps.install(None)
        assert not [path for path in collected if path.endswith(".avro")]
        fresh = place.open().load("events")
        assert offsets_of(fresh, fresh.snapshot()) == list(range(20))

    @pytest.mark.parametrize("damage", [b"", b"[1]", b'{"a":', b'{"a": "b"}', b'{"a": 1}'])
    def test_a_damaged_note_of_what_is_unnamed_counts_for_nothing(
        self, place: Place, table: SegmentTable, damage: bytes
    ) -> None:
        append(table, 0)
        orphan = write_segment(table, records(50))
        place.clock.put(int(time.time() * 1000) + 86_400_000)
        assert table.collect(grace_ms=1000).files == ()
        place.clock.move(2000)
        place.write_bytes(f"{table.location}/metadata/lastword-unnamed.json", damage)
        assert table.collect(grace_ms=1000).files == ()
        place.clock.move(1000)
        assert table.collect(grace_ms=1000).files == (orphan.path,)

    def test_a_dry_run_tells_and_changes_nothing(self, place: Place, table: SegmentTable) -> None:
        append(table, 0)
        orphan = write_segment(table, records(50))
        before = place.files()

        told = table.collect(grace_ms=None, dry_run=True)

        assert place.files() == before
        assert told.files == (orphan.path,)
        assert told.size_bytes == orphan.size_bytes
        assert table.collect(grace_ms=None) == told

    def test_a_commit_during_the_collection_keeps_its_files(self, place: Place, table: SegmentTable) -> None:
        orphan = write_segment(table, records(500))
        planned = write_segment(table, records(0))
        refresh = table._refresh
        other = place.open().load("events")

        def commit_first() -> Any:
            other.append(other.snapshot(), [planned], {0: Positions(sealed_end=10)}, operation="seal")
            return refresh()

        table._refresh = commit_first  # type: ignore[method-assign]
        collected = table.collect(grace_ms=None)

        assert orphan.path in collected.files
        assert offsets_of(other, other.snapshot()) == list(range(10))

    def test_neighbours_with_a_longer_name_are_not_touched(
        self, place: Place, catalog: SegmentCatalog
    ) -> None:
        table, neighbour = catalog.create(new_topic("foo")), catalog.create(new_topic("foo-bar"))
        orphan = write_segment(neighbour, records(0))
        beside = f"{table.location}-bar"
        if isinstance(place.file_system, pafs.LocalFileSystem):
            Path(bare(beside)).mkdir()
        place.write_bytes(f"{beside}/x.parquet", b"not of this table")

        assert table.collect(grace_ms=None).files == ()
        remove(catalog, "foo")

        assert {bare(orphan.path), bare(f"{beside}/x.parquet")} <= set(place.files())
