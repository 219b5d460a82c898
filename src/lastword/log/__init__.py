"""The log: topics, their partitions, and the operations that each process may perform on them.

log.py            a log: opening it, the operations on it, and the roles that they need
topics.py         its topics, open and in the catalog: creating, altering, deleting them
jobs.py           jobs over all topics: retention, compaction, erasure, verification
worker.py         runs those jobs in the background when they are due
readable.py       a topic as far as reading goes: records, state, explanations, descriptions
topic.py          a topic, which spreads appends over its partitions, reads and seals them
partition.py      a partition: its WAL and writer, its readers, the facts that planning needs
routing.py        chooses the partition of a record
appending.py      writes batches to partitions and acknowledges them
encoding.py       records as record batches, and the checks that a batch must pass
describing.py     a description of a topic and of where its records are
lifecycle.py      creates and deletes topics so that a crash leaves nothing half done
measuring.py      the metrics of each topic
announcements.py  how a job announces a commit to the writer's process before it makes it
"""

from lastword.log.jobs import MaintenanceReport
from lastword.log.log import Log, open  # noqa: A004

__all__ = ["Log", "MaintenanceReport", "open"]
