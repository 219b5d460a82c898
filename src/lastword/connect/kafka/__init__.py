"""The `kafka` connector: mirrors topics of a Kafka cluster, and the offsets of its consumer groups.

connector.py  records, partition by partition
groups.py     the groups' offsets at the source, translated to offsets here
offsets.py    the committed offsets of a group, at the source or here
"""

from __future__ import annotations

from lastword.connect.kafka.connector import KafkaConnector

__all__ = ["KafkaConnector"]
