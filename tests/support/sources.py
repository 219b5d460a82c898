"""Runs sources on an open log and waits for what they append."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.support.postgres import Cluster

from lastword.connect import ConnectConfig, Connectors
from lastword.log import Log

DEADLINE_S = 180
SETTINGS = {
    "topic": {"auto_create": "true", "default_config": {"cleanup.policy": "compact"}},
    "retry": {"first_ms": 20, "max_ms": 200},
}


class Sources:
    """Sources that are running."""

    def __init__(self, log: Log, connectors: Connectors) -> None:
        self.log = log
        self.connectors = connectors

    def status(self, index: int = 0) -> dict[str, Any]:
        return self.connectors.status()[index]

    def wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, self.connectors.status()
            time.sleep(0.01)

    def wait_for_records(self, topic: str, count: int) -> list[tuple[Any, Any]]:
        """All records of a topic, as soon as there are so many: keys and values, from JSON."""

        def there() -> bool:
            return topic in self.log.topics() and len(self.records(topic)) >= count

        self.wait(there)
        return self.records(topic)

    def records(self, topic: str) -> list[tuple[Any, Any]]:
        return [(_json(each.key), _json(each.value)) for each in self.log.topic(topic).read()]

    def wait_for_error(self, text: str) -> str:
        self.wait(lambda: text in (self.status()["error"] or ""))
        return str(self.status()["error"])

    def wait_for_phase(self, phase: str) -> None:
        self.wait(lambda: self.status()["details"].get("phase") == phase)


def _json(data: bytes | None) -> Any:
    return None if data is None else json.loads(data)


@contextmanager
def running(log: Log, sources: Mapping[str, Any], **settings: Any) -> Iterator[Sources]:
    config = ConnectConfig.from_mapping({"sources": sources, "settings": SETTINGS | settings})
    with Connectors(log, config) as connectors:
        yield Sources(log, connectors)


def postgres_source(cluster: Cluster, topic: str, **config: Any) -> dict[str, Any]:
    return {
        "connector": "postgres-cdc",
        "topic": topic,
        "config": {"dsn": cluster.dsn, "create": "true", **config},
    }
