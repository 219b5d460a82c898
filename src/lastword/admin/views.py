"""Data for the pages that no other path returns in one answer: all topics, one row each, and one topic drawn to scale.

A row is made from the table's snapshot, which takes one small query, and from the writer's memory; no WAL and no segment
is opened. Rows are kept for a moment, so that several open pages cost no more than one, and no request waits until all
of many topics have been looked at.
Ids of snapshots are text here: they have more digits than a number in a browser can hold.
"""

from __future__ import annotations

import base64
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from lastword.clock import monotonic_s
from lastword.compaction.holds import Downtimes, ReaderPosition, Uptime
from lastword.compaction.plan import Assessment, PartitionView
from lastword.compaction.strategy import strategy_of
from lastword.config import is_internal
from lastword.config.keys import TOPIC_KEYS
from lastword.errors import InvalidError, LastwordError
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.maintenance.worker_state import load_status
from lastword.operations.record_page import Offsets, RecordPage, place_of_offset, place_of_time, record_page
from lastword.operations.records import point_of
from lastword.operations.state_page import state_page
from lastword.reading.topic_reader import committed_positions, group_positions
from lastword.record_json import Json, parse_time, record_data
from lastword.segments.model import Segment, Snapshot, retry_if_moved
from lastword.segments.sketch import Sketches
from lastword.wal.deleter import LocalFile, LocalFiles

W = TypeVar("W", bound=LocalFiles)

FRESH_S = 2.0
"""The age at which the view of all topics is refreshed."""
WAIT_S = 0.1
"""How long a request waits for a refresh, which is enough for some hundred topics. After that it is answered with the
rows that are known; with more topics, some are from the previous refresh."""
MOST_DRAWN = 240
"""With more segments in a partition, neighbours are drawn as one: a screen has no more room."""
MOST_FOOTERS = 512
"""The garbage of a segment is estimated from its footer, a small read; for more segments it would take too long."""
MOST_SNAPSHOTS = 200
PAGE_BYTES = 4 << 20
"""A page ends with the record that passes this many bytes of keys and values."""


# --------------------------------------------------------------------------------------------- all topics


