"""Partitions and topics are independent of each other, even topics of the same name."""

from __future__ import annotations

from lastword.testing.compaction_service.one_log import OneLog
from lastword.testing.compaction_service.records import newest, put


class Separation(OneLog):
    """Tests of several partitions and topics."""

    def test_partitions_are_compacted_each_for_itself(self) -> None:
        topic = self.topic(partitions=3)
        written = [self.write_rounds(topic, rounds=each + 1, keys=3, partition=each) for each in (0, 1)]

        self.compact(topic)

        for partition, own in enumerate(written):
            self.check(topic, own, partition)
        assert not self.service(topic).read_compacted_entries(2, 0, 10)
        assert self.service(topic).last_compacted_entry(2) is None
        assert list(topic.read(compacted=True)) == [*newest(written[0]), *newest(written[1])]

    def test_topics_are_compacted_each_for_itself(self) -> None:
        topics = [self.topic("a"), self.topic("a.b"), self.topic("a-b")]
        written = [self.write_rounds(topic, rounds=2, keys=2 + index) for index, topic in enumerate(topics)]

        self.compact(*topics[:2])
        for topic, own in zip(topics[:2], written, strict=False):
            self.check(topic, own)
        assert self.service(topics[2]).last_compacted_position(0) is None

        self.compact(topics[2])
        for topic, own in zip(topics, written, strict=True):
            self.check(topic, own)

    def test_a_topic_created_again_shares_nothing_with_the_old_one(self) -> None:
        old = self.topic()
        written = self.write_rounds(old, rounds=2, keys=8)
        self.compact(old)
        self.check(old, written)
        self.log.delete_topic(old.name)

        topic = self.topic()
        assert self.service(topic).last_compacted_position(0) is None
        assert self.service(topic).last_compacted_entry(0) is None
        assert not self.service(topic).read_compacted_entries(0, 0, 10)
        written = self.write(topic, put("key-1", "new"), put("key-1", "newer"))
        assert list(topic.read(compacted=True)) == written

        self.compact(topic)
        self.check(topic, written)
