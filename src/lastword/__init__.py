"""Lastword: a topic log that keeps the last word on every key.

import lastword

with lastword.open("./lastword-data") as log:
    users = log.create_topic("users", config={"cleanup.policy": "compact"})
    users.append("alice", '{"city": "Oslo"}')
    for record in users.read():
        print(record.offset, record.key, record.value)
"""

from lastword.batch import Compression
from lastword.clock import Clock, SystemClock
from lastword.config import BrokerConfig, TopicSettings
from lastword.errors import LastwordError
from lastword.log import Log, MaintenanceReport, open  # noqa: A004
from lastword.readers import Reader
from lastword.record import RECORD_SCHEMA, NewRecord, Record, TimestampType
from lastword.tiering import SealReport
from lastword.topic import PartitionDescription, RecordPosition, Topic, TopicDescription

__all__ = [
    "RECORD_SCHEMA",
    "BrokerConfig",
    "Clock",
    "Compression",
    "LastwordError",
    "Log",
    "MaintenanceReport",
    "NewRecord",
    "PartitionDescription",
    "Reader",
    "Record",
    "RecordPosition",
    "SealReport",
    "SystemClock",
    "TimestampType",
    "Topic",
    "TopicDescription",
    "TopicSettings",
    "open",
]
