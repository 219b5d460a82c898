"""The log: topics, their partitions, and the operations that each process may perform on them.

log.py              a log as a whole: opening it, and the operations on its topics
writer_role.py      the writer role: held by this process, or requested from its holder
context.py          the parts of an open log that everything in it shares
topics.py           its topics, open and in the catalog: creating, altering, deleting them
directory.py        its topics, as they are in the catalog
jobs.py             the jobs of a log: retention, compaction, erasure, verification, backup
erasures.py         erasures, which are noted first and resumed
late_compaction.py  the compaction, made on first use
worker.py           runs those jobs in the background when they are due
readable.py         reads of a topic: records, state, explanations, descriptions
appendable.py       appends to a topic: it spreads records over its partitions
topic.py            a topic as a whole: it also seals its partitions, and deletes records
partition.py        a partition: its WAL and writer, its readers, the facts that planning needs
routing.py          chooses the partition of a record
appending.py        writes batches to partitions and acknowledges them
encoding.py         records as record batches, and the checks that a batch must pass
describing.py       a description of a topic and the locations of its records
lifecycle.py        creates and deletes topics so that a crash leaves nothing half done
staging.py          sweeps abandoned staged records
measuring.py        the metrics of each topic
announcements.py    how a job announces a commit to the writer's process before it makes it
"""

from lastword.log.jobs import MaintenanceReport
from lastword.log.log import Log, open  # noqa: A004

__all__ = ["Log", "MaintenanceReport", "open"]
