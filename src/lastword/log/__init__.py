"""The log: topics, their partitions, and who may do what to them.

log.py            a log and its roles
topic.py          a topic: appending, reading, sealing, describing
lifecycle.py      how topics begin and end
measuring.py      what is exported of each topic as metrics
announcements.py  how a job tells the writer's process of a commit before it makes it
"""

from lastword.log.log import Log, MaintenanceReport, open  # noqa: A004

__all__ = ["Log", "MaintenanceReport", "open"]
