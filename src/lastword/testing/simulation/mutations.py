"""Defects that the simulation must find: each is put into the product's own code before simulations run.

A mutation replaces one or two functions. `words` describes the visible defect. docs/testing.md lists all mutations, and a
test checks that each one is found.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any
from uuid import UUID

Change = Callable[[Callable[..., Any]], Callable[..., Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A defect, and the function that puts it into the product."""

    words: str
    apply: Callable[[], None]
    seed: int | None
    """A seed that finds it, if one is known."""


SEEDS: dict[str, int] = {
    "deaf": 45,
    "deleted-too-far": 56,
    "drop-by-name": 14,
    "early-expiry": 17,
    "early-tombstone": 0,
    "endless-erasure": 213,
    "forgetful-groups": 0,
    "greedy-collector": 5,
    "greedy-deleter": 0,
    "late-deletion": 38,
    "lost-at-the-seam": 3,
    "oldest-wins": 7,
    "shared-wal": 1,
    "short-keys": 0,
    "short-seal": 2,
    "two-owners": 52,
    "unannounced": 45,
    "undeleted-records": 53,
    "unerased": 15,
    "unfenced": 54,
    "unshown": 1,
    "unsynced": 32,
    "unsynced-names": 7,
    "unsynced-segments": 15,
    "wrong-offset": 1,
    "wrong-past-by-offset": 62,
    "wrong-past-by-time": 33,
}
"""Seeds that find the defects. Any change of the product may change the order of events, and so the seed: then
`--defects` finds another one."""
MUTATIONS: dict[str, Mutation] = {}


