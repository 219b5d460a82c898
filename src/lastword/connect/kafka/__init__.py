"""The `kafka` connector: topics of a Kafka cluster, and where its consumer groups stand.

connector.py  records, partition by partition
groups.py     the groups' offsets at the source, and what they are here
offsets.py    what a group has committed, at the source or here
"""

from __future__ import annotations

from lastword.connect.kafka.connector import KafkaConnector

__all__ = ["KafkaConnector"]
