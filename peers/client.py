"""Topics made and changed through the same Kafka client, whichever broker it is."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

_PATIENCE_S = 60


def create(address: str, topic: str, partitions: int, config: Mapping[str, str]) -> None:
    create_all(address, {topic: (partitions, config)})


def create_all(address: str, topics: Mapping[str, tuple[int, Mapping[str, str]]]) -> None:
    """Create topics, each with its number of partitions and its settings, in one request."""
    admin = _admin(address)
    new = [NewTopic(name, count, 1, config=dict(config)) for name, (count, config) in topics.items()]
    for future in admin.create_topics(new, request_timeout=_PATIENCE_S).values():
        future.result(_PATIENCE_S)


def alter(address: str, topic: str, config: Mapping[str, str]) -> None:
    alter_all(address, {topic: config})


def alter_all(address: str, configs: Mapping[str, Mapping[str, str]]) -> None:
    """Change settings of topics in one request."""
    admin = _admin(address)
    resources = [
        ConfigResource(
            ConfigResource.Type.TOPIC,
            topic,
            incremental_configs=[
                ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                for name, value in config.items()
            ],
        )
        for topic, config in configs.items()
        if config
    ]
    if resources:
        for future in admin.incremental_alter_configs(resources, request_timeout=_PATIENCE_S).values():
            future.result(_PATIENCE_S)


def _admin(address: str) -> AdminClient:
    """A client that its caller must keep in a variable: what it was asked ends with it."""
    return AdminClient({"bootstrap.servers": address, "log_level": 4})
