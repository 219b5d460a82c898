"""The segments that a snapshot names, in memory, in the order in which readers need them."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from threading import Lock
from typing import TypeVar

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent
from pyiceberg.table.snapshots import Snapshot as IcebergSnapshot

from lastword.errors import StorageError
from lastword.segments.foreign import decoding
from lastword.segments.manifests import files_of, manifests_of
from lastword.segments.mapping import segment_from
from lastword.segments.model import Segment

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


class IndexCache:
    """The indexes of the snapshots that were used last. Manifests never change, so none is read twice."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._indexes: OrderedDict[int, SegmentIndex] = OrderedDict()
        self._manifests: OrderedDict[str, tuple[Segment, ...]] = OrderedDict()

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
        segments: list[Segment] = []
        with decoding(snapshot.manifest_list):
            manifests = manifests_of(snapshot, file_io)
        for manifest in manifests:
            if manifest.content != ManifestContent.DATA:
                raise StorageError(
                    f"Snapshot {snapshot.snapshot_id} has row-level deletes ({manifest.manifest_path}), which "
                    "another engine wrote. Lastword does not read them: roll the table back."
                )
            with self._lock:
                known = self._manifests.get(manifest.manifest_path)
            if known is None:
                with decoding(manifest.manifest_path):
                    files = list(files_of(manifest, file_io))
                known = tuple(segment_from(each) for each in files)
                with self._lock:
                    self._manifests[manifest.manifest_path] = known
                    _shrink(self._manifests, _MANIFESTS)
            segments.extend(known)
        index = SegmentIndex(segments)
        self.put(snapshot.snapshot_id, index)
        return index


def _shrink(cache: OrderedDict[K, V], limit: int) -> None:
    while len(cache) > limit:
        cache.popitem(last=False)