def _defect(name: str, words: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def add(apply: Callable[[], None]) -> Callable[[], None]:
        MUTATIONS[name] = Mutation(words=words, apply=apply, seed=SEEDS.get(name))
        return apply

    return add


def _find(module: str, path: str) -> tuple[Any, str, Any]:
    at: Any = import_module(module)
    *owners, name = path.split(".")
    for owner in owners:
        at = getattr(at, owner)
    return at, name, getattr(at, name)


def _put(module: str, path: str, value: Any) -> None:
    """Replace an attribute of a module, or of a class in it."""
    at, name, _ = _find(module, path)
    setattr(at, name, value)


def _changed(module: str, path: str, change: Change) -> None:
    """Replace a function with the result of `change`."""
    at, name, real = _find(module, path)
    setattr(at, name, change(real))


# ------------------------------------------------------------------------------------------------- durability


@_defect("unsynced", "A produce is acknowledged before it is on disk.")
def _unsynced() -> None:
    _put("lastword.folder.disk", "sync_data", lambda _: None)


@_defect("unsynced-names", "Folders are not synced: after a power cut, an acknowledged file has no name.")
def _unsynced_names() -> None:
    _put("lastword.folder.disk", "sync_folder", lambda _: None)


@_defect(
    "unsynced-segments",
    "A commit names segments that are not synced, and WAL files are deleted on the strength of that commit.",
)
def _unsynced_segments() -> None:
    from io import BufferedWriter

    _put("lastword.segments.fileio", "SyncedStream.close", lambda self: BufferedWriter.close(self))


@_defect("greedy-deleter", "WAL files are deleted before they are sealed.")
def _greedy_deleter() -> None:
    def change(real: Callable[..., Any]) -> Callable[..., Any]:
        def local_wal(*args: Any, **rest: Any) -> Any:
            wal = real(*args, **rest)
            return None if wal is None else replace(wal, sealed_end=1 << 62, producers_saved_to=None)

        return local_wal

    _changed("lastword.wal.deleter", "local_wal", change)


@_defect("short-seal", "Sealing leaves out the last record of a file.")
def _short_seal() -> None:
    def change(real: Callable[..., Any]) -> Callable[..., Any]:
        def records(file: Any, *span: Any) -> Any:
            rows = list(real(file, *span))
            is_last = not span or span[0].next_offset == file.end_offset
            return [*rows[:-1], rows[-1][:-1]] if is_last and rows and len(rows[-1]) > 1 else rows

        return records

    _changed("lastword.wal.rolled", "RolledFile.records", change)
    _changed("lastword.wal.rolled", "RolledFile.read", change)


@_defect("greedy-collector", "The collector removes files that live snapshots name.")
def _greedy_collector() -> None:
    _put("lastword.segments.collector", "named_files", lambda _: set())


@_defect("wrong-offset", "A produce is answered with the offset of the next record.")
def _wrong_offset() -> None:
    from lastword.wal.writer import Staged

    def change(real: Callable[..., Any]) -> Callable[..., Any]:
        def stage(self: Any, produced: Any) -> Any:
            return [
                each._replace(base_offset=each.base_offset + 1) if isinstance(each, Staged) else each
                for each in real(self, produced)
            ]

        return stage

    _changed("lastword.wal.writer", "PartitionWriter.stage_produced", change)


@_defect("unshown", "A produce is acknowledged before readers can see it.")
def _unshown() -> None:
    _put("lastword.wal.writer", "PartitionWriter.wait_durable", lambda _self, _end: None)


# ------------------------------------------------------------------------------------------------- compaction


@_defect(
    "unannounced", "A commit is not announced: the first fetch after a compaction is answered from the WAL."
)
def _unannounced() -> None:
    @contextmanager
    def announce(_self: Any, _commit: Any) -> Any:
        yield

    _put("lastword.log.announcements", "Announcements.announce", announce)


@_defect("deaf", "The broker does not read the table again after a commit.")
def _deaf() -> None:
    async def ended(self: Any, token: Any) -> None:
        self.pending.pop(token, None)

    _put("lastword.broker.partitions", "PartitionView.may_change", lambda _self, _offset: False)
    _put("lastword.broker.partitions", "TopicView.end_commit", ended)


@_defect(
    "early-tombstone", "The second run that passes a tombstone removes it, whatever delete.retention.ms is."
)
def _early_tombstone() -> None:
    def change(real: Callable[..., Any]) -> Callable[..., Any]:
        def expiring(settings: Any, at: Any, **rest: Any) -> Any:
            early = tuple(each._replace(deadline_ms=0) for each in at.deadlines)
            return real(settings, replace(at, deadlines=early), **rest)

        return expiring

    _changed("lastword.compaction.rules", "expiring", change)


@_defect("oldest-wins", "The oldest record of a key survives instead of the newest.")
def _oldest_wins() -> None:
    _, _, oldest = _find("lastword.compaction.survivors", "Survivors._oldest_wins")
    _put("lastword.compaction.survivors", "Survivors._newest_wins", oldest)


@_defect("short-keys", "Keys are compared by their first byte only.")
def _short_keys() -> None:
    def change(real: Callable[..., Any]) -> Callable[..., Any]:
        def runs(self: Any, raw: Any, **rest: Any) -> Any:
            import pyarrow as pa

            for row, run in real(self, raw, **rest):
                keys = [None if key is None else key[:1] for key in run.to_pylist()]
                yield row, pa.array(keys, run.type)

        return runs

    _changed("lastword.compaction.survivors", "Survivors.runs", change)


@_defect("unfenced", "A commit does not assert the snapshot that it was planned on.")
def _unfenced() -> None:
    def change(real: Callable[..., Any]) -> Callable[..., Any]:
        def commit(_table: Any, _base_id: Any, planned: Any, **rest: Any) -> Any:
            now = rest["reload"]()
            return real(now, now.metadata.current_snapshot_id, planned, **rest)

        return commit

    _changed("lastword.segments.table", "commit", change)


# ---------------------------------------------------------------------------------------------------- reading


@_defect("lost-at-the-seam", "A reader skips the first record after the sealed ones.")
def _lost_at_the_seam() -> None:
    def change(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, offset, end: real(self, offset + 1, end)

    _changed("lastword.reading.reader", "PartitionReader.tail", change)


@_defect("wrong-past-by-time", "A read as of a time uses a snapshot that was compacted later.")
def _wrong_past_by_time() -> None:
    _put("lastword.reading.timetravel", "_lacks_nothing_after", lambda *_: True)


@_defect("wrong-past-by-offset", "A read as of an offset uses a snapshot that was compacted beyond it.")
def _wrong_past_by_offset() -> None:
    def view(reader: Any, offset: int) -> Any:
        from lastword.reading.timetravel import view_now

        now = view_now(reader)
        return replace(now, end=min(now.end, max(now.start, offset + 1)))

    _put("lastword.reading.timetravel", "_view_at_offset", view)


@_defect(
    "early-expiry", "Snapshots expire by their creation time, not by the time at which they were superseded."
)
def _early_expiry() -> None:
    def superseded(metadata: Any, _now_ms: int) -> dict[int, int]:
        current = metadata.current_snapshot_id
        return {
            each.snapshot_id: each.timestamp_ms for each in metadata.snapshots if each.snapshot_id != current
        }

    _put("lastword.segments.table", "superseded", superseded)


# ---------------------------------------------------------------------------------------- deleting and erasing


@_defect("undeleted-records", "DeleteRecords is answered, but nothing is committed.")
def _undeleted_records() -> None:
    _put("lastword.log.topic", "delete_records", lambda table, _before: table.snapshot())


@_defect("deleted-too-far", "DeleteRecords removes one record too many.")
def _deleted_too_far() -> None:
    def change(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda table, before: real(table, {each: offset + 1 for each, offset in before.items()})

    _changed("lastword.log.topic", "delete_records", change)


@_defect("endless-erasure", "An erasure also removes records that were appended after it.")
def _endless_erasure() -> None:
    _put("lastword.folder.intents", "Intent.end", lambda _self, _partition: 1 << 62)
    _put("lastword.folder.intents", "Wanted.end", lambda _self, _partition: 1 << 62)


@_defect("unerased", "An erasure rewrites no segment, but reports that nothing is left.")
def _unerased() -> None:
    _put("lastword.maintenance.erase", "Eraser._rewrite", lambda _self, _progress: (0, 0))
    _put("lastword.maintenance.erase", "Eraser._left_in_segments", lambda _self: iter(()))


# ----------------------------------------------------------------------------------------------------- topics


@_defect("drop-by-name", "The deletion of a topic drops its successor of the same name.")
def _drop_by_name() -> None:
    def drop(self: Any, name: str, _topic_id: Any) -> None:
        from lastword.segments import mapping

        try:
            _, pointer = self._find(name)
        except Exception:  # noqa: BLE001 - there is none
            return
        self._loader.forget(mapping.identifier_of(name), pointer)

    _put("lastword.segments.catalog", "SegmentCatalog.drop", drop)


@_defect("late-deletion", "A deletion that was answered with an error is carried out later.")
def _late_deletion() -> None:
    _put("lastword.log.lifecycle", "Lifecycle._is_decided_after", lambda *_: False)
    _put("lastword.log.lifecycle", "Lifecycle.is_decided", lambda *_: True)


@_defect("shared-wal", "A topic that is created again finds the WAL of its predecessor.")
def _shared_wal() -> None:
    def change(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda data_folder, name, _topic_id: real(data_folder, name, UUID(int=0))

    for module in ("log.partition", "log.topics", "log.lifecycle"):
        _changed(f"lastword.{module}", "wal_folder", change)
    _put("lastword.log.lifecycle", "_remove_tree", lambda _: None)


@_defect("two-owners", "A folder keeps acknowledging after another one has taken its topic over.")
def _two_owners() -> None:
    _put("lastword.maintenance.ownership", "_check_held", lambda _: None)
    _put("lastword.maintenance.ownership", "Ownership.confirm", lambda _self, _catalog: [])


@_defect("forgetful-groups", "Committed offsets are answered, but not stored.")
def _forgetful_groups() -> None:
    def change(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, records: [] if self.name == "__lastword_groups" else real(self, records)

    _changed("lastword.log.topic", "Topic.append_internal", change)
