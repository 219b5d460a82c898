"""Producers that write down what became of each record."""

from __future__ import annotations

from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from tests.support.real_history.plan import KEYS, ClientPlan, TopicPlan
from tests.support.real_history.recording import QUIET, Surroundings, Words, partition_of

from lastword.testing.history import ProducedRecord
from lastword.testing.history.recorder import PendingProduce

FLUSH_S: Final = 300.0
REFUSALS: Final = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_RECORD,
        KafkaError._PURGE_QUEUE,
    }
)
"""Errors of a record that was sent once at most after which it is certainly not in the log."""


class RecordingProducer:
    """Sends records without waiting for the answers. Each record is an operation of its own."""

    def __init__(self, around: Surroundings, plan: ClientPlan, topics: tuple[TopicPlan, ...]) -> None:
        self._around = around
        self._plan = plan
        self._topics = topics
        self._chance = around.chance(plan.name)
        self._words = Words(around, self._chance)
        self._producer = self._new()
        self.lives = 1
        """How many producers it took. librdkafka's idempotent producer ends itself when it can't keep its promise."""

    def run(self) -> None:
        """Send records until the end, and wait for all answers."""
        while not self._around.ended.is_set():
            topic = self._chance.choice(self._topics)
            self.send(topic, self._words.record(topic, self._chance.choice(KEYS)))
            self._producer.poll(0)
            self._around.pause(self._chance.choice([0.0, 0.0, 0.005, 0.05]))
        self.flush()
        self.close()

    def send(self, topic: TopicPlan, record: ProducedRecord) -> None:
        assert record.key is not None and record.timestamp_ms is not None
        partition = partition_of(record.key.decode(), topic)
        pending = self._around.recorder.produce(topic.name, partition, [record], process=self._plan.name)

        def delivered(error: KafkaError | None, message: Message) -> None:
            self._delivered(pending, topic, error, message)

        while True:
            try:
                self._producer.produce(
                    topic.name,
                    record.value,
                    record.key,
                    partition,
                    on_delivery=delivered,
                    timestamp=record.timestamp_ms,
                    headers=list(record.headers),
                )
                return
            except BufferError:
                self._producer.poll(0.1)
            except KafkaException as error:
                with pending:
                    pending.refused(error)
                self._around.pause(0.1)
                if error.args[0].code() == KafkaError._FATAL:
                    self._begin_again()
                return

    def flush(self) -> None:
        left = self._producer.flush(FLUSH_S)
        if left:
            self._around.problem(f"{self._plan.name} has no answer for {left} records")

    def _begin_again(self) -> None:
        self.flush()
        self._producer = self._new()
        self.lives += 1

    def close(self) -> None:
        """End the client, if it is a process of its own."""
        if self._plan.library == "java":
            self._producer.close()

    def _new(self) -> Any:
        address = self._around.served.kafka
        if self._plan.library == "java":
            from tests.support.real_history.java_client import JavaProducer

            return JavaProducer(address, self._plan.config)
        return Producer(
            {
                "bootstrap.servers": address,
                # Records of one that does not try again don't wait for long behind others.
                "queue.buffering.max.messages": 300 if self._plan.is_reliable else 5,
                **QUIET,
                **self._plan.config,
            }
        )

    def _delivered(
        self, pending: PendingProduce, topic: TopicPlan, error: KafkaError | None, message: Message
    ) -> None:
        with pending:
            if error is None:
                pending.acknowledged(message.offset())
            elif not self._plan.is_reliable and error.code() in REFUSALS:
                pending.refused(error)
            else:
                # A record that was sent again may have been appended by an attempt before the one that failed.
                pending.doubt(error)
        if error is not None and self._plan.is_reliable and not topic.is_churned:
            self._around.problem(f"{self._plan.name} could not append to {topic.name}: {error}")