class Overview:
    """All topics, one row each. A thread refreshes them; a request waits for it, but not for long."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._rows: dict[str, Json] = {}
        self._refreshed_s = float("-inf")
        self._refreshing: threading.Thread | None = None

    def begin(self) -> None:
        """Start a refresh, if one is due, for a request that is about to come."""
        with self._lock:
            self._start()

    def current(self) -> Json:
        """Return the rows as of a moment ago. A topic that was not looked at yet has `pending`, and no numbers."""
        with self._lock:
            self._start()
            refreshing = self._refreshing
        if refreshing is not None:
            refreshing.join(WAIT_S)
        rows = dict(self._rows)
        return {
            "now_ms": self._log.clock.now_ms(),
            "topics": [rows.get(name) or self._pending(name) for name in self._names()],
        }

    def _start(self) -> None:
        if self._refreshing is None and monotonic_s() - self._refreshed_s > FRESH_S:
            self._refreshing = threading.Thread(target=self._refresh, name="lastword-overview", daemon=True)
            self._refreshing.start()

    def _refresh(self) -> None:
        try:
            now_ms = self._log.clock.now_ms()
            downtimes = Uptime(self._log.path).downtimes(now_ms)
            failing = _failing(self._log.path)
            names = [name for name in self._log.catalog_names() if not is_internal(name)]
            visited = self._log.visit(
                lambda name: _overview_row(self._log.topic(name), now_ms, downtimes, failing.get(name, [])),
                names,
            )
            unreadable = {name: self._unreadable(name, error) for name, error in visited.problems.items()}
            self._rows = {**visited.found, **unreadable}
        finally:
            with self._lock:
                self._refreshing = None
                self._refreshed_s = monotonic_s()

    def _names(self) -> list[str]:
        """Return the names of all topics. The broker opens all but unreadable ones; if none is open, ask the catalog."""
        opened = {name for name in list(self._log.opened_topics()) if not is_internal(name)}
        unreadable = {name for name, row in list(self._rows.items()) if row["state"] == "unreadable"}
        return sorted(opened | unreadable) if opened else self._log.topics()

    def _pending(self, name: str) -> Json:
        topic = self._log.opened_topics().get(name)
        known = {} if topic is None else {"partitions": topic.partitions, "cleanup_policy": _policy(topic)}
        return {"name": name, "state": "ready", "pending": True, "problems": [], "due": {}, **known}

    def _unreadable(self, name: str, error: LastwordError) -> Json:
        return {**self._pending(name), "state": "unreadable", "pending": False, "problems": [str(error)]}


def _failing(data_folder: Path) -> dict[str, list[str]]:
    """Return the compactions that keep failing, by topic."""
    found: dict[str, list[str]] = {}
    status = load_status(data_folder)
    for each in status.failing if status is not None else ():
        what = "compaction" if each.partition is None else f"compaction of partition {each.partition}"
        times = "once" if each.failures == 1 else f"{each.failures} times"
        found.setdefault(each.topic, []).append(
            f"{what} has failed {times}: {each.message.removesuffix('.')}"
        )
    return found


def _overview_row(topic: Topic, now_ms: int, downtimes: Downtimes, problems: Sequence[str]) -> Json:
    def open_files(snapshot: Snapshot) -> list[LocalFiles]:
        return [each.open_files(snapshot) for each in topic.partitions_in(snapshot)]

    assessed, wals = _look(topic, downtimes, open_files)
    return _row(topic, assessed, wals, now_ms, problems)


def _look(
    topic: Topic, downtimes: Downtimes, files: Callable[[Snapshot], list[W]]
) -> tuple[list[Assessment], list[W]]:
    """Return the partitions of a topic as planning sees them, and their WAL files, as of one snapshot."""

    def attempt() -> tuple[list[Assessment], list[W]]:
        snapshot = topic.table.snapshot()
        # Before the log ends: no file begins beyond them.
        wals = files(snapshot)
        return topic.assess(snapshot=snapshot, downtimes=downtimes), wals

    return retry_if_moved(attempt, f"Topic {topic.name!r}")


def _row(
    topic: Topic,
    assessed: Sequence[Assessment],
    wals: Sequence[LocalFiles],
    now_ms: int,
    problems: Sequence[str],
) -> Json:
    views = [each.view for each in assessed]
    segments = [segment for view in views for segment in view.segments]
    unsealed = sum(view.unsealed_records for view in views)
    runs = [view.positions.last_run for view in views if view.positions.last_run is not None]
    return {
        "name": topic.name,
        "state": "ready",
        "cleanup_policy": _policy(topic),
        "partitions": topic.partitions,
        "records": sum(segment.records for segment in segments) + unsealed,
        "unsealed_records": unsealed,
        "segments": len(segments),
        "sealed_bytes": sum(segment.size_bytes for segment in segments),
        "wal_bytes": sum(wal.size_bytes for wal in wals),
        "dirty_ratio": max(
            (each.dirty_ratio for each in assessed if each.dirty_ratio is not None), default=None
        ),
        "due": Counter(each.plan.reason for each in assessed if each.plan is not None),
        "last_run_ms": max((run.time_ms for run in runs), default=None),
        "reclaimed_bytes": sum(run.reclaimed_bytes for run in runs),
        "tiering_lag_ms": max((wal.waiting_ms(now_ms) for wal in wals), default=0),
        "problems": [
            *problems,
            *(
                f"partition {each.number} refuses appends: {each.failed}"
                for each in topic.open_partitions()
                if each.failed
            ),
        ],
    }


def _policy(topic: Topic) -> str:
    return ",".join(sorted(topic.settings.cleanup_policy))


# ---------------------------------------------------------------------------------------------- one topic


def layout(log: Log, name: str, *, estimates: bool = False) -> Json:
    """Return where the records of a topic are along its offsets, its readers, and its snapshots.

    With `estimates`, also estimate the garbage of each segment, which reads footers.
    """
    topic = log.topic(name)
    now_ms = log.clock.now_ms()
    assessed, wals = _look(topic, Uptime(log.path).downtimes(now_ms), topic.local_wals)
    row = _row(topic, assessed, wals, now_ms, _failing(log.path).get(name, []))
    views = [each.view for each in assessed]
    files = {wal.partition: wal.files for wal in wals}
    garbage = _garbage(topic, views) if estimates and row["segments"] <= MOST_FOOTERS else {}
    groups = group_positions(log.path, topic.id.hex)
    readers = committed_positions(log.path, topic.id.hex)
    return {
        **row,
        "now_ms": now_ms,
        "id": str(topic.id),
        "location": topic.table.location,
        "strategy": topic.settings.compaction_strategy,
        "garbage_is_known": bool(garbage) or not row["segments"],
        "partition_list": [
            {
                "partition": view.partition,
                "log_start": view.positions.log_start,
                "first_dirty": view.positions.first_dirty,
                "sealed_end": view.positions.sealed_end,
                "log_end": view.log_end,
                "records": sum(each.records for each in view.segments),
                "segment_count": len(view.segments),
                "sealed_bytes": sum(each.size_bytes for each in view.segments),
                "segments": _drawn(view.segments, view.positions.first_dirty, garbage),
                "wal": [_file(each, view.log_end) for each in files.get(view.partition, ())],
                "readers": _readers(view.partition, readers, groups),
                "last_run": None if view.positions.last_run is None else view.positions.last_run._asdict(),
            }
            for view in views
        ],
        "snapshots": _snapshots(topic, now_ms),
    }


def _drawn(segments: Sequence[Segment], first_dirty: int, garbage: dict[str, int]) -> list[list[Any]]:
    """Return for each bar: first and last offset, records, bytes, whether dirty, garbage (None: unknown), segments."""
    size = -(-len(segments) // MOST_DRAWN) or 1
    drawn = []
    for start in range(0, len(segments), size):
        some = segments[start : start + size]
        known = [garbage[each.path] for each in some if each.path in garbage]
        drawn.append(
            [
                some[0].first_offset,
                some[-1].last_offset,
                sum(each.records for each in some),
                sum(each.size_bytes for each in some),
                int(some[-1].is_dirty(first_dirty)),
                sum(known) if len(known) == len(some) else None,
                len(some),
            ]
        )
    return drawn


def _garbage(topic: Topic, views: Sequence[PartitionView]) -> dict[str, int]:
    """Estimate how many records of each segment are superseded by records elsewhere, by path.

    Start at the end that wins: the distinct keys that a segment adds to those seen so far are its winners.
    """
    if not topic.settings.compacts:
        return {}
    sketches = Sketches(topic.table.files)
    found: dict[str, int] = {}
    try:
        for view in views:
            in_order = view.segments if strategy_of(topic.settings).order == "oldest" else view.segments[::-1]
            keys = 0.0
            for segment, keys_now in zip(in_order, sketches.growing(in_order), strict=True):
                keyed = segment.records - segment.null_keys
                found[segment.path] = max(0, min(keyed, round(keyed - (keys_now - keys))))
                keys = max(keys, keys_now)
    except (LastwordError, OSError):
        # A file is being replaced, or the storage is unavailable: draw without estimates.
        return {}
    return found


def _file(file: LocalFile, log_end: int) -> Json:
    return {
        "first_offset": file.first_offset,
        "end_offset": log_end if file.end_offset is None else file.end_offset,
        "size_bytes": file.size_bytes or 0,
        "active": file.end_offset is None,
        "rolled_ms": file.rolled_ms,
    }


def _readers(
    partition: int, readers: Sequence[ReaderPosition], groups: Sequence[ReaderPosition]
) -> list[Json]:
    grouped = {(each.reader, each.partition) for each in groups}
    return [
        {
            "name": each.reader,
            "kind": "group" if (each.reader, partition) in grouped else "reader",
            "position": each.position,
            "active_ms": each.active_ms,
        }
        for each in readers
        if each.partition == partition
    ]


def _snapshots(topic: Topic, now_ms: int) -> list[Json]:
    """Return the snapshots, newest first. A compaction's duration is that of its slowest partition."""
    found = []
    history = topic.history()
    for before, snapshot in zip([None, *history[:-1]], history, strict=True):
        durations = [
            at.last_run.duration_ms
            for partition, at in enumerate(snapshot.positions)
            if at.last_run is not None
            and (
                before is None
                or partition >= len(before.positions)
                or before.positions[partition].last_run != at.last_run
            )
        ]
        found.append(
            {
                "id": str(snapshot.id),
                "committed_ms": snapshot.committed_ms,
                "age_ms": now_ms - snapshot.committed_ms,
                "operation": snapshot.operation,
                "details": dict(snapshot.details),
                "duration_ms": max(durations, default=None) if snapshot.operation == "compact" else None,
            }
        )
    return found[::-1][:MOST_SNAPSHOTS]


