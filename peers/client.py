"""Topics made and changed through the same Kafka client, whichever broker it is."""

from __future__ import annotations

from collections.abc import Mapping

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

_PATIENCE_S = 60


def create(address: str, topic: str, partitions: int, config: Mapping[str, str]) -> None:
    admin = _admin(address)
    for future in admin.create_topics([NewTopic(topic, partitions, 1, config=dict(config))]).values():
        future.result(_PATIENCE_S)


def alter(address: str, topic: str, config: Mapping[str, str]) -> None:
    entries = [ConfigEntry(k, v, incremental_operation=AlterConfigOpType.SET) for k, v in config.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    admin = _admin(address)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(_PATIENCE_S)


def _admin(address: str) -> AdminClient:
    """A client that its caller must keep in a variable: what it was asked ends with it."""
    return AdminClient({"bootstrap.servers": address, "log_level": 4})
