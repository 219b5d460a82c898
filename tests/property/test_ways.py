"""The ways in which a partition can be compacted lead to the same rows, whatever the strategy.

LASTWORD_EXAMPLES multiplies the number of random cases.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.support.segments import START_MS, local_place, new_topic, records, write_segment
from tests.support.spark import spark_engine  # noqa: F401

from lastword.compaction.engine import Failure, InlineEngine, Job, TooLarge, next_way
from lastword.compaction.plan import Way
from lastword.compaction.rules import Expiring, OldestTombstones, Rules, oldest_of_all
from lastword.compaction.spark import SparkEngine
from lastword.compaction.strategy import FirstWord, HighestHeader, LastWord, LatestTimestamp, Strategy
from lastword.compaction.unit import Outcome, Unit
from lastword.record import TimestampType
from lastword.segments.table import SegmentTable

EXAMPLES = int(os.environ.get("LASTWORD_EXAMPLES", "1"))
STRATEGIES: dict[str, Strategy] = {
    "offset": LastWord(),
    "first": FirstWord(),
    "timestamp": LatestTimestamp(),
    "header long": HighestHeader(header="v", format="long"),
    "header text": HighestHeader(header="v", format="text"),
}
KEYS = [None, b"", b"a", b"b", b"c", b"d", b"a\0", b"k" * 30, b"k" * 29 + b"l"]

Row = tuple[bytes | None, bytes | None, int, bool, tuple[tuple[str, bytes | None], ...]]
"""Key, value, timestamp, whether it has one, headers."""


@dataclass(frozen=True)
class Case:
    """The rows of each segment, and the rules."""

    segments: tuple[tuple[Row, ...], ...]
    clean: int
    rules: Rules
    merge_bytes: int
    min_rewrite_ratio: float
    keyed: bool = True


def version(strategy: str, number: int | None) -> tuple[tuple[str, bytes | None], ...]:
    if number is None:
        return ()
    if strategy == "header long":
        return (("v", number.to_bytes(8, "big", signed=True)),)
    return (("v", b"?"), ("v", str(number).encode()), ("w", None))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    strategy = draw(st.sampled_from(list(STRATEGIES)))
    row = st.tuples(
        st.sampled_from(KEYS),
        st.sampled_from([None, b"", b"value"]),
        st.integers(START_MS, START_MS + 9),
        st.booleans(),
        st.one_of(st.none(), st.integers(-3, 3)).map(lambda number: version(strategy, number)),
    )
    segments = draw(
        st.lists(st.lists(row, min_size=1, max_size=25).map(tuple), min_size=1, max_size=5).map(tuple)
    )
    end = sum(map(len, segments))
    expiring = draw(
        st.lists(
            st.builds(
                lambda start, size, before: Expiring(start=start, end=start + size, before_ms=before),
                st.integers(0, end),
                st.integers(1, 30),
                st.sampled_from([START_MS + 5, 1 << 60]),
            ),
            max_size=2,
        )
    )
    return Case(
        segments=segments,
        clean=draw(st.integers(0, len(segments))),
        rules=Rules(
            strategy=STRATEGIES[strategy],
            log_start=draw(st.sampled_from([0, 0, end // 3])),
            expiring=tuple(expiring),
            retention_before_ms=draw(st.sampled_from([None, None, START_MS + 3])),
            held_from=draw(st.sampled_from([1 << 60, end // 2])),
        ),
        merge_bytes=draw(st.sampled_from([0, 9_000, 1 << 20])),
        min_rewrite_ratio=draw(st.sampled_from([0.0, 0.3, 1.0])),
    )


def unit_of(case: Case, table: SegmentTable) -> Unit:
    """The case as files, some of whose segments are clean: they were found without a key twice among them."""
    segments, offset, first_dirty = [], 0, 0
    seen: set[bytes] = set()
    unique = True
    for number, rows in enumerate(case.segments):
        batch = records(
            offset,
            len(rows),
            keys=[row[0] for row in rows],
            values=[row[1] for row in rows],
            timestamps_ms=[row[2] for row in rows],
            types=[TimestampType.CREATE if row[3] else TimestampType.NONE for row in rows],
            headers=[list(row[4]) or None for row in rows],
        )
        segments.append(write_segment(table, batch))
        # Gaps between segments are normal.
        offset += len(rows) + number
        if number < case.clean:
            first_dirty = offset
            keys = [row[0] for row in rows if row[0] is not None]
            unique = unique and len({*seen, *keys}) == len(seen) + len(keys)
            seen |= set(keys)
    return Unit(
        topic="t",
        partition=0,
        files=table.files,
        segments=tuple(segments),
        first_dirty=first_dirty,
        clean_is_unique=unique,
        keyed=case.keyed,
        rules=case.rules,
        merge_bytes=case.merge_bytes,
        merge_span_ms=None,
        min_rewrite_ratio=case.min_rewrite_ratio,
        rewrite_marked_ms=-1,
        now_ms=START_MS,
        job_id="job",
        seed=12345,
    )


@dataclass(frozen=True)
class Result:
    rows: tuple[object, ...]
    tombstones_removed: int
    oldest: OldestTombstones


def result_of(unit: Unit, outcome: object) -> Result:
    assert isinstance(outcome, Outcome), outcome
    assert {each.path for each in outcome.removed} <= {each.path for each in unit.segments}
    rows = [
        row for segment in outcome.left for batch in unit.files.read(segment) for row in batch.to_pylist()
    ]
    assert [row["offset"] for row in rows] == sorted(row["offset"] for row in rows)
    for each in outcome.rewritten:
        # Nothing is rewritten into itself.
        assert each.added is None or len(each.removed) > 1 or each.added.records < each.removed[0].rows
    for marked in outcome.marked:
        assert marked.after.path == marked.before.path and marked.after.records < marked.before.records
        assert sum(batch.num_rows for batch in unit.files.read(marked.after)) == marked.after.records
    return Result(
        rows=tuple(str(row) for row in rows),
        tombstones_removed=outcome.tombstones_removed,
        oldest=oldest_of_all(
            [
                outcome.oldest_examined,
                *(each.oldest for each in outcome.rewritten),
                *(each.oldest for each in outcome.marked if each.oldest is not None),
            ]
        ),
    )


def by_hand(case: Case, unit: Unit) -> tuple[str, ...]:
    """Who survives, the slow way."""
    rules = case.rules
    rows = [
        row for segment in unit.segments for batch in unit.files.read(segment) for row in batch.to_pylist()
    ]
    live = [row for row in rows if row["offset"] >= rules.log_start]
    ages = [stamp for segment in case.segments for _, _, stamp, _, _ in segment]
    age_of = {row["offset"]: age for row, age in zip(rows, ages, strict=True)}

    def rank(row: dict[str, object]) -> tuple[object, ...]:
        offset = row["offset"]
        match rules.strategy:
            case LastWord():
                return (offset,)
            case FirstWord():
                return (-offset,)  # type: ignore[operator]
            case LatestTimestamp():
                stamp = row["timestamp"]
                return (stamp is not None, age_of[offset] if stamp is not None else 0, offset)
        values = [each["value"] for each in row["headers"] or () if each["key"] == "v"]  # type: ignore[attr-defined]
        if not values:
            return (False, 0, offset)
        long = rules.strategy == STRATEGIES["header long"]
        return (True, int.from_bytes(values[-1], "big", signed=True) if long else int(values[-1]), offset)

    best: dict[bytes, dict[str, object]] = {}
    for row in live:
        key = row["key"]
        if key is not None and (key not in best or rank(row) > rank(best[key])):
            best[key] = row
    kept = []
    for row in live:
        offset, age = row["offset"], age_of[row["offset"]]
        if row["key"] is not None and best[row["key"]] is not row:
            continue
        expired = any(each.start <= offset < each.end and age < each.before_ms for each in rules.expiring)
        if row["key"] is not None and row["value"] is None and expired:
            continue
        if rules.retention_before_ms is not None and age < rules.retention_before_ms:
            continue
        kept.append(str(row))
    return tuple(kept)


ONE: Way = "one stage"
TWO: Way = "two stages"
SQL: Way = "Spark SQL"


@settings(
    max_examples=60 * EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES == 1,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
@given(cases())
def test_inline_every_way_is_the_same(case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = local_place(Path(folder))
        unit = unit_of(case, place.open().create(new_topic()))
        jobs = [
            Job(unit=unit, way=ONE),
            Job(unit=unit, way=TWO, shares=1),
            Job(unit=unit, way=TWO, shares=2),
            Job(unit=unit, way=TWO, shares=7),
            Job(unit=unit, way=SQL),
        ]
        first, *others = [result_of(unit, each) for each in InlineEngine(threads=2).run(jobs)]
        assert all(each == first for each in others)
        assert result_of(unit, InlineEngine(threads=1).run(jobs[:1])[0]) == first
        assert first.rows == by_hand(case, unit)
        place.close()


@settings(
    max_examples=2,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
@given(st.lists(cases(), min_size=2, max_size=2))
def test_on_spark_every_way_is_the_same(spark_engine: SparkEngine, some: list[Case]) -> None:  # noqa: F811
    with tempfile.TemporaryDirectory() as folder:
        place = local_place(Path(folder))
        table = place.open().create(new_topic())
        units = [unit_of(case, table) for case in some]
        expected = [result_of(unit, InlineEngine().run([Job(unit=unit, way=ONE)])[0]) for unit in units]
        # All of one way as one job, and the large ones beside them.
        jobs = [
            Job(unit=unit, way=way, shares=shares)
            for way, shares in ((ONE, 1), (TWO, 3), (SQL, 1))
            for unit in units
        ]
        found = spark_engine.run(jobs)
        for job, outcome, wanted in zip(jobs, found, expected * 3, strict=True):
            assert result_of(job.unit, outcome) == wanted, job.way
        place.close()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_on_spark_each_strategy_goes_all_ways(
    spark_engine: SparkEngine,  # noqa: F811
    strategy: str,
    tmp_path: Path,
) -> None:
    rows: tuple[Row, ...] = tuple(
        (
            b"key-%d" % (number % 50) if number % 11 else None,
            None if number % 7 == 0 else b"%d" % number,
            START_MS + number * 37 % 100,
            number % 5 != 0,
            version(strategy, None if number % 13 == 0 else number * 31 % 17 - 8),
        )
        for number in range(400)
    )
    case = Case(
        segments=tuple(rows[start : start + 100] for start in range(0, 400, 100)),
        clean=0,
        rules=Rules(
            strategy=STRATEGIES[strategy],
            log_start=20,
            expiring=(Expiring(start=0, end=300),),
            retention_before_ms=START_MS + 10,
        ),
        merge_bytes=12_000,
        min_rewrite_ratio=0.0,
    )
    place = local_place(tmp_path)
    unit = unit_of(case, place.open().create(new_topic()))
    jobs = [Job(unit=unit, way=ONE), Job(unit=unit, way=TWO, shares=4), Job(unit=unit, way=SQL)]
    found = [result_of(unit, each) for each in spark_engine.run(jobs)]
    assert found[0].rows == by_hand(case, unit)
    assert found[0] == found[1] == found[2]
    place.close()


# -------------------------------------------------------------------------------------- bounded memory


def many_keys(count: int) -> Case:
    rows: Sequence[Row] = [
        (b"key-%d" % (number % (count // 2)), b"v", START_MS, True, ()) for number in range(count)
    ]
    return Case(
        segments=(tuple(rows[: count // 2]), tuple(rows[count // 2 :])),
        clean=0,
        rules=Rules(
            strategy=LastWord(),
            log_start=0,
            expiring=(),
            retention_before_ms=None,
        ),
        merge_bytes=0,
        min_rewrite_ratio=0.0,
    )


@pytest.mark.parametrize("strategy", ["offset", "first", "timestamp"])
def test_too_many_keys_for_a_task_take_the_next_way(tmp_path: Path, strategy: str) -> None:
    case = many_keys(8000)
    case = replace(case, rules=replace(case.rules, strategy=STRATEGIES[strategy]))
    place = local_place(tmp_path)
    unit = replace(unit_of(case, place.open().create(new_topic())), max_set_bytes=60_000)
    job = Job(unit=unit, way=ONE)
    tried = []
    while isinstance(outcome := InlineEngine().run([job])[0], TooLarge):
        tried.append((job.way, job.shares))
        job = next_way(job)
    # Inline, shares are tried until they fit.
    assert tried == [(ONE, 1)]
    assert result_of(unit, outcome).rows == by_hand(case, unit)
    place.close()


def test_the_ways_in_their_order() -> None:
    job = Job(unit=None, way=ONE)  # type: ignore[arg-type]
    found = []
    for _ in range(6):
        found.append((job.way, job.shares))
        job = next_way(job)
    assert found == [(ONE, 1), (TWO, 2), (TWO, 4), (TWO, 8), (TWO, 16), (SQL, 1)]


def test_on_spark_the_last_way_needs_no_set(spark_engine: SparkEngine, tmp_path: Path) -> None:  # noqa: F811
    case = many_keys(8000)
    place = local_place(tmp_path)
    unit = replace(unit_of(case, place.open().create(new_topic())), max_set_bytes=20_000)
    found = spark_engine.run(
        [Job(unit=unit, way=ONE), Job(unit=unit, way=TWO, shares=2), Job(unit=unit, way=SQL)]
    )
    assert found[:2] == [TooLarge(), TooLarge()]
    assert result_of(unit, found[2]).rows == by_hand(case, unit)
    place.close()


def test_on_spark_one_that_fails_leaves_the_others(spark_engine: SparkEngine, tmp_path: Path) -> None:  # noqa: F811
    place = local_place(tmp_path)
    table = place.open().create(new_topic())
    good, gone, bad = (unit_of(many_keys(20), table) for _ in range(3))
    place.remove_file(gone.segments[0].path)
    place.write_bytes(bad.segments[0].path, b"not a Parquet file")
    found = spark_engine.run([Job(unit=unit, way=way) for unit in (good, gone, bad) for way in (ONE, TWO)])
    assert all(isinstance(each, Outcome) for each in found[:2])
    for each, said in zip(
        found[2:], ("no longer there", "no longer there", "damaged", "damaged"), strict=True
    ):
        assert isinstance(each, Failure) and said in each.message
    place.close()
