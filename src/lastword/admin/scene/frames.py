"""A picture of a partition, and the frames of a compaction run.

`rehearse` returns the frames up to the decision about each record, from the run that the engine would make now. It
changes nothing. Then this process or a worker elsewhere compacts. `finish` adds the frames of the actual commit, read
from the snapshots, and the picture afterwards. `perform` does all three.

A *picture* has `topic`, `partition`, `now_ms`, `snapshot_id`, the positions (`log_start`, `first_dirty`, `sealed_end`,
`log_end`), `segments` in offset order (`kind`, `file`, `first_offset`, `last_offset`, `records` as explain/data.py
returns them) and `state`, the last word on each key.

A *run* has `topic`, `partition`, `strategy`, `code` (code.py), `due` or `not_due`, the picture `before`, `frames`, and
once it is finished `committed` (None if nothing was) and the picture `after`. Each frame has `index`, `phase`, `line`
(the id of a line of the code, or None) and `text`, and depending on its phase

    seal      `file`, `offsets`: records that are only in the WAL become a segment
    find      `offset`, `key`, `wins`, `overtakes`, `adds_key`, `keys_seen`; the first one has only `keys_seen`
    decide    `offset`, `goes`, `rule`, `beaten_by`, `until_ms`
    rewrite   `out` (files), `new` (`file`, `records`, `offsets`, or None); or `file`, which is kept unchanged
    commit    `snapshot_id`, `parent_id`, `details`, `first_dirty` (`before`, `after`)
    later     `offset`, `until_ms`: a remaining tombstone, and when it may be removed

State and records of a frame are those of the picture `before` until the commit, then those of `after`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

from lastword.admin.scene import code
from lastword.admin.scene.walk import WalkStep, walk
from lastword.compaction.strategy import strategy_of
from lastword.compaction.unit import Unit
from lastword.errors import InvalidError, UnavailableError
from lastword.explain import PartitionExplanation, Question, explain_partition
from lastword.explain.data import beginning, record_data
from lastword.log import Log
from lastword.log.topic import Topic
from lastword.record_json import Json, json_bytes, snapshot_id_text
from lastword.segments.model import Segment, Snapshot
from lastword.segments.rows import to_records

MAX_RECORDS = 500
"""The largest number of records in a partition that the scene shows."""


def picture(log: Log, name: str, partition: int = 0) -> Json:
    """Return the picture of a partition: its state, and its segments with their records and the next run's verdicts.

    Raise InvalidError if it has more than MAX_RECORDS records.
    """
    topic = log.topic(name)
    return _picture(log, topic, _explained(log, topic, partition, []))


def rehearse(log: Log, name: str, partition: int = 0) -> Json:
    """Return the frames of the run that would be made now, up to the decisions. Change nothing."""
    topic = log.topic(name)
    steps: list[WalkStep] = []
    explained = _explained(log, topic, partition, steps)
    before = _picture(log, topic, explained)
    records = {each["offset"]: each for segment in before["segments"] for each in segment["records"]}
    frames = [*_seal_frames(before), *_find_frames(steps, records), *_decide_frames(before)]
    return {
        "topic": name,
        "partition": partition,
        "strategy": topic.settings.compaction_strategy,
        "code": code.listing(strategy_of(topic.settings).order),
        "due": explained.due,
        "not_due": explained.not_due,
        "before": before,
        "frames": _numbered(frames) if explained.due else [],
        "committed": None,
        "after": None,
    }


def finish(log: Log, rehearsed: Json) -> Json:
    """Return a rehearsed run with the frames of the commit since then, and the picture afterwards."""
    topic = log.topic(rehearsed["topic"])
    partition: int = rehearsed["partition"]
    commit = _commit_since(topic, rehearsed["before"]["snapshot_id"], partition)
    after = picture(log, topic.name, partition)
    if commit is None:
        return {**rehearsed, "after": after}
    before_commit, committed = commit
    segments = [topic.table.plan(each, partition) for each in commit]
    frames = [
        *rehearsed["frames"],
        *_rewrite_frames(segments[0], segments[1], after),
        _commit_frame(before_commit, committed, partition),
        *_later_frames(after),
    ]
    return {
        **rehearsed,
        "frames": _numbered(frames),
        "committed": {"snapshot_id": snapshot_id_text(committed.id), "details": dict(committed.details)},
        "after": after,
    }


def perform(log: Log, name: str) -> Json:
    """Actually seal and compact the first partition, and return the frames of the run."""
    rehearsed = rehearse(log, name)
    report = log.compact([name], partitions=[0], seal=True, asked_for=True)
    for failure in report.failures:
        raise UnavailableError(f"{name} could not be compacted: {failure.message}")
    return finish(log, rehearsed)


# ---------------------------------------------------------------------------------------------- the picture


def _explained(log: Log, topic: Topic, partition: int, steps: list[WalkStep]) -> PartitionExplanation:
    def watch(unit: Unit) -> None:
        if unit.keyed and unit.records <= MAX_RECORDS:
            steps.extend(walk(unit))

    question = Question(limit=MAX_RECORDS)
    with closing(topic.partition_reader(partition)) as reader:
        explained = explain_partition(reader, topic.known(partition), question, log.clock.now_ms, watch)
    if explained.next_offset is not None:
        raise InvalidError(
            f"Partition {partition} of {topic.name!r} has more than {MAX_RECORDS} records; "
            f"the scene can't show more."
        )
    return explained


def _picture(log: Log, topic: Topic, explained: PartitionExplanation) -> Json:
    segments: dict[str, Json] = {}
    for record in explained.records:
        place = record.place
        segment = segments.setdefault(
            place.file,
            {
                "kind": place.kind,
                "file": place.file,
                "first_offset": place.first_offset,
                "last_offset": place.last_offset,
                "records": [],
            },
        )
        segment["records"].append(record_data(record))
    return {
        "topic": topic.name,
        "partition": explained.partition,
        "now_ms": log.clock.now_ms(),
        "snapshot_id": snapshot_id_text(topic.table.snapshot().id),
        "log_start": explained.log_start,
        "first_dirty": explained.first_dirty,
        "sealed_end": explained.sealed_end,
        "log_end": explained.log_end,
        "segments": list(segments.values()),
        "state": _state(topic),
    }


def _state(topic: Topic) -> list[Json]:
    """Return the last word on each key, as a consumer knows it after reading everything."""
    return [
        {
            "partition": record.partition,
            "offset": record.offset,
            **json_bytes("key", record.key),
            **json_bytes("value", beginning(record.value, len(record.value or b""))),
        }
        for records in topic.state().to_batches()
        for record in to_records(records)
    ]


# ----------------------------------------------------------------------------------------------- the frames


def _numbered(frames: Sequence[Json]) -> list[Json]:
    return [{**frame, "index": index} for index, frame in enumerate(frames)]


def _seal_frames(before: Json) -> Iterator[Json]:
    for segment in before["segments"]:
        if segment["kind"].startswith("wal"):
            yield {
                "phase": "seal",
                "line": None,
                "file": segment["file"],
                "offsets": [record["offset"] for record in segment["records"]],
                "text": f"{segment['file']} is sealed: it becomes a segment of the table.",
            }


def _find_frames(steps: Sequence[WalkStep], records: dict[int, Json]) -> Iterator[Json]:
    if steps:
        yield {"phase": "find", "line": "find.set", "text": "No key has been seen yet.", "keys_seen": 0}
    keys_seen = 0
    for step in steps:
        record = records[step.offset]
        if not step.has_key:
            line, text = "find.no_key", f"Offset {step.offset} has no key, so it does not compete."
        elif step.leads and step.overtakes is None and step.keys_seen == keys_seen:
            line, text = "find.clean", f"Offset {step.offset} wins its key; it is in a clean segment."
        elif step.leads:
            line, text = "find.won", f"Offset {step.offset} wins its key, so far."
        else:
            line, text = "find.lost", f"Offset {step.offset} is beaten."
        yield {
            "phase": "find",
            "line": line,
            "offset": step.offset,
            "wins": step.leads,
            "overtakes": step.overtakes,
            "adds_key": step.keys_seen > keys_seen,
            "keys_seen": step.keys_seen,
            **{name: record[name] for name in ("key", "key_base64") if name in record},
            "text": text,
        }
        keys_seen = step.keys_seen


def _decide_frames(before: Json) -> Iterator[Json]:
    for segment in before["segments"]:
        for record in segment["records"]:
            yield {
                "phase": "decide",
                "line": code.line_of(record),
                "offset": record["offset"],
                "goes": record["goes"],
                "rule": record["rule"],
                "beaten_by": record["beaten_by"],
                "until_ms": record["until_ms"],
                "text": f"Offset {record['offset']} {'goes' if record['goes'] else 'stays'}: {record['reason']}.",
            }


def _rewrite_frames(before: Sequence[Segment], now: Sequence[Segment], after: Json) -> Iterator[Json]:
    """Yield the removed, added and kept files, from the difference of the two snapshots."""
    kept = {segment.path for segment in before} & {segment.path for segment in now}
    left = {
        segment["file"]: [record["offset"] for record in segment["records"]] for segment in after["segments"]
    }
    added = [segment for segment in now if segment.path not in kept]
    for segment in before:
        if segment.path in kept:
            yield {
                "phase": "rewrite",
                "line": "rewrite.as_it_is",
                "out": [],
                "new": None,
                "file": segment.path,
                "text": f"The segment with offsets {_span(segment)} stays as it is.",
            }
    gone = [segment for segment in before if segment.path not in kept]
    for group, new in _grouped(gone, added):
        spans = " and ".join(_span(each) for each in group)
        yield {
            "phase": "rewrite",
            "line": "rewrite.write",
            "out": [each.path for each in group],
            "new": None
            if new is None
            else {"file": new.path, "records": new.records, "offsets": left.get(new.path, [])},
            "text": f"Nothing is left of the segments with offsets {spans}."
            if new is None
            else f"The rest of {spans} is written to a new segment: {new.records} records.",
        }


def _grouped(
    gone: Sequence[Segment], added: Sequence[Segment]
) -> Iterator[tuple[list[Segment], Segment | None]]:
    """Group the removed segments by the new segment that has the rest of their records."""
    rest = list(gone)
    for new in added:
        own = [each for each in rest if each.first_offset <= new.last_offset]
        rest = [each for each in rest if each not in own]
        yield own, new
    if rest:
        yield rest, None


def _span(segment: Segment) -> str:
    return f"{segment.first_offset} to {segment.last_offset}"


def _commit_frame(before: Snapshot, committed: Snapshot, partition: int) -> Json:
    was, now = before.positions[partition], committed.positions[partition]
    return {
        "phase": "commit",
        "line": "commit.swap",
        "snapshot_id": snapshot_id_text(committed.id),
        "parent_id": snapshot_id_text(committed.parent_id),
        "details": dict(committed.details),
        "first_dirty": {"before": was.first_dirty, "after": now.first_dirty},
        "text": f"One commit applies all changes: snapshot {committed.id}.",
    }


def _later_frames(after: Json) -> Iterator[Json]:
    """Yield the remaining tombstones, with the time from which they may be removed."""
    for segment in after["segments"]:
        for record in segment["records"]:
            if record["rule"] == "tombstone":
                yield {
                    "phase": "later",
                    "line": code.line_of(record),
                    "offset": record["offset"],
                    "until_ms": record["until_ms"],
                    "text": f"Offset {record['offset']} is {record['reason']}.",
                }


def _commit_since(topic: Topic, snapshot_id: str | None, partition: int) -> tuple[Snapshot, Snapshot] | None:
    """Return the last compaction of a partition since a snapshot, with its parent snapshot."""
    history = topic.history()
    by_id = {each.id: each for each in history}
    ids = [snapshot_id_text(each.id) for each in history]
    since = history[ids.index(snapshot_id) + 1 :] if snapshot_id in ids else history
    for snapshot in reversed(since):
        parent = by_id.get(snapshot.parent_id)
        if (
            snapshot.operation == "compact"
            and parent is not None
            and parent.positions[partition].last_run != snapshot.positions[partition].last_run
        ):
            return parent, snapshot
    return None
