"""Tables whose files were copied to another place are read there, by every engine, and nothing names the old one."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFileContent, ManifestEntry, read_manifest_list
from pyiceberg.serializers import FromInputFile
from tests.support.clock import HOUR_MS
from tests.support.marks import commit_foreign_deletes, mark_offsets
from tests.support.other_engines import ENGINES, read_by
from tests.support.s3 import s3_server
from tests.support.segments import Place, append, local_place, new_topic, offsets_of, records, write_segment

from lastword.clock import SystemClock
from lastword.errors import CorruptError
from lastword.folder import steps
from lastword.segments.catalog import sqlite_properties
from lastword.segments.fileio import SyncedFileIO
from lastword.segments.mapping import FILE_PATH_FIELD
from lastword.segments.model import Positions, SegmentGoneError
from lastword.segments.relocation import rewrite
from lastword.segments.table import SegmentTable

LEFT = [9, *range(10, 15), 16, 17, 18]
"""The offsets that `filled` leaves in the first partition."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "old").mkdir()
    place = local_place(tmp_path / "old")
    yield place
    place.close()


def filled(place: Place, name: str = "events") -> SegmentTable:
    """A topic of two partitions with several snapshots, of which one removed a file, and shared manifests."""
    table = place.open().create(new_topic(name))
    replaced = append(table, 0)
    append(table, 0, partition=1)
    append(table, 10)
    survivors = write_segment(table, records(7, 3), job_id="compact-1")
    table.replace(
        table.snapshot(),
        [replaced],
        [survivors],
        {0: Positions(first_dirty=10, sealed_end=20)},
        operation="compact",
    )
    # Marks of ours, and those of another engine, which lists rows of both partitions in one file.
    mark_offsets(table, [8])
    mark_offsets(table, [7, 15])
    first, second = table.plan(table.snapshot(), 0)[-1], table.plan(table.snapshot(), 1)[0]
    commit_foreign_deletes(table, [{first.path: [9], second.path: [0, 1]}])
    return table


def copied(place: Place, folder: Path) -> Place:
    """The same files in another folder; the old ones go out of sight, so that nobody reads them by mistake."""
    place.close()
    old = Path(place.root).parent
    shutil.copytree(old, folder)
    old.rename(old.with_name("out-of-sight"))
    return Place(
        properties=sqlite_properties(folder / "catalog.db"),
        warehouse=str(folder / "warehouse"),
        file_system=pafs.LocalFileSystem(),
        root=str(folder / "warehouse"),
    )


def entries_of(table: SegmentTable) -> dict[int, list[tuple[object, ...]]]:
    """Everything that the manifests of each snapshot say of each file, with its name instead of its path.

    Delete files have new names, and other bytes: they list paths.
    """

    def facts(entry: ManifestEntry) -> tuple[object, ...]:
        file = entry.data_file
        is_data = file.content == DataFileContent.DATA
        lower, upper = (
            {field: bound for field, bound in (bounds or {}).items() if field != FILE_PATH_FIELD}
            for bounds in (file.lower_bounds, file.upper_bounds)
        )
        return (
            file.content,
            entry.status,
            entry.snapshot_id,
            entry.sequence_number,
            entry.file_sequence_number,
            file.file_path.rpartition("/")[2] if is_data else "",
            file.partition[0],
            file.record_count,
            file.file_size_in_bytes if is_data else 0,
            file.value_counts,
            file.null_value_counts,
            lower,
            upper,
            file.sort_order_id,
        )

    iceberg = table._refresh()
    found = {}
    for snapshot in iceberg.metadata.snapshots:
        manifests = list(read_manifest_list(iceberg.io.new_input(snapshot.manifest_list)))
        entries = [each.fetch_manifest_entry(iceberg.io, discard_deleted=False) for each in manifests]
        found[snapshot.snapshot_id] = [facts(entry) for some in entries for entry in some]
    return found


