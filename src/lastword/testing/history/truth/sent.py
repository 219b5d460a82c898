"""The records that were sent to a topic, by key and value."""

from __future__ import annotations

from collections.abc import Iterable

from lastword.testing.history.events import Outcome, Produce

Identity = tuple[bytes | None, bytes | None]
Sending = tuple[Produce, int]
"""An operation, and the index of the record in it."""


class Sent:
    """The records that were sent to one partition, and the operations that sent them."""

    def __init__(self, produces: Iterable[Produce]) -> None:
        self._sent: dict[Identity, Sending | list[Sending]] = {}
        self.produces = sorted(produces, key=lambda each: each.invoked)
        sent = self._sent
        for produce in self.produces:
            for index, record in enumerate(produce.records):
                identity = (record.key, record.value)
                earlier = sent.get(identity)
                if earlier is None:
                    sent[identity] = (produce, index)
                elif isinstance(earlier, list):
                    earlier.append((produce, index))
                else:
                    sent[identity] = [earlier, (produce, index)]

    def of(self, key: bytes | None, value: bytes | None) -> list[Sending]:
        """Return the sendings of a record. There is usually one, but a tombstone may have any number."""
        found = self._sent.get((key, value))
        if found is None:
            return []
        return found if isinstance(found, list) else [found]

    def accepted(self, key: bytes | None, value: bytes | None) -> list[Sending]:
        """Return the sendings of a record that were not refused."""
        return [each for each in self.of(key, value) if each[0].outcome is not Outcome.REFUSED]