# -------------------------------------------------------------------------------------------- the settings


def settings(log: Log, name: str) -> list[Json]:
    """Return the settings that a topic can have, each with its value, source, meaning and allowed values."""
    return [
        {**asdict(each), "meaning": known.meaning, "allowed": known.kind.allowed, "unset": known.unset}
        for each in log.explain_config(name)
        if (known := TOPIC_KEYS.get(each.key)) is not None
    ]


# ------------------------------------------------------------------------------------------------ records


def records(
    log: Log,
    name: str,
    *,
    partition: int | None = None,
    key: bytes | None = None,
    as_of: str | None = None,
    at: str | None = None,
    limit: int,
    max_bytes: int = PAGE_BYTES,
) -> Json:
    """Return a page of records over all partitions, newest first, and how many there are.

    `at` is the place: newest, oldest, up to `offset:N` or `time:T`, or before or since a place that another page named.
    """
    topic = log.topic(name)
    point = None if as_of is None else point_of(topic, as_of, partition)

    def page(before: Offsets | None = None, since: Offsets | None = None) -> RecordPage:
        return record_page(
            topic,
            partition=partition,
            key=key,
            as_of=point,
            before=before,
            since=since,
            limit=limit,
            max_bytes=max_bytes,
        )

    before, since = _places(topic, at)
    found = page(before, since)
    if since is not None and found.since is None:
        # The newer records don't fill a page: fill it with older ones.
        found = page()
    return {
        "topic": name,
        "total": found.total,
        "newer": found.newer,
        "records": [record_data(record) for record in found.records],
        "next": None if found.before is None else f"before:{_text(found.before)}",
        "previous": None if found.since is None else f"since:{_text(found.since)}",
    }


