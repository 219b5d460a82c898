"""Tables whose files were copied to another place are read there, by every engine, and nothing names the old one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.fs as pafs
import pytest
from pyiceberg.manifest import ManifestEntry, read_manifest_list
from pyiceberg.serializers import FromInputFile
from tests.support.clock import HOUR_MS
from tests.support.other_engines import read_by_duckdb, read_by_polars, read_by_pyiceberg
from tests.support.s3 import s3_server
from tests.support.segments import Place, append, local_place, new_topic, offsets_of, records, write_segment

from lastword.clock import SystemClock
from lastword.errors import CorruptError, StorageError, TopicExistsError
from lastword.folder import steps
from lastword.segments.catalog import sqlite_properties
from lastword.segments.fileio import SyncedFileIO
from lastword.segments.model import Positions
from lastword.segments.relocation import rewrite
from lastword.segments.table import SegmentTable


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
    """Everything that the manifests of each snapshot say of each file, with its name instead of its path."""

    def facts(entry: ManifestEntry) -> tuple[object, ...]:
        file = entry.data_file
        return (
            entry.status,
            entry.snapshot_id,
            entry.sequence_number,
            entry.file_sequence_number,
            file.file_path.rpartition("/")[2],
            file.partition[0],
            file.record_count,
            file.file_size_in_bytes,
            file.value_counts,
            file.null_value_counts,
            file.lower_bounds,
            file.upper_bounds,
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
    """All that the metadata says, as text: the metadata file, the manifest lists and the manifests."""
    iceberg = table._refresh()
    texts = [FromInputFile.table_metadata(iceberg.io.new_input(iceberg.metadata_location)).model_dump_json()]
    for snapshot in iceberg.metadata.snapshots:
        for manifest in read_manifest_list(iceberg.io.new_input(snapshot.manifest_list)):
            texts.append(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(iceberg.io, discard_deleted=False)
            texts += [entry.data_file.file_path for entry in entries]
    return "\n".join(texts)


def test_everything_but_the_paths_is_as_it_was(place: Place, tmp_path: Path) -> None:
    table = filled(place)
    before = (table.snapshot(), table.history(), entries_of(table))
    assert len(before[2]) == 5

    new = copied(place, tmp_path / "new")
    done = new.open().relocate()

    assert [*done] == ["events"]
    assert done["events"].damaged == ()
    moved = new.open().load("events")
    assert (moved.snapshot(), moved.history(), entries_of(moved)) == before
    assert offsets_of(moved, moved.snapshot()) == [7, 8, 9, *range(10, 20)]
    assert [offsets_of(moved, each) for each in moved.history()][1] == list(range(10))
    assert str(tmp_path / "old") not in named_paths(moved)


def test_other_engines_read_it(place: Place, tmp_path: Path) -> None:
    table = filled(place)
    expected = sorted(
        (partition, offset)
        for partition in (0, 1)
        for offset in offsets_of(table, table.snapshot(), partition)
    )
    assert len(expected) == 23

    new = copied(place, tmp_path / "new")
    new.open().relocate()

    for read in (read_by_pyiceberg, read_by_polars, read_by_duckdb):
        assert read(new.properties, "events") == expected, read.__name__


def test_it_can_be_written_and_tidied_up(place: Place, tmp_path: Path) -> None:
    filled(place)
    new = copied(place, tmp_path / "new")
    new.open().relocate()
    moved = new.open().load("events")

    append(moved, 20)
    new.clock.put(SystemClock().now_ms() + HOUR_MS)
    moved.expire(retention_ms=None)
    collected = moved.collect(grace_ms=None)

    assert len(collected.files) > 5
    assert offsets_of(moved, moved.snapshot()) == [7, 8, 9, *range(10, 30)]
    assert all(str(tmp_path / "new") in each for each in collected.files)


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
        assert offsets_of(moved, moved.snapshot()) == [7, 8, 9, *range(10, 20)]


def test_a_damaged_table_stays_damaged_and_the_others_go_on(place: Place, tmp_path: Path) -> None:
    filled(place, "whole")
    bad_list, bad_metadata = filled(place, "bad.list"), filled(place, "bad.metadata")
    place.write_bytes(bad_list._refresh().metadata.current_snapshot().manifest_list, b"no avro")
    place.write_bytes(bad_metadata._refresh().metadata_location, b"{")
    new = copied(place, tmp_path / "new")

    done = new.open().relocate()

    assert [len(each.damaged) for each in done.values()] == [1, 1, 0]
    whole = new.open().load("whole")
    assert offsets_of(whole, whole.snapshot()) == [7, 8, 9, *range(10, 20)]
    with pytest.raises(CorruptError, match=str(tmp_path / "new")):
        new.open().load("bad.metadata")
    damaged = new.open().load("bad.list")
    with pytest.raises(CorruptError, match=str(tmp_path / "new")):
        damaged.plan(damaged.snapshot())


def test_deletes_of_single_rows_are_refused(place: Place, tmp_path: Path) -> None:
    table = filled(place)
    manifest_list = table._refresh().metadata.current_snapshot().manifest_list
    data = place.read_bytes(manifest_list)
    from pyiceberg.manifest import ManifestContent, write_manifest_list

    iceberg = table._refresh()
    manifests = list(read_manifest_list(iceberg.io.new_input(manifest_list)))
    for each in manifests:
        each[3] = ManifestContent.DELETES
    place.remove_file(manifest_list)
    snapshot = iceberg.metadata.current_snapshot()
    with write_manifest_list(
        2, iceberg.io.new_output(manifest_list), snapshot.snapshot_id, None, snapshot.sequence_number, "null"
    ) as writer:
        writer.add_manifests(manifests)
    assert place.read_bytes(manifest_list) != data
    new = copied(place, tmp_path / "new")

    with pytest.raises(StorageError, match="row-level deletes"):
        new.open().relocate()


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
        restored = catalog.register("shop.copy", done.metadata_location)

        assert restored.snapshot().topic == replace(info, name="shop.copy")
        assert offsets_of(restored, restored.snapshot()) == [7, 8, 9, *range(10, 20)]
        assert str(tmp_path) not in named_paths(restored)
        with pytest.raises(TopicExistsError):
            catalog.register("shop.copy", done.metadata_location)
        store.close()
