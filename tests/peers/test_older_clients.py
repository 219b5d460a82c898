"""The admin client of kafka-python 2, which reads other versions of the answers than the one that the suite runs."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from peers.jars import UnreachableError, python_with
from tests.support.broker import running_broker

JOB = """
import json, sys
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.protocol.admin import ElectionType
from kafka.structs import TopicPartition

address = sys.argv[1]
admin = KafkaAdminClient(bootstrap_servers=address)
admin.create_topics([NewTopic("t", 2, 1)])
producer = KafkaProducer(bootstrap_servers=address)
producer.send("t", b"1", key=b"k").get(180)
producer.close()
consumer = KafkaConsumer("t", bootstrap_servers=address, group_id="g", auto_offset_reset="earliest")
next(consumer)
consumer.commit()
found = {
    "topics": admin.list_topics(),
    "topic": admin.describe_topics(["t"])[0]["authorized_operations"],
    "all": sorted(each["topic"] for each in admin.describe_topics()),
    "cluster": admin.describe_cluster()["authorized_operations"],
    "group": [str(each) for each in admin.describe_consumer_groups(["g"], include_authorized_operations=True)[0][-1]],
    "groups": admin.list_consumer_groups(),
    "offsets": sum(each.offset for each in admin.list_consumer_group_offsets("g").values()),
}
consumer.close()
admin.delete_consumer_groups(["g"])
for kind, name in ((ConfigResourceType.TOPIC, "t"), (ConfigResourceType.BROKER, "1")):
    admin.describe_configs([ConfigResource(kind, name)])
admin.create_partitions({"t": NewPartitions(3)})
admin.delete_records({TopicPartition("t", 0): 0})
admin.perform_leader_election(ElectionType.PREFERRED)
admin.delete_topics(["t"])
print(json.dumps(found))
"""


def test_kafka_python_2(tmp_path: Path) -> None:
    try:
        python = python_with("kafka-python==2.3.0")
    except UnreachableError as error:
        pytest.skip(str(error))
    job = tmp_path / "job.py"
    job.write_text(JOB)
    with running_broker(tmp_path / "data", {"group.initial.rebalance.delay.ms": 0}) as broker:
        done = subprocess.run(
            [str(python), str(job), broker.address], capture_output=True, text=True, timeout=200, check=False
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["topics"] == found["all"] == ["__lastword_groups", "t"]
    assert len(found["topic"]) == 8 and len(found["cluster"]) == 7 and len(found["group"]) == 5
    assert found["groups"] == [["g", "consumer"]] and found["offsets"] == 1