def named_paths(table: SegmentTable) -> str:
    """All that the metadata says, as text: the metadata file, manifest lists, manifests and delete files."""
    iceberg = table._refresh()
    texts = [FromInputFile.table_metadata(iceberg.io.new_input(iceberg.metadata_location)).model_dump_json()]
    for snapshot in iceberg.metadata.snapshots:
        for manifest in read_manifest_list(iceberg.io.new_input(snapshot.manifest_list)):
            texts.append(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(iceberg.io, discard_deleted=False)
            texts += [str(entry.data_file) for entry in entries]
            for entry in entries:
                file = entry.data_file
                if file.content == DataFileContent.POSITION_DELETES and entry.status.name != "DELETED":
                    with iceberg.io.new_input(file.file_path).open() as stream:
                        texts += pq.read_table(stream).column("file_path").to_pylist()
    return "\n".join(texts)


def test_everything_but_the_paths_is_as_it_was(place: Place, tmp_path: Path) -> None:
    table = filled(place)
    before = (table.snapshot(), table.history(), entries_of(table))
    assert len(before[2]) == 8

    new = copied(place, tmp_path / "new")
    done = new.open().relocate()

    assert [*done] == ["events"]
    assert done["events"].damaged == ()
    moved = new.open().load("events")
    assert (moved.snapshot(), moved.history(), entries_of(moved)) == before
    assert offsets_of(moved, moved.snapshot()) == LEFT
    assert [offsets_of(moved, each) for each in moved.history()][1] == list(range(10))
    assert str(tmp_path / "old") not in named_paths(moved)


def test_other_engines_read_it(place: Place, tmp_path: Path) -> None:
    table = filled(place)
    expected = sorted(
        (partition, offset)
        for partition in (0, 1)
        for offset in offsets_of(table, table.snapshot(), partition)
    )
    assert len(expected) == 17

    new = copied(place, tmp_path / "new")
    new.open().relocate()

    for engine in ENGINES:
        assert read_by(engine, new.properties, "events") == expected, engine


def test_it_can_be_written_and_tidied_up(place: Place, tmp_path: Path) -> None:
    filled(place)
    new = copied(place, tmp_path / "new")
    new.open().relocate()
    moved = new.open().load("events")

    append(moved, 20)
    new.clock.put(SystemClock().now_ms() + HOUR_MS)
    moved.expire(retention_ms=None)
    collected = moved.collect(grace_ms=None).files
    # Metadata goes once another commit has fenced the one that may have written it.
    append(moved, 30)
    collected += moved.collect(grace_ms=None).files

    assert len(collected) > 5
    assert offsets_of(moved, moved.snapshot()) == [*LEFT, *range(20, 40)]
    assert all(str(tmp_path / "new") in each for each in collected)


def test_a_second_time_changes_nothing(place: Place, tmp_path: Path) -> None:
    filled(place)
    new = copied(place, tmp_path / "new")
    first = new.open().relocate({"color": "blue"})
    files = new.files()

    second = new.open().relocate({"color": "blue"})

    assert second == first
    assert new.files() == files
    assert new.open().load("events")._refresh().metadata.properties["color"] == "blue"


@pytest.mark.parametrize(
    "step", ["relocate.manifests.written", "relocate.metadata.written", "relocate.pointers.moved"]
)
def test_stopped_at_any_step_it_can_be_repeated(place: Place, tmp_path: Path, step: str) -> None:
    filled(place, "events")
    filled(place, "shop.orders")
    new = copied(place, tmp_path / "new")

    class StoppedError(Exception):
        pass

    def stop(reached: str) -> None:
        if reached == step:
            raise StoppedError

    steps.install(stop)
    try:
        with pytest.raises(StoppedError):
            new.open().relocate()
    finally:
        steps.install(None)
    # Every pointer has moved, or none.
    pointers = new.open()._loader.pointers()
    assert pointers is not None
    assert len({str(tmp_path / "new") in each for each in pointers.values()}) == 1

    assert [*new.open().relocate()] == ["events", "shop.orders"]

    for name in ("events", "shop.orders"):
        moved = new.open().load(name)
        assert offsets_of(moved, moved.snapshot()) == LEFT


def test_a_damaged_table_stays_damaged_and_the_others_go_on(place: Place, tmp_path: Path) -> None:
    filled(place, "whole")
    bad_list, bad_metadata = filled(place, "bad.list"), filled(place, "bad.metadata")
    place.write_bytes(bad_list._refresh().metadata.current_snapshot().manifest_list, b"no avro")
    place.write_bytes(bad_metadata._refresh().metadata_location, b"{")
    new = copied(place, tmp_path / "new")

    done = new.open().relocate()

    assert [len(each.damaged) for each in done.values()] == [1, 1, 0]
    whole = new.open().load("whole")
    assert offsets_of(whole, whole.snapshot()) == LEFT
    with pytest.raises(CorruptError, match=str(tmp_path / "new")):
        new.open().load("bad.metadata")
    damaged = new.open().load("bad.list")
    with pytest.raises(CorruptError, match=str(tmp_path / "new")):
        damaged.plan(damaged.snapshot())


def test_a_delete_file_that_is_missing_is_reported_and_its_rows_stay_unreadable(
    place: Place, tmp_path: Path
) -> None:
    table = filled(place)
    mark_offsets(table, [12])
    marks = table.plan(table.snapshot(), 0)[-1].marks
    assert marks is not None
    place.remove_file(marks.files[0].path)
    new = copied(place, tmp_path / "new")

    (done,) = new.open().relocate().values()

    (name,) = done.damaged
    assert name.startswith(f"file://{tmp_path}/new") and name.endswith(marks.files[0].path.rpartition("/")[2])
    moved = new.open().load("events")
    with pytest.raises(SegmentGoneError, match=re.escape(name)):
        offsets_of(moved, moved.snapshot())


def test_a_table_is_restored_into_another_catalog_and_an_object_store(place: Place, tmp_path: Path) -> None:
    """As a restore does it: the files are copied to their new place, rewritten there, and registered."""
    table = filled(place)
    info = table.snapshot().topic
    metadata_file = table._refresh().metadata_location.rpartition("/")[2]
    with s3_server() as s3:
        store = Place(
            properties={**sqlite_properties(tmp_path / "other.db"), **s3.properties},
            warehouse=f"s3://{s3.bucket}/restored",
            file_system=s3.file_system(),
            root=f"{s3.bucket}/restored",
        )
        catalog = store.open()
        location = catalog.location("shop.copy", info.id)
        assert location == f"s3://{s3.bucket}/restored/shop/copy/{info.id.hex}"
        source = Path(table.location.removeprefix("file://"))
        for file in [each for each in source.rglob("*") if each.is_file()]:
            store.write_bytes(f"{location}/{file.relative_to(source)}", file.read_bytes())

        done = rewrite(
            SyncedFileIO(s3.properties),
            f"{location}/metadata/{metadata_file}",
            location=location,
            properties={"lastword.topic.name": "shop.copy"},
        )
        catalog._ensure_namespace("shop")
        catalog._catalog.register_table(("shop", "copy"), done.metadata_location)
        restored = catalog.load("shop.copy")

        assert restored.snapshot().topic == replace(info, name="shop.copy")
        assert offsets_of(restored, restored.snapshot()) == LEFT
        assert str(tmp_path) not in named_paths(restored)
        store.close()
