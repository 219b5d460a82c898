"""Lastword: a topic log that keeps the last word on every key.

import lastword

with lastword.open("./lastword-data") as log:
    users = log.create_topic("users", config={"cleanup.policy": "compact"})
    users.append("alice", '{"city": "Oslo"}')
    for record in users.read():
        print(record.offset, record.key, record.value)
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lastword.batch import Compression
    from lastword.clock import Clock, SystemClock
    from lastword.compaction.plan import PartitionPlan
    from lastword.compaction.reports import CompactionReport, PartitionReport
    from lastword.config import BrokerConfig, TopicSettings
    from lastword.errors import LastwordError
    from lastword.explain.model import ExplainedRecord, Explanation
    from lastword.log import Log, MaintenanceReport, open  # noqa: A004
    from lastword.log.appendable import RecordPosition
    from lastword.log.describing import PartitionDescription, TopicDescription
    from lastword.log.topic import Topic
    from lastword.log.worker import Worker
    from lastword.maintenance.backup.make import BackupReport
    from lastword.maintenance.backup.restore import RestoreReport
    from lastword.maintenance.backup.restoring import backups, restore
    from lastword.maintenance.erase import EraseReport
    from lastword.maintenance.relocating import Relocation, relocate
    from lastword.maintenance.tiering import SealReport
    from lastword.maintenance.verify import VerifyReport
    from lastword.reading.timetravel import AsOf
    from lastword.reading.topic_reader import Reader
    from lastword.record import RECORD_SCHEMA, NewRecord, Record, TimestampType

__all__ = [
    "RECORD_SCHEMA",
    "AsOf",
    "BackupReport",
    "BrokerConfig",
    "Clock",
    "CompactionReport",
    "Compression",
    "EraseReport",
    "ExplainedRecord",
    "Explanation",
    "LastwordError",
    "Log",
    "MaintenanceReport",
    "NewRecord",
    "PartitionDescription",
    "PartitionPlan",
    "PartitionReport",
    "Reader",
    "Record",
    "RecordPosition",
    "Relocation",
    "RestoreReport",
    "SealReport",
    "SystemClock",
    "TimestampType",
    "Topic",
    "TopicDescription",
    "TopicSettings",
    "VerifyReport",
    "Worker",
    "backups",
    "open",
    "relocate",
    "restore",
]

_HOMES = {
    "lastword.maintenance.backup.make": ("BackupReport",),
    "lastword.maintenance.backup.restore": ("RestoreReport",),
    "lastword.batch": ("Compression",),
    "lastword.clock": ("Clock", "SystemClock"),
    "lastword.compaction.reports": ("CompactionReport", "PartitionReport"),
    "lastword.compaction.plan": ("PartitionPlan",),
    "lastword.config": ("BrokerConfig", "TopicSettings"),
    "lastword.maintenance.erase": ("EraseReport",),
    "lastword.errors": ("LastwordError",),
    "lastword.explain.model": ("ExplainedRecord", "Explanation"),
    "lastword.log": ("Log", "MaintenanceReport", "open"),
    "lastword.reading.topic_reader": ("Reader",),
    "lastword.record": ("RECORD_SCHEMA", "NewRecord", "Record", "TimestampType"),
    "lastword.maintenance.relocating": ("Relocation", "relocate"),
    "lastword.maintenance.backup.restoring": ("backups", "restore"),
    "lastword.maintenance.tiering": ("SealReport",),
    "lastword.reading.timetravel": ("AsOf",),
    "lastword.log.describing": ("PartitionDescription", "TopicDescription"),
    "lastword.log.appendable": ("RecordPosition",),
    "lastword.log.topic": ("Topic",),
    "lastword.maintenance.verify": ("VerifyReport",),
    "lastword.log.worker": ("Worker",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


# Type checkers must not see this: it would make every misspelt name legal.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # On first use: Arrow and Iceberg take a second to import, and `lastword --help` needs neither.
        if name not in _HOME_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