def _places(topic: Topic, at: str | None) -> tuple[Offsets | None, Offsets | None]:
    """Return the place before which the page's records are, or the one since which they are."""
    kind, _, rest = (at or "newest").partition(":")
    match kind:
        case "newest":
            return None, None
        case "oldest":
            return None, {}
        case "offset" if rest.isascii() and rest.isdigit():
            return place_of_offset(topic, int(rest)), None
        case "time":
            return place_of_time(topic, parse_time(rest)), None
        case "before" if (place := _place(rest)) is not None:
            return place, None
        case "since" if (place := _place(rest)) is not None:
            return None, place
    raise InvalidError(
        f"at is {at!r}; allowed: newest, oldest, offset:N, time:T, and the values of `next` and `previous`"
    )


def _text(place: Offsets) -> str:
    return ",".join(f"{partition}-{offset}" for partition, offset in sorted(place.items()))


def _place(text: str) -> Offsets | None:
    pairs = [each.split("-") for each in text.split(",")]
    if not all(len(each) == 2 and each[0].isdecimal() and each[1].isdecimal() for each in pairs):
        return None
    return {int(partition): int(offset) for partition, offset in pairs}


# ------------------------------------------------------------------------------------------------ the state


def state(
    log: Log,
    name: str,
    *,
    search: str | None,
    as_of: str | None,
    limit: int,
    after: bytes | None = None,
    max_bytes: int = PAGE_BYTES,
) -> Json:
    """Return a page of the newest record of each key that contains some text, ordered by key."""
    topic = log.topic(name)
    page = state_page(
        topic,
        as_of=None if as_of is None else point_of(topic, as_of, None),
        search=search.encode() if search else None,
        after=after,
        limit=limit,
        max_bytes=max_bytes,
    )
    return {
        "topic": name,
        "keys": page.keys,
        "matching": page.matching,
        "records": [record_data(record) for record in page.records],
        "next": None if page.next is None else base64.b64encode(page.next).decode(),
    }
