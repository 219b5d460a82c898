"""Compaction against a model of lists and dicts: the same records stay, whatever happened before.

LASTWORD_EXAMPLES multiplies the number of examples for a long run. A failing example is not made smaller, since each
one takes a second: what it did is printed step by step.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.support.compacted import Twin, segments_of
from tests.support.compaction_model import NO_TIMESTAMP, Policy
from tests.support.other_engines import ENGINES, read_by

from lastword.record import NewRecord
from lastword.segments.catalog import sqlite_properties

EXAMPLES = int(os.environ.get("LASTWORD_EXAMPLES", "1"))

SECOND = 1000
KEYS = (b"", b"a", b"b", b"a\0", b"k" * 40, b"k" * 39 + b"l")
VALUES = (b"1", b"", b"two", b"x" * 300)
ALMOST_A_LONG = (b"\0" * 7, b"", None, b"not a number")


@dataclass(frozen=True)
class Step:
    """Something that is done to the topic."""

    do: Literal["append", "seal", "move", "compact", "delete", "retain", "read"]
    records: tuple[tuple[int, NewRecord], ...] = ()
    number: int = 0
    partition: int = 0
    mode: str = ""


def _version_headers(policy: Policy) -> st.SearchStrategy[tuple[tuple[str, bytes | None], ...]]:
    if policy.strategy != "header":
        return st.sampled_from([(), (("h", b"x"), ("h", None), ("ü", b""))])
    if policy.header_format == "long":
        good = st.integers(-2, 3).map(lambda number: number.to_bytes(8, "big", signed=True))
    else:
        good = st.sampled_from([b"-2", b"0", b"1", b"01", b"2", b"+3"])
    one = st.tuples(
        st.sampled_from(["v", "v", "v", "other"]), st.one_of(good, good, st.sampled_from(ALMOST_A_LONG))
    )
    return st.lists(one, max_size=2).map(tuple)


@st.composite
def record(draw: st.DrawFn, policy: Policy) -> NewRecord:
    """A record; its timestamp is counted from the time of the append."""
    return NewRecord(
        key=draw(st.one_of(st.none(), *[st.just(key) for key in KEYS], *[st.just(key) for key in KEYS[:3]])),
        value=draw(st.one_of(st.none(), st.none(), st.sampled_from(VALUES))),
        headers=draw(_version_headers(policy)),
        timestamp_ms=draw(st.sampled_from([None, None, NO_TIMESTAMP, 0, 0, 5, -10, -40, 20])),
    )


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    strategy = draw(st.sampled_from(["offset", "offset", "first", "timestamp", "header"]))
    min_lag = draw(st.sampled_from([0, 0, 10, 40]))
    return Policy(
        deletes=draw(st.booleans()),
        strategy=strategy,
        header_format=draw(st.sampled_from(["long", "text"])) if strategy == "header" else "long",
        min_ratio=draw(st.sampled_from([0.0, 0.3, 0.5, 0.9])),
        ratio_basis=draw(st.sampled_from(["bytes", "records"])),
        min_lag_ms=min_lag * SECOND,
        max_lag_ms=draw(st.sampled_from([None, None, 45 * SECOND])),
        delete_retention_ms=draw(st.sampled_from([0, 5, 30])) * SECOND,
        tombstone_clock=draw(st.sampled_from(["compaction", "record"])),
        min_rewrite_ratio=draw(st.sampled_from([0.0, 0.3, 0.3, 0.8, 1.0])),
        at_seal=draw(st.booleans()),
        retention_ms=draw(st.sampled_from([None, 15, 60])) and 60 * SECOND,
        hold_ms=draw(st.sampled_from([20, 60])) * SECOND,
        hold_max_ms=draw(st.sampled_from([0, 30, 600])) * SECOND,
    )


@st.composite
def steps(draw: st.DrawFn, policy: Policy, partitions: int) -> list[Step]:
    found: list[Step] = []
    for _ in range(draw(st.integers(1, 4))):
        for _ in range(draw(st.integers(1, 3))):
            own = draw(
                st.lists(st.tuples(st.integers(0, partitions - 1), record(policy)), min_size=1, max_size=8)
            )
            found += [Step("append", records=tuple(own)), Step("seal")]
            if draw(st.booleans()):
                found.append(Step("move", number=draw(st.sampled_from([1, 10, 35, 60]))))
        extra = st.one_of(
            st.just(Step("retain")),
            st.builds(
                Step, st.just("delete"), number=st.integers(0, 100), partition=st.integers(0, partitions - 1)
            ),
            st.builds(Step, st.just("read"), number=st.integers(0, 100), mode=st.sampled_from(["r1", "r2"])),
            st.builds(Step, st.just("move"), number=st.sampled_from([1, 5, 10, 35])),
            st.builds(
                Step,
                st.just("append"),
                records=st.lists(st.tuples(st.integers(0, partitions - 1), record(policy)), max_size=3).map(
                    tuple
                ),
            ),
        )
        found += draw(st.lists(extra, max_size=2))
        modes = st.sampled_from(["due", "due", "asked for", "forced"])
        found += [Step("compact", mode=draw(modes)) for _ in range(draw(st.integers(1, 2)))]
    return found


def _do(twin: Twin, step: Step) -> None:
    match step.do:
        case "append":
            for partition, each in step.records:
                stamp = each.timestamp_ms
                if stamp is not None and stamp != NO_TIMESTAMP:
                    stamp = twin.now_ms + stamp * SECOND
                twin.append(
                    NewRecord(key=each.key, value=each.value, headers=each.headers, timestamp_ms=stamp),
                    partition=partition,
                )
        case "seal":
            twin.seal()
        case "move":
            twin.move(step.number * SECOND)
        case "delete":
            model = twin.models[step.partition]
            twin.delete_before(step.partition, model.log_end * step.number // 100)
        case "retain":
            twin.retain()
        case "read":
            wanted = {
                partition: model.log_start + (model.log_end - model.log_start) * step.number // 100
                for partition, model in enumerate(twin.models)
            }
            twin.commit_reader(step.mode, wanted)
        case "compact":
            _compact(twin, step.mode)


def _compact(twin: Twin, mode: str) -> None:
    expected = twin.expected_reasons()
    due = twin.due()
    for partition, reasons in enumerate(expected):
        if reasons:
            assert due.get(partition) in reasons, (partition, reasons, due)
        else:
            allowed = (None, "tombstones", "garbage" if _has_old_marks(twin, partition) else None)
            assert due.get(partition) in allowed, (partition, due)
    report = twin.compact(asked_for=mode == "asked for", force=mode == "forced")
    if report.partitions:
        _is_settled(twin, {each.partition for each in report.partitions})


def _has_old_marks(twin: Twin, partition: int) -> bool:
    limit_ms = min(twin.policy.max_lag_ms or 1 << 60, 604_800_000)
    return any(
        each.marks is not None and twin.now_ms - each.marks.since_ms >= limit_ms
        for each in segments_of(twin.table, partition)
    )


def _is_settled(twin: Twin, compacted: set[int]) -> None:
    """After a run nothing is due at the same time but tombstones that lingered for one round and are expired."""
    runs = 0
    while due := twin.due():
        assert set(due.values()) == {"tombstones"}, due
        assert runs < 2, f"due again and again: {due}"
        twin.compact()
        runs += 1
    before = twin.table.snapshot().id
    assert twin.compact().partitions == ()
    assert twin.table.snapshot().id == before
    # The size of a file is estimated before it is written: the next run may join two that are smaller than that.
    twin.compact(force=True)
    for each in twin.compact(force=True).partitions:
        if each.partition in compacted:
            assert (each.written_bytes, each.segments_compacted) == (0, 0), each


@settings(
    max_examples=15 * EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES == 1,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(st.data())
def test_the_same_records_stay(data: st.DataObject) -> None:
    check_example(data)


def check_example(data: st.DataObject) -> None:
    policy = data.draw(policies(), "policy")
    partitions = data.draw(st.integers(1, 2), "partitions")
    segment_bytes = data.draw(st.sampled_from([400, 5000, 1 << 20]), "segment.bytes")
    segment_ms = data.draw(st.sampled_from([20 * SECOND, 3600 * SECOND]), "segment.ms")
    todo = data.draw(steps(policy, partitions), "steps")
    config = {"segment.bytes": segment_bytes, "segment.ms": segment_ms}
    with (
        tempfile.TemporaryDirectory() as folder,
        Twin(Path(folder) / "data", policy, partitions=partitions, config=config) as twin,
    ):
        for step in todo:
            _do(twin, step)
            _is_seen_by_others(twin)
        twin.check()
        properties = sqlite_properties(Path(folder) / "data" / "catalog.db")
        for engine in ENGINES:
            assert read_by(engine, properties, "t") == _sealed(twin), engine


def _is_seen_by_others(twin: Twin) -> None:
    """pyiceberg, in this process, sees the rows that are there and no others."""
    rows = twin.table._refresh().scan(selected_fields=("partition", "offset")).to_arrow().to_pydict()
    assert sorted(zip(rows["partition"], rows["offset"], strict=True)) == _sealed(twin)


def _sealed(twin: Twin) -> list[tuple[int, int]]:
    return [(partition, row.offset) for partition, model in enumerate(twin.models) for row in model.rows]
