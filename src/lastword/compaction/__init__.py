"""Compaction: keeps one record of each key, by default the newest.

strategy.py       the strategies that decide which record of a key wins
rules.py          the rules that decide which records of a partition stay, as data
plan.py           which partitions are due, and why: pure functions of metadata, settings and the time
target.py         a topic as planning sees it; whether a partition is due, and why
holds.py          the readers that still need tombstones
unit.py           the input and the outcome of one compaction of one partition
keyset.py         the exact set of the keys seen so far
survivors.py      finds the rows that survive, as one mask per segment
grouping.py       chooses the neighbouring segments that become one file
rewrite.py        writes the surviving rows to new files
pool.py           threads that share the work of one compaction
kernels.py        compacts one partition in one task
engine.py         the protocol of an engine, and the engine that works in this process
spark.py          the engine that works on Spark
spark_session.py  the Spark session of this process
inline.py         the factory for compaction in this process
reports.py        what a run did, partition by partition
watching.py       the progress of a run
job.py            a run over topics: plan, carry out, commit, report
service.py        the protocols of a compaction service, and the shipped implementation
compacting.py     loads the service that the settings name, and tells it what the log knows
"""

SHIPPED_FACTORIES = (
    "lastword.compaction.spark:SparkCompactionServiceFactory",
    "lastword.compaction.inline:InlineCompactionServiceFactory",
)
"""Factories that are known to load. Any other value of `compaction.service.factory` is checked when a log opens."""
