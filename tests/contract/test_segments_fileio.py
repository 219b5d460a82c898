"""On local disk, whatever a commit names is synced, with its folder, before the catalog's pointer moves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import read_manifest_list
from sqlalchemy import event
from tests.support.segments import Place, append, bare, local_place, new_topic, records, write_segment

from lastword.errors import InvalidConfigError, StorageError
from lastword.folder import disk
from lastword.segments.fileio import SyncedFileIO, warehouse_uri
from lastword.segments.model import Positions


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = local_place(tmp_path)
    yield place
    place.close()


class SyncLog:
    """The order in which files and folders were synced."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paths: list[str] = []
        fsync = disk.fsync

        def logged(fd: int) -> None:
            path = str(Path(f"/proc/self/fd/{fd}").readlink())
            fsync(fd)
            self.paths.append(path)

        monkeypatch.setattr(disk, "fsync", logged)

    def assert_lasting(self, path: str) -> None:
        """The file was synced, then its folder; and every folder up to the warehouse is in a synced one."""
        at = self.paths.index(path)
        assert str(Path(path).parent) in self.paths[at:], f"the folder of {path} was not synced after it"
        folder = Path(path).parent
        while folder.parent.name != "warehouse":
            folder = folder.parent
            assert str(folder) in self.paths


def named_by(metadata_path: str) -> list[str]:
    """Every file that a metadata file leads to, read as another tool would."""
    io = PyArrowFileIO()
    named = [metadata_path]
    metadata = json.loads(Path(metadata_path).read_text())
    for snapshot in metadata["snapshots"]:
        named.append(bare(snapshot["manifest-list"]))
        for manifest in read_manifest_list(io.new_input(snapshot["manifest-list"])):
            named.append(bare(manifest.manifest_path))
            named += [bare(entry.data_file.file_path) for entry in manifest.fetch_manifest_entry(io)]
    return named


def test_all_is_synced_before_the_pointer_moves(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    log = SyncLog(monkeypatch)
    catalog = place.open()
    moves: list[int] = []

    def before_statement(_conn: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith(("UPDATE iceberg_tables", "INSERT INTO iceberg_tables")):
            new = next(each for each in parameters if str(each).endswith(".metadata.json"))
            named = named_by(bare(new))
            for path in named:
                log.assert_lasting(path)
            moves.append(len(named))

    event.listen(catalog._catalog.engine, "before_cursor_execute", before_statement)  # type: ignore[attr-defined]
    table = catalog.create(new_topic())
    old = [append(table, 0), append(table, 0, partition=1), append(table, 10)]
    merged = write_segment(table, records(0, 20))
    table.replace(
        table.snapshot(), [old[0], old[2]], [merged], {0: Positions(sealed_end=20)}, operation="compact"
    )

    assert len(moves) == 5
    assert moves[-1] > moves[0]


def test_a_data_file_is_synced_when_its_writer_is_closed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = SyncLog(monkeypatch)
    table = place.open().create(new_topic())
    segment = write_segment(table, records(0))
    log.assert_lasting(bare(segment.path))
    assert segment.size_bytes == Path(bare(segment.path)).stat().st_size


def test_a_failed_sync_fails_the_commit(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    table = place.open().create(new_topic())
    segment = write_segment(table, records(0))
    base = table.snapshot()

    def fail(fd: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "fsync", fail)
        with pytest.raises(StorageError):
            table.append(base, [segment], {0: Positions(sealed_end=10)}, operation="seal")
        with pytest.raises(StorageError):
            write_segment(table, records(0))
    assert table.snapshot() == base


def test_a_full_disk_is_a_storage_error(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    table = place.open().create(new_topic())

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lastword.segments.fileio.SyncedStream.write", full)
    with pytest.raises(StorageError, match="No space left"):
        write_segment(table, records(0))


def test_the_file_io_is_not_in_the_table(place: Place) -> None:
    """Other engines have no such class."""
    table = place.open().create(new_topic())
    append(table, 0)
    for path in place.files(table.location):
        assert b"lastword.segments.fileio" not in Path(path).read_bytes()


def test_file_systems_are_kept(place: Place) -> None:
    one, two = SyncedFileIO({"lastword.x": "1"}), SyncedFileIO({"lastword.x": "2"})
    assert one.fs_by_scheme("file", "") is two.fs_by_scheme("file", "")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("/a/b/", "file:///a/b"),
        ("file:/a/b", "file:///a/b"),
        ("file:///a/b/", "file:///a/b"),
        ("/a b/%20", "file:///a b/%20"),
        ("s3://bucket/x/", "s3://bucket/x"),
    ],
)
def test_warehouse_uri(given: str, expected: str) -> None:
    assert warehouse_uri(given) == expected


def test_a_relative_warehouse_is_made_absolute() -> None:
    assert warehouse_uri("some/where") == f"file://{Path.cwd()}/some/where"


@pytest.mark.parametrize("given", ["/a#b", "s3://bucket/a?b"])
def test_a_warehouse_that_no_engine_could_read(given: str) -> None:
    with pytest.raises(InvalidConfigError):
        warehouse_uri(given)


def test_a_warehouse_with_spaces_and_percent_signs(tmp_path: Path) -> None:
    place = local_place(tmp_path / "a b%20c é")
    table = place.open().create(new_topic())
    segment = append(table, 0)
    assert sum(batch.num_rows for batch in table.read(segment)) == 10
    assert table.collect(grace_ms=None).files == ()
    place.close()


def test_a_large_file_goes_to_disk_bit_by_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[tuple[int, int, int]] = []
    begin = disk.begin_write_out

    def logged(fd: int, position: int, size_bytes: int) -> None:
        begin(fd, position, size_bytes)
        begun.append((position, size_bytes, Path(f"/proc/self/fd/{fd}").stat().st_size))

    monkeypatch.setattr(disk, "begin_write_out", logged)
    path = tmp_path / "folder" / "file"
    data = bytes(range(256)) * 4096
    with SyncedFileIO().new_output(str(path)).create() as stream:
        for _ in range(10):
            stream.write(data)
        stream.write(b"end")
    assert path.read_bytes() == data * 10 + b"end"
    # Each part was in the file before, and begins where the last one ended.
    assert begun == [(0, 4 << 20, 4 << 20), (4 << 20, 4 << 20, 8 << 20)]
