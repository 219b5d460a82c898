"""Compaction side by side: Lastword on Spark, Lastword inline, Spark row_number(), Spark max_by(struct).

    python -m bench.compaction [--quick] [--only NAME]... [--rounds N] [--json FILE]

All on the same segment files, in one Spark session, warm. Lastword's time is from the plan to the commit; plain
Spark's from the read to the written Parquet files (same codec), without any commit. What is written is compared.

Parts: ways (the four, on the data sets), parts (where the time goes), growth (1 M to 50 M records), second (a second
pass with 1 % new records on 10 M distinct keys), memory (20 M distinct keys in one partition within 2 GB).
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import lastword
from bench.support import Results, console, keys_of, median, rows_of, timed, usage, values_of
from lastword.compaction.engine import InlineEngine
from lastword.compaction.job import Compactor
from lastword.compaction.request import CompactionRequest
from lastword.compaction.spark import SparkEngine
from lastword.compaction.target import PartitionFacts, Target
from lastword.log import Log
from lastword.segments.model import Segment, TopicInfo

PARTS = ("ways", "parts", "growth", "second", "memory")
ROWS_A_SEGMENT = 250_000
SMALL_SEGMENT_BYTES = 16 << 20
"""Files of this size let a second pass rewrite only those that lose something."""


@dataclass(frozen=True)
class Data:
    """A log to be compacted. `garbage` is the share of records that another one beats."""

    name: str
    records: int
    value_bytes: int
    garbage: float
    partitions: int = 1
    zipf: bool = False
    json: bool = False
    """Values are rows as JSON; otherwise half of each value is random letters, which takes longer to decompress."""

    @property
    def keys(self) -> int:
        return max(1, round(self.records * (1 - self.garbage)))


FULL = (
    Data("5 M x 200 B, 90 % garbage", 5_000_000, 200, 0.9),
    Data("2 M x 1 KB, 90 % garbage", 2_000_000, 1024, 0.9),
    Data("5 M x 200 B JSON, 90 % garbage", 5_000_000, 200, 0.9, json=True),
    Data("5 M x 200 B, Zipf", 5_000_000, 200, 0.9, zipf=True),
    Data("2 M x 1 KB, Zipf", 2_000_000, 1024, 0.9, zipf=True),
    Data("5 M x 200 B, 50 % garbage", 5_000_000, 200, 0.5),
    Data("5 M x 200 B, 10 % garbage", 5_000_000, 200, 0.1),
    Data("5 M x 200 B, 8 partitions", 5_000_000, 200, 0.9, partitions=8),
    Data("2 M x 1 KB, 8 partitions", 2_000_000, 1024, 0.9, partitions=8),
)
QUICK = (
    Data("400 k x 200 B, 90 % garbage", 400_000, 200, 0.9),
    Data("400 k x 200 B, 8 partitions", 400_000, 200, 0.9, 8),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small data, for a first look")
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sets", type=int, help="only the first so many data sets")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    wanted = args.only or PARTS
    results = Results("compaction")
    folder = Path(tempfile.mkdtemp(prefix="lastword-bench-"))
    bench = Bench(folder, args.rounds)
    try:
        bench.warm_up()
        sets = (QUICK if args.quick else FULL)[: args.sets]
        if "ways" in wanted:
            for data in sets:
                bench.ways(data, results)
                results.save(args.json)
            results.show("Seconds, median of the rounds", _rows(results, "ways"))
        if "parts" in wanted:
            for data in [each for each in sets[:3] if each.partitions == 1]:
                bench.parts(data, results)
            results.show("Where the time goes, seconds", _rows(results, "parts"))
            results.save(args.json)
        if "growth" in wanted:
            for millions in (0.2, 0.5) if args.quick else (1, 5, 10, 20, 50):
                bench.growth(int(millions * 1e6), results)
            results.show(
                "As data grows (100 B values, 90 % garbage, one partition)", _rows(results, "growth")
            )
            results.save(args.json)
        if "second" in wanted:
            bench.second(400_000 if args.quick else 10_000_000, results)
            results.show("A second pass with 1 % new records", _rows(results, "second"))
            results.save(args.json)
        if "memory" in wanted:
            bench.memory(400_000 if args.quick else 20_000_000, results)
            results.show("Distinct keys only, one partition", _rows(results, "memory"))
    finally:
        bench.close()
        shutil.rmtree(folder, ignore_errors=True)
    results.save(args.json)


def _rows(results: Results, part: str) -> list[dict[str, object]]:
    return [{k: v for k, v in row.items() if k != "part"} for row in results.rows if row["part"] == part]


class Bench:
    def __init__(self, folder: Path, rounds: int) -> None:
        self._folder = folder
        self._rounds = rounds
        self._number = 0
        self.log: Log = lastword.open(folder / "data", config={"segment.bytes": 2**30})
        self.spark = SparkEngine({}, log_path=folder / "spark.log")
        self.inline = InlineEngine()

    def close(self) -> None:
        self.spark.close()
        self.log.close()

    def warm_up(self) -> None:
        """Start Spark, load the compiled loops, let the JVM compile what it will."""
        segments = self.write(Data("warm", 200_000, 200, 0.9))
        for engine in (self.spark, self.inline):
            for _ in range(3):
                self.compact(engine, segments, 1)
        self.plain(self.row_number, segments)
        self.plain(self.max_by, segments)

    # -------------------------------------------------------------------------------------------- data

    def write(self, data: Data, *, distinct: bool = False, keys: np.ndarray | None = None) -> list[Segment]:
        """Write segment files that belong to no topic yet."""
        table = self.topic(data.partitions)
        rng = np.random.default_rng(data.records + data.partitions)
        segments: list[Segment] = []
        each = data.records // data.partitions
        for partition in range(data.partitions):
            for first in range(0, each, ROWS_A_SEGMENT):
                rows = min(ROWS_A_SEGMENT, each - first)
                if keys is not None:
                    numbers = keys[first : first + rows]
                elif distinct:
                    numbers = np.arange(first, first + rows)
                elif data.zipf:
                    numbers = rng.zipf(1.3, rows) % data.keys
                else:
                    numbers = rng.integers(0, max(1, data.keys // data.partitions), rows)
                segments.append(self._segment(table, rng, partition, first, numbers, data))
        return segments

    def _segment(
        self,
        table: Any,
        rng: np.random.Generator,
        partition: int,
        first: int,
        numbers: np.ndarray,
        data: Data,
    ) -> Segment:
        import pyarrow as pa

        from lastword.record import PAYLOAD_SCHEMA

        values = rows_of if data.json else values_of
        with table.writer(partition, first, "bench") as writer:
            for start in range(0, len(numbers), 16_384):
                own = numbers[start : start + 16_384]
                offsets = np.arange(first + start, first + start + len(own))
                writer.write(
                    pa.RecordBatch.from_arrays(
                        [
                            pa.array(offsets),
                            pa.array(1_700_000_000_000_000 + offsets * 1000).cast(
                                pa.timestamp("us", tz="UTC")
                            ),
                            pa.repeat(pa.scalar(0, pa.int32()), len(own)),
                            keys_of(own),
                            values(rng, len(own), data.value_bytes),
                            pa.nulls(len(own), PAYLOAD_SCHEMA.field("headers").type),
                        ],
                        schema=PAYLOAD_SCHEMA,
                    )
                )
            segment = writer.close()
        assert segment is not None
        return segment

    def topic(self, partitions: int, segment_bytes: int = 2**30) -> Any:
        """The table of a new topic."""
        self._number += 1
        name = f"bench-{self._number}"
        config = {"cleanup.policy": "compact", "segment.bytes": segment_bytes}
        self.log.create_topic(name, partitions=partitions, config=config)
        return self.log._topics.load(name)

    def target(self, segments: list[Segment], partitions: int, segment_bytes: int = 2**30) -> Target:
        """A new topic that consists of these files; compaction leaves the files themselves alone."""
        from dataclasses import replace

        table = self.topic(partitions, segment_bytes)
        base = table.snapshot()
        ends = {p: max(s.last_offset for s in segments if s.partition == p) + 1 for p in range(partitions)}
        positions = {p: replace(base.positions[p], sealed_end=end) for p, end in ends.items()}
        table.append(base, segments, positions, operation="seal")
        info: TopicInfo = base.topic
        return Target(
            topic=info.name,
            table=table,
            settings=self.log.config.resolve(info.name, info.config),
            facts={partition: PartitionFacts(log_end=end) for partition, end in ends.items()},
        )

    # ------------------------------------------------------------------------------------------- the ways

    def compact(
        self,
        engine: Any,
        segments: list[Segment],
        partitions: int,
        config: Any = None,
        segment_bytes: int = 2**30,
    ) -> tuple[float, Any, Target]:
        target = self.target(segments, partitions, segment_bytes)
        compactor = Compactor(
            engine,
            config=config or self.log.config,
            clock=self.log._clock,
            leases=self.log._leases,
        )
        reports: list[Any] = []
        seconds = timed(lambda: reports.append(compactor.run([target])))
        problems = [each.problem for each in reports[0].partitions if each.problem]
        if problems or not reports[0].partitions:
            raise RuntimeError(f"nothing was compacted: {problems}")
        return seconds, reports[0], target

    def plain(self, way: Callable[[Any], Any], segments: list[Segment]) -> tuple[float, int]:
        spark = self.spark.session()
        out = str(self._folder / "plain")

        def run() -> None:
            frame = spark.read.parquet(*(segment.path for segment in segments))
            way(frame).write.mode("overwrite").option("compression", "zstd").parquet(out)

        seconds = timed(run)
        rows = spark.read.parquet(out).count()
        shutil.rmtree(out)
        return seconds, rows

    def row_number(self, frame: Any) -> Any:
        from pyspark.sql import Window
        from pyspark.sql import functions as sql

        newest = Window.partitionBy("partition", "key").orderBy(sql.desc("offset"))
        return frame.withColumn("n", sql.row_number().over(newest)).where("n = 1").drop("n")

    def max_by(self, frame: Any) -> Any:
        from pyspark.sql import functions as sql

        rest = sql.struct("offset", "timestamp", "timestamp_type", "value", "headers")
        return (
            frame.groupBy("partition", "key")
            .agg(sql.max_by(rest, "offset").alias("r"))
            .select("partition", "key", "r.*")
        )

    def ways(self, data: Data, results: Results) -> None:
        console.print(f"[dim]{data.name} …[/dim]")
        segments = self.write(data)
        ours: list[float] = []
        inline: list[float] = []
        plain: dict[str, list[float]] = {"row_number": [], "max_by": []}
        report = None
        with usage() as used:
            for _ in range(self._rounds + 1):
                seconds, report, _ = self.compact(self.spark, segments, data.partitions)
                ours.append(seconds)
        for _ in range(self._rounds + 1):
            inline.append(self.compact(self.inline, segments, data.partitions)[0])
        kept = sum(each.records_after for each in report.partitions)
        for _ in range(max(2, self._rounds // 2)):
            for name, way in (("row_number", self.row_number), ("max_by", self.max_by)):
                seconds, rows = self.plain(way, segments)
                plain[name].append(seconds)
                if rows != kept:
                    raise RuntimeError(f"{name} kept {rows} records, Lastword {kept}")
        # The first round of each is a warm-up.
        best = min(median(times[1:]) for times in plain.values())
        results.add(
            part="ways",
            data=data.name,
            lastword_spark=median(ours[1:]),
            lastword_inline=median(inline[1:]),
            row_number=median(plain["row_number"][1:]),
            max_by=median(plain["max_by"][1:]),
            times_faster=best / median(ours[1:]),
            records_kept=kept,
            mb_read=round(sum(each.read_bytes for each in report.partitions) / 1e6),
            mb_written=round(sum(each.written_bytes for each in report.partitions) / 1e6),
            mb_log=round(sum(each.bytes_before for each in report.partitions) / 1e6),
            cpu_s=used.cpu_s / (self._rounds + 1),
            peak_mb=round(used.peak_bytes / 1e6),
        )

    # --------------------------------------------------------------------------------------------- parts

    def parts(self, data: Data, results: Results) -> None:
        from dataclasses import replace

        from lastword.compaction import task
        from lastword.compaction.survivors import Survivors
        from lastword.compaction.target import plan_target

        segments = self.write(data)
        row: dict[str, list[float]] = {}

        def note(name: str, seconds: float) -> None:
            row.setdefault(name, []).append(seconds)

        for _ in range(self._rounds + 1):
            target = self.target(segments, 1)
            clock = self.log._clock
            compactor = Compactor(self.inline, config=self.log.config, clock=clock, leases=self.log._leases)
            plans: list[Any] = []
            note(
                "plan",
                timed(lambda target=target, plans=plans: plans.extend(plan_target(target, clock=clock))),
            )
            with self.log._leases.hold(topic_id="0", job="bench") as lease:
                unit = compactor._planned(plans[0], target, lease).job.unit
            note("spark alone", timed(lambda: self.spark._map([1], lambda number: number)))
            masks: list[Any] = []
            note(
                "find survivors", timed(lambda unit=unit, masks=masks: masks.extend(Survivors(unit).masks()))
            )
            found = [mask for _, mask in sorted(masks, key=lambda each: each[0])]
            note(
                "rewrite, one thread",
                timed(lambda unit=unit, found=found: task.rewrite_masked(unit, found)),
            )
            note("both, two threads", timed(lambda unit=unit: task.compact(replace(unit, threads=2))))
            note("whole run on Spark", self.compact(self.spark, segments, 1)[0])
        results.add(part="parts", data=data.name, **{name: median(times[1:]) for name, times in row.items()})

    def growth(self, records: int, results: Results) -> None:
        console.print(f"[dim]{records:,} records …[/dim]")
        segments = self.write(Data("growth", records, 100, 0.9))
        with usage() as used:
            times = [self.compact(self.spark, segments, 1)[0] for _ in range(3)]
        results.add(
            part="growth",
            records=records,
            seconds=median(times[1:]),
            records_per_s=round(records / median(times[1:])),
            peak_mb=round(used.peak_bytes / 1e6),
        )
        self._remove(segments)

    def second(self, keys: int, results: Results) -> None:
        """10 M distinct keys, all clean; then 1 % new records, spread over all keys or local in key space."""
        data = Data("second", keys, 100, 0.0)
        segments = self.write(data, distinct=True)
        rng = np.random.default_rng(5)
        fresh = keys // 100
        for name, numbers in (
            ("spread over all keys", rng.integers(0, keys, fresh)),
            ("local in key space", rng.integers(keys // 2, keys // 2 + fresh * 2, fresh)),
            ("new keys only", np.arange(keys, keys + fresh)),
        ):
            times, report, read = [], None, 0
            for _ in range(3):
                _, _, target = self.compact(self.spark, segments, 1, segment_bytes=SMALL_SEGMENT_BYTES)
                base = target.table.snapshot()
                at = base.positions[0]
                new = self._segment(target.table, rng, 0, at.sealed_end, numbers, data)
                from dataclasses import replace

                target.table.append(
                    base, [new], {0: replace(at, sealed_end=at.sealed_end + fresh)}, operation="seal"
                )
                compactor = Compactor(
                    self.spark,
                    config=self.log.config,
                    clock=self.log._clock,
                    leases=self.log._leases,
                )
                reports: list[Any] = []
                times.append(
                    timed(
                        lambda target=target, reports=reports: reports.append(
                            compactor.run([target], CompactionRequest(asked_for=True))
                        )
                    )
                )
                report = reports[0].partitions[0]
                read = report.read_bytes
            results.add(
                part="second",
                new_records=name,
                seconds=median(times[1:]),
                segments=f"{report.segments_compacted} of {report.segments_before} rewritten",
                mb_log=round(report.bytes_before / 1e6),
                mb_read=round(read / 1e6),
                mb_written=round(report.written_bytes / 1e6),
            )
        self._remove(segments)

    def memory(self, keys: int, results: Results) -> None:
        """As many distinct keys, with a task's memory for keys bounded so that all of it stays within 2 GB."""
        segments = self.write(Data("memory", keys, 100, 0.0), distinct=True)
        config = lastword.BrokerConfig.from_mapping(
            {"compaction.task.memory.bytes": 1_200_000_000, "segment.bytes": 2**30}, where="bench"
        )
        with usage() as used:
            seconds, report, _ = self.compact(self.inline, segments, 1, config)
        own = report.partitions[0]
        results.add(
            part="memory",
            distinct_keys=keys,
            way=own.way,
            seconds=seconds,
            peak_mb_with_idle_spark=round(used.peak_bytes / 1e6),
            records_kept=own.records_after,
        )
        self._remove(segments)

    def _remove(self, segments: list[Segment]) -> None:
        for segment in segments:
            Path(segment.path.removeprefix("file://")).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
