"""The log: topics, their partitions, and who may do what to them.

log.py            a log: whoever opens it, what may be asked of it, who may do so
topics.py         its topics: those that are open, those in the catalog; creating, altering, deleting
jobs.py           what is done to all topics: retention, compaction, erasure, verification
worker.py         when that is done in the background
topic.py          a topic, which spreads appends over its partitions, reads and seals them
partition.py      a partition: its WAL and whoever writes it, its readers, what planning must know of it
routing.py        which partition a record goes to
appending.py      how batches get into partitions, and what is acknowledged
encoding.py       records as record batches, and what must hold for a batch
describing.py     what a topic is and where its records are
lifecycle.py      how topics begin and end
measuring.py      what is exported of each topic as metrics
announcements.py  how a job tells the writer's process of a commit before it makes it
"""

from lastword.log.jobs import MaintenanceReport
from lastword.log.log import Log, open  # noqa: A004

__all__ = ["Log", "MaintenanceReport", "open"]
