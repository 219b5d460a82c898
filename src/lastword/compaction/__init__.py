"""Compaction: keeps one record of each key, by default the newest.

strategy.py       the strategies that decide which record of a key wins
rules.py          the rules that decide which records of a partition stay, as data
request.py        the request of a compaction: the partitions that it takes, in which order, and its callbacks
plan.py           which partitions are due, and why: pure functions of metadata, settings and the time
target.py         a topic as planning sees it, with the facts that only the log knows
holds.py          the readers that still need tombstones
unit.py           the input and the outcome of one compaction of one partition
keyset.py         the exact set of the keys seen so far
survivors.py      finds the rows that survive, as one mask per segment
grouping.py       chooses the neighbouring segments that become one file
rewrite.py        writes the surviving rows to new files
pool.py           threads that share the work of one compaction
round.py          the input and the outcome of a round of sealing
sealing.py        compacts a round while it is sealed
progress.py       the progress of a task
task.py           compacts one partition in one task
engine.py         the protocol of an engine, and the engine that works in this process
spark.py          the engine that works on Spark
spark_session.py  the Spark session of this process
inline.py         the factory for compaction in this process
reports.py        what a run did, partition by partition
planned.py        a run of a partition that is about to be carried out, and its unit of work
watching.py       the progress of a run
committing.py     commits finished runs: files out, files in, positions
job.py            a run over topics: plan, carry out, commit, report
service.py        the protocols of a compaction service, and the shipped implementation
compacting.py     loads the service that the settings name, and tells it what the log knows
"""

SHIPPED_FACTORIES = (
    "lastword.compaction.spark:SparkCompactionServiceFactory",
    "lastword.compaction.inline:InlineCompactionServiceFactory",
)
"""Factories that are known to load. Any other value of `compaction.service.factory` is checked when a log opens."""
