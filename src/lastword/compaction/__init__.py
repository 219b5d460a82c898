"""Compaction: only the newest record of each key stays.

strategy.py       which record of a key wins
rules.py          which records of a partition stay, as data
plan.py           what is due, and why: pure functions of metadata, settings and the time
target.py         a topic as planning sees it; whether a partition is due, and why
holds.py          which readers still need tombstones
unit.py           what one compaction of one partition is given, and what it gives back
keyset.py         the exact set of the keys seen so far
survivors.py      which rows survive: one mask a segment
grouping.py       which neighbouring segments become one file
rewrite.py        the rows that survive, in new files
pool.py           threads that share the work of one compaction
kernels.py        all of that for one partition, in one task
engine.py         where units are carried out
spark.py          on Spark
spark_session.py  the Spark session of this process
inline.py         in this process
job.py            a run over topics: plan, carry out, commit, report
service.py        the protocols of a compaction service, and the one that is shipped
compacting.py     loads the service that the settings name, and tells it what the log knows
"""

SHIPPED_FACTORIES = (
    "lastword.compaction.spark:SparkCompactionServiceFactory",
    "lastword.compaction.inline:InlineCompactionServiceFactory",
)
"""Factories that are known to load. Whatever else `compaction.service.factory` names is looked at when a log opens."""
