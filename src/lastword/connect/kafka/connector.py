"""`kafka`: mirrors topics of a Kafka cluster: records, their timestamps and headers, partition by partition.

The position is the next offset of each partition. Nothing is committed to Kafka, and no group is joined. A record keeps
its partition and, unless `offsets: new` says otherwise, its offset, with the gaps that compaction and transactions have
left there. That requires topics here that are new, and that no other client appends to. `offset_header` keeps the
original offset in a header in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from lastword.clock import monotonic_s
from lastword.connect.kafka.groups import GroupMirror
from lastword.connect.options import Options
from lastword.connect.protocol import Chunk, Context, Position, SourceRecord
from lastword.errors import InvalidConfigError, InvalidError, UnavailableError

logger = logging.getLogger(__name__)

MAX_RECORDS: Final = 10_000
IDLE_S: Final = 0.5
TIMEOUT_S: Final = 15.0
REFRESH_S: Final = 30.0
"""How often to look for new partitions and measure the lag."""
DEFAULT_OFFSET_HEADER: Final = "lastword.offset"
"""If records get new offsets, the offsets of groups are found by this header."""
_NO_TIMESTAMP: Final = 0

Offsets = dict[str, dict[str, int]]
"""The next offset of each topic and partition. Keys in JSON are strings."""


class KafkaConnector:
    """Mirrors some topics of one cluster."""

    def __init__(self, options: Options, context: Context) -> None:
        self._context = context
        bootstrap = options.required("bootstrap", "the brokers of the cluster, HOST:PORT separated by commas")
        self._topics = options.texts("topics") or []
        self._start = options.choice("start", "earliest", ("earliest", "latest"))
        self._on_lost = options.choice("on_lost", "stop", ("stop", "skip"))
        self._keeps = options.choice("offsets", "keep", ("keep", "new")) == "keep"
        self._offset_header = options.text("offset_header")
        groups = options.texts("groups") or []
        self._groups_s = options.number("groups_interval_ms", 10_000, low=100) / 1000
        client = options.group("client")
        options.finish()
        if not self._topics:
            raise InvalidConfigError(
                f"{options.where}: {options.path}.topics is missing; it names the topics to mirror"
            )
        self._pattern = context.topic or "{topic}"
        if len(self._topics) > 1 and "{topic}" not in self._pattern:
            raise InvalidConfigError(
                f"{options.where}: sources.{context.source}.topic is {self._pattern!r}; several topics need {{topic}} "
                f"in it"
            )
        if groups and not self._keeps and self._offset_header is None:
            self._offset_header = DEFAULT_OFFSET_HEADER
        shared = {**client, "bootstrap.servers": bootstrap, "logger": logger}
        self._groups = (
            GroupMirror(context, shared, groups, self._target, None if self._keeps else self._offset_header)
            if groups
            else None
        )
        self._settings = {
            **shared,
            "group.id": f"lastword-{context.source}",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
        }
        self._consumer: Any = None
        self._names: dict[str, str] = {}

    def check(self) -> list[str]:
        for topic in self._topics:
            self._context.needs_topic(self._target(topic), len(self._partitions(topic)))
        return []

    def read(self, position: Position | None) -> Iterator[Chunk]:
        offsets: Offsets = {
            topic: dict(known) for topic, known in (position or {}).get("offsets", {}).items()
        }
        if position is not None and position.get("kept", False) is not self._keeps:
            raise InvalidError(
                f"so far, the source has given its records {'new offsets' if self._keeps else 'their own offsets'}; "
                f"`offsets: {'new' if self._keeps else 'keep'}` continues that way"
            )
        self._assign(offsets)
        refreshed_s = groups_s = monotonic_s()
        yield Chunk((), self._position(offsets))
        while True:
            records = self._take(self._messages(), offsets)
            yield Chunk(records, self._position(offsets))
            if monotonic_s() - refreshed_s >= REFRESH_S:
                refreshed_s = monotonic_s()
                self._assign(offsets)
            if self._groups is not None and monotonic_s() - groups_s >= self._groups_s:
                # Everything that was yielded is in the log by now.
                groups_s = monotonic_s()
                self._groups.run(offsets)

    def appended(self, position: Position | None) -> None: ...

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _position(self, offsets: Offsets) -> Position:
        return {"offsets": {topic: dict(known) for topic, known in offsets.items()}, "kept": self._keeps}

    def _target(self, topic: str) -> str:
        return self._pattern.replace("{topic}", topic)

    def _opened(self) -> Any:
        if self._consumer is None:
            try:
                self._consumer = Consumer(self._settings)
            except (KafkaException, ValueError, TypeError) as error:
                raise InvalidError(f"The Kafka client refuses its settings: {error}") from error
        return self._consumer

    def _partitions(self, topic: str) -> list[int]:
        try:
            found = self._opened().list_topics(topic, TIMEOUT_S).topics[topic]
        except KafkaException as error:
            raise UnavailableError(f"Kafka: {_text(error.args[0])}") from error
        if found.error is not None:
            raise InvalidError(f"Kafka has no topic {topic!r} for this client: {_text(found.error)}")
        return sorted(found.partitions)

    def _assign(self, offsets: Offsets) -> None:
        """Assign every existing partition to the consumer; new ones are read from their beginning."""
        assigned = []
        is_first = not offsets
        lag = 0
        for topic in self._topics:
            partitions = self._partitions(topic)
            self._names[topic] = self._target(topic)
            self._context.needs_topic(self._names[topic], len(partitions))
            known = offsets.setdefault(topic, {})
            for partition in partitions:
                begin = OFFSET_END if is_first and self._start == "latest" else OFFSET_BEGINNING
                low, high = self._ends(topic, partition)
                if str(partition) not in known:
                    known[str(partition)] = high if begin == OFFSET_END else low
                lag += max(0, high - known[str(partition)])
                assigned.append(TopicPartition(topic, partition, known[str(partition)]))
        self._opened().assign(assigned)
        self._context.report({"partitions": len(assigned), "lag_records": lag})

    def _ends(self, topic: str, partition: int) -> tuple[int, int]:
        try:
            low, high = self._opened().get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S)
        except KafkaException as error:
            raise UnavailableError(f"Kafka: {_text(error.args[0])}") from error
        return low, high

    def _messages(self) -> Sequence[Any]:
        try:
            found: Sequence[Any] = self._opened().consume(MAX_RECORDS, IDLE_S)
        except KafkaException as error:
            raise UnavailableError(f"Kafka: {_text(error.args[0])}") from error
        return found

    def _take(self, messages: Sequence[Any], offsets: Offsets) -> list[SourceRecord]:
        records = []
        for message in messages:
            if (error := message.error()) is not None:
                self._failed(error, message, offsets)
                continue
            kind, timestamp_ms = message.timestamp()
            headers = tuple(message.headers() or ())
            if self._offset_header is not None:
                headers = (*headers, (self._offset_header, str(message.offset()).encode()))
            topic, partition = message.topic(), message.partition()
            records.append(
                SourceRecord(
                    self._names[topic],
                    message.key(),
                    message.value(),
                    None if kind == _NO_TIMESTAMP else timestamp_ms,
                    headers,
                    partition,
                    message.offset() if self._keeps else None,
                )
            )
            offsets[topic][str(partition)] = message.offset() + 1
        return records

    def _failed(self, error: Any, message: Any, offsets: Offsets) -> None:
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            # The end of a transaction, or offsets that compaction has removed, may follow the last record.
            known, place = offsets[message.topic()], str(message.partition())
            known[place] = max(known[place], message.offset())
            return
        if error.code() != KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001
            raise UnavailableError(f"Kafka: {_text(error)}")
        topic, partition = message.topic(), message.partition()
        wanted = offsets[topic][str(partition)]
        low, high = self._ends(topic, partition)
        if wanted > high:
            raise InvalidError(
                f"{topic} partition {partition} ends at {high} in Kafka, but {wanted} was next: the topic was "
                f"recreated there. Mirror it into another topic with a new source, or `lastword connect reset` this one."
            )
        if self._on_lost == "stop":
            raise InvalidError(
                f"Kafka has removed records of {topic} partition {partition} that were not mirrored: offset {wanted} "
                f"is next, but {low} is the first that is left. `on_lost: skip` continues there."
            )
        logger.warning(
            "source %s: %s/%d: offset %d is lost, continuing at %d",
            self._context.source,
            topic,
            partition,
            wanted,
            low,
        )
        offsets[topic][str(partition)] = low
        self._opened().seek(TopicPartition(topic, partition, low))


def _text(error: Any) -> str:
    return str(error.str() if hasattr(error, "str") else error)
