"""What a broker says of topics of its catalog that belong to another data folder."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient
from kafka.protocol.admin import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse
from tests.support.broker import INLINE, running_broker
from tests.support.raw_client import RawClient

import lastword


def test_partitions_of_another_folders_topic_have_no_leader_here(tmp_path: Path) -> None:
    config = {
        "compaction.service.factory": INLINE,
        "catalog": {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db?timeout=30"},
        "warehouse": str(tmp_path / "warehouse"),
    }
    with lastword.open(tmp_path / "one", config=config) as log:
        log.create_topic("t", partitions=2)
    with running_broker(tmp_path / "two", config) as broker:
        listed = AdminClient({"bootstrap.servers": broker.address}).list_topics("t", timeout=180).topics["t"]
        assert [(each.id, each.leader, each.error.code()) for each in listed.partitions.values()] == [
            (0, -1, KafkaError.LEADER_NOT_AVAILABLE),
            (1, -1, KafkaError.LEADER_NOT_AVAILABLE),
        ]
        with RawClient(broker.address) as raw:
            wanted = [DescribeTopicPartitionsRequest.TopicRequest(name="t")]
            request = DescribeTopicPartitionsRequest(topics=wanted, response_partition_limit=9, cursor=None)
            (described,) = raw.ask(request, DescribeTopicPartitionsResponse, 0).topics
        assert [(each.error_code, each.leader_id) for each in described.partitions] == [(5, -1), (5, -1)]
