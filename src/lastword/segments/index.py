"""The segments that a snapshot names, in memory, in the order in which readers need them."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from typing import TypeVar

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestFile
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot

from lastword.errors import StorageError
from lastword.segments.fileio import bare_path
from lastword.segments.foreign import decoding
from lastword.segments.manifests import entries_of, manifests_of
from lastword.segments.mapping import ListedDeletes, listed_deletes, segment_from
from lastword.segments.marks import targets
from lastword.segments.model import Segment
from lastword.segments.parquet import SegmentFiles

K = TypeVar("K")
V = TypeVar("V")

_SNAPSHOTS = 8
_MANIFESTS = 128


class SegmentIndex:
    """All segments of one snapshot, by path and by partition and offset."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self.by_path: Mapping[str, Segment] = {segment.path: segment for segment in segments}
        self._by_partition: dict[int, list[Segment]] = {}
        for segment in sorted(self.by_path.values(), key=lambda each: (each.partition, each.first_offset)):
            self._by_partition.setdefault(segment.partition, []).append(segment)
        self._last_offsets = {
            partition: [segment.last_offset for segment in segments]
            for partition, segments in self._by_partition.items()
        }
        for segments in self._by_partition.values():
            _check_disjoint(segments)

    def from_offset(self, partition: int | None, offset: int) -> list[Segment]:
        wanted = self._by_partition if partition is None else [partition]
        return [
            segment
            for each in wanted
            for segment in self._by_partition.get(each, [])[
                bisect_left(self._last_offsets.get(each, []), offset) :
            ]
        ]

    def changed(self, removed: Sequence[Segment], added: Sequence[Segment]) -> SegmentIndex:
        gone = {segment.path for segment in removed}
        kept = [segment for path, segment in self.by_path.items() if path not in gone]
        return SegmentIndex([*kept, *added])


def _check_disjoint(segments: Sequence[Segment]) -> None:
    for before, after in pairwise(segments):
        if after.first_offset <= before.last_offset:
            raise StorageError(
                f"The segments {before.path} (to offset {before.last_offset}) and {after.path} (from "
                f"{after.first_offset}) overlap. If another engine rewrote the table, roll it back to the "
                "snapshot before that."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """The files that a manifest lists, each with its sequence number."""

    segments: tuple[tuple[Segment, int], ...] = ()
    deletes: tuple[tuple[ListedDeletes, int], ...] = ()


class IndexCache:
    """The indexes of the snapshots that were used last. Manifests never change, so none is read twice."""

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files
        self._lock = Lock()
        self._indexes: OrderedDict[int, SegmentIndex] = OrderedDict()
        self._manifests: OrderedDict[str, _Listed] = OrderedDict()
        self._foreign: OrderedDict[tuple[str, ...], Segment] = OrderedDict()

    def get(self, snapshot_id: int) -> SegmentIndex | None:
        with self._lock:
            if snapshot_id in self._indexes:
                self._indexes.move_to_end(snapshot_id)
            return self._indexes.get(snapshot_id)

    def put(self, snapshot_id: int, index: SegmentIndex) -> None:
        with self._lock:
            self._indexes[snapshot_id] = index
            _shrink(self._indexes, _SNAPSHOTS)

    def load(self, snapshot: IcebergSnapshot, file_io: FileIO) -> SegmentIndex:
        with decoding(snapshot.manifest_list):
            manifests = manifests_of(snapshot, file_io)
        listed = [self._listed(manifest, file_io) for manifest in manifests]
        segments = {each[0].path: each for manifest in listed for each in manifest.segments}
        by_path = self._deletes_by_path([each for manifest in listed for each in manifest.deletes])
        index = SegmentIndex(
            self._marked(segment, number, by_path.get(bare_path(path), ()))
            for path, (segment, number) in segments.items()
        )
        self.put(snapshot.snapshot_id, index)
        return index

    def _listed(self, manifest: ManifestFile, file_io: FileIO) -> _Listed:
        with self._lock:
            known = self._manifests.get(manifest.manifest_path)
        if known is not None:
            return known
        with decoding(manifest.manifest_path):
            entries = [(each.data_file, each.sequence_number or 0) for each in entries_of(manifest, file_io)]
        known = _Listed(
            segments=tuple(
                (segment_from(file), number)
                for file, number in entries
                if file.content == DataFileContent.DATA
            ),
            deletes=tuple(
                (listed_deletes(file), number)
                for file, number in entries
                if file.content != DataFileContent.DATA
            ),
        )
        with self._lock:
            self._manifests[manifest.manifest_path] = known
            _shrink(self._manifests, _MANIFESTS)
        return known

    def _deletes_by_path(
        self, deletes: Iterable[tuple[ListedDeletes, int]]
    ) -> dict[str, list[tuple[ListedDeletes, int]]]:
        """Return the delete files by the data files whose rows they list."""
        found: dict[str, list[tuple[ListedDeletes, int]]] = {}
        for each, number in deletes:
            paths = [each.target] if each.target is not None else targets(self._files.file_io(), each.file)
            for path in paths:
                found.setdefault(bare_path(path), []).append((each, number))
        return found

    def _marked(self, whole: Segment, number: int, deletes: Sequence[tuple[ListedDeletes, int]]) -> Segment:
        """Return a segment with the marks that apply to it: those that are not older than its file."""
        own = [each for each, delete_number in deletes if delete_number >= number]
        if not own:
            return whole
        if len(own) == 1 and (counted := own[0].applied_to(whole)) is not None:
            return counted
        key = (whole.path, *(each.file.path for each in own))
        with self._lock:
            known = self._foreign.get(key)
        if known is None:
            # Compiled code, which readers of our own marks do without.
            from lastword.segments.marking import with_foreign_marks

            known = with_foreign_marks(self._files, whole, [each.file for each in own])
            with self._lock:
                self._foreign[key] = known
                _shrink(self._foreign, _MANIFESTS)
        return known


def _shrink(cache: OrderedDict[K, V], limit: int) -> None:
    while len(cache) > limit:
        cache.popitem(last=False)
