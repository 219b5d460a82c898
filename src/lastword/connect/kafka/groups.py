"""The offsets of the consumer groups of a Kafka cluster, translated to offsets in the topics here.

If records keep their offsets, a committed offset is the same here. Otherwise it is found by the header that keeps the
original offset: it is the offset after the last record before it. Either way it is never ahead of the records that the
group has processed, and never beyond the end of the mirror: if the mirror is not that far yet, the group is placed at
its end, and moves on with it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from lastword.connect.kafka.offsets import TIMEOUT_S, committed_offsets
from lastword.connect.protocol import Context, GroupOffset
from lastword.errors import InvalidError, LastwordError, UnavailableError

logger = logging.getLogger(__name__)

TopicPartitions = Mapping[str, Mapping[str, int]]


class GroupMirror:
    """Takes over the offsets of some groups, repeatedly."""

    def __init__(
        self,
        context: Context,
        settings: Mapping[str, Any],
        patterns: Sequence[str],
        target: Callable[[str], str],
        offset_header: str | None,
    ) -> None:
        """With an `offset_header`, records have new offsets, and the header has the original ones."""
        self._context = context
        self._settings = dict(settings)
        self._patterns = patterns
        self._target = target
        self._offset_header = offset_header
        self._admin: Any = None
        # The results of earlier searches: a group that has not moved is not searched for again.
        self._found: dict[tuple[str, str, int], tuple[int, int]] = {}

    def run(self, mirrored: TopicPartitions) -> None:
        """Take over the groups' committed offsets; `mirrored` is the next offset of each topic and partition.

        A failure is reported in the status and retried the next time; records are mirrored meanwhile.
        """
        facts: dict[str, Any] = {}
        try:
            for group in self._groups():
                facts[group] = self._take_over(group, mirrored)
        except LastwordError as error:
            logger.warning("source %s: groups can't be taken over: %s", self._context.source, error)
            self._context.report({"groups": facts, "groups_error": str(error)})
        else:
            self._context.report({"groups": facts, "groups_error": None})

    def _take_over(self, group: str, mirrored: TopicPartitions) -> dict[str, Any]:
        offsets: dict[tuple[str, int], GroupOffset] = {}
        behind = 0
        for topic, partition, offset, metadata in self._committed(group):
            next_offset = mirrored.get(topic, {}).get(str(partition))
            if next_offset is None:
                continue
            behind += offset > next_offset
            here = self._here(group, topic, partition, min(offset, next_offset))
            offsets[self._target(topic), partition] = GroupOffset(here, metadata)
        facts: dict[str, Any] = {"partitions": len(offsets), "behind": behind}
        if offsets:
            taken = self._context.groups.take_over(group, offsets)
            facts |= {"in_use": taken.in_use, "own": taken.own}
        return facts

    def _here(self, group: str, topic: str, partition: int, offset: int) -> int:
        if self._offset_header is None:
            return offset
        key = (group, topic, partition)
        known = self._found.get(key)
        if known is not None and known[0] == offset:
            return known[1]
        found = self._context.topics.behind(self._target(topic), partition, self._offset_header, offset)
        self._found[key] = (offset, found)
        return found

    def _opened(self) -> Any:
        if self._admin is None:
            try:
                self._admin = AdminClient(self._settings)
            except (KafkaException, ValueError, TypeError) as error:
                raise InvalidError(f"The Kafka client refuses its settings: {error}") from error
        return self._admin

    def _groups(self) -> list[str]:
        wanted = [each for each in self._patterns if not _is_pattern(each)]
        if len(wanted) == len(self._patterns):
            return wanted
        try:
            listed = self._opened().list_consumer_groups(request_timeout=TIMEOUT_S).result(TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            raise UnavailableError(f"Can't list the groups in Kafka: {error}") from error
        if listed.errors:
            raise UnavailableError(f"Can't list the groups in Kafka: {listed.errors[0]}")
        names = [each.group_id for each in listed.valid]
        return sorted(
            {*wanted, *(name for name in names if any(fnmatchcase(name, each) for each in self._patterns))}
        )

    def _committed(self, group: str) -> Iterable[tuple[str, int, int, str]]:
        for each in committed_offsets(self._opened(), group, who="Kafka"):
            yield each.topic, each.partition, each.offset, each.metadata or ""


def _is_pattern(name: str) -> bool:
    return any(each in name for each in "*?[")
