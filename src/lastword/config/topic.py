"""The settings of one topic: each checked by itself, resolved over the levels, then checked together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lastword.config.keys import BROKER_KEYS, TOPIC_KEYS, TOPIC_SETTINGS, closest, unknown_setting
from lastword.errors import InvalidConfigError

AS_RETENTION = -2
"""The value of local.retention.* that means the same as retention.*."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The effective settings of a topic. None means 'no limit', for the header's name and format 'not set'."""

    cleanup_policy: frozenset[str]
    min_cleanable_dirty_ratio: float
    dirty_ratio_basis: Literal["bytes", "records"]
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int | None
    delete_retention_ms: int
    tombstone_clock: Literal["compaction", "record"]
    compaction_strategy: Literal["offset", "first", "timestamp", "header"]
    compaction_strategy_header: str | None
    compaction_strategy_header_format: Literal["long", "text"] | None
    compaction_strategy_header_missing: Literal["reject", "lowest"]
    null_key: Literal["keep", "reject"]
    min_rewrite_ratio: float
    garbage_max_ms: int | None
    compaction_at_seal: bool
    retention_ms: int | None
    retention_bytes: int | None
    segment_bytes: int
    segment_ms: int
    segment_compression_type: Literal["zstd", "lz4"]
    tiering_lag_ms: int
    local_retention_ms: int | None
    local_retention_bytes: int | None
    max_message_bytes: int
    message_timestamp_type: Literal["CreateTime", "LogAppendTime"]
    message_timestamp_before_max_ms: int | None
    message_timestamp_after_max_ms: int

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy


@dataclass(frozen=True, slots=True)
class Given:
    """A value that a user has set, in canonical text, and its place, if it is in a file."""

    text: str
    where: str = ""


@dataclass(frozen=True, slots=True)
class Level:
    """One level of settings, such as a namespace's."""

    source: str
    given: Mapping[str, Given]


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectiveSetting:
    """A setting in effect, and its source: topic, namespace <name>, broker or default. Without a value it is ''."""

    key: str
    value: str
    source: str
    where: str = ""

    def __str__(self) -> str:
        place = f"{self.source}, {self.where}" if self.where else self.source
        return f"{self.key} is {self.value or 'not set'} ({place})"


def check_topic_config(raw: Mapping[str, object], *, where: str) -> dict[str, str]:
    """Return the settings in canonical text. Each is checked by itself. `BrokerConfig.resolve` checks them together."""
    return {key: check_topic_setting(key, value, where=where) for key, value in raw.items()}


def check_topic_setting(key: str, raw: object, *, where: str) -> str:
    setting = TOPIC_KEYS.get(key)
    if setting is None:
        if key in BROKER_KEYS:
            raise InvalidConfigError(f"{where}: {key!r} is a setting of the broker, not of a topic")
        raise unknown_setting(key, meant=closest(key, TOPIC_KEYS), where=where)
    return setting.canonical(raw, where=where)


def effective_settings(levels: Iterable[Level]) -> dict[str, EffectiveSetting]:
    """Return the value of every topic setting: from the first level that sets it, else the default."""
    effective = {
        setting.key: EffectiveSetting(key=setting.key, value=setting.default or "", source="default")
        for setting in TOPIC_SETTINGS
    }
    for level in reversed(list(levels)):
        for key, given in level.given.items():
            effective[key] = EffectiveSetting(
                key=key, value=given.text, source=level.source, where=given.where
            )
    for unit in ("ms", "bytes"):
        local = effective[f"local.retention.{unit}"]
        # A user who lowers only the retention has not set the WAL's, and its default must not cause an error.
        if local.source == "default" and _is_over_retention(effective, unit):
            effective[local.key] = EffectiveSetting(key=local.key, value=str(AS_RETENTION), source="default")
    return effective


def build(effective: Mapping[str, EffectiveSetting], *, where: str) -> TopicSettings:
    """Return resolved settings as values. Raise InvalidConfigError if some of them contradict each other."""
    _check_together(effective, where=where)
    values = {setting.attribute: _value(effective, setting.key) for setting in TOPIC_SETTINGS}
    for unit in ("ms", "bytes"):
        if values[f"local_retention_{unit}"] == AS_RETENTION:
            values[f"local_retention_{unit}"] = values[f"retention_{unit}"]
    return TopicSettings(**values)


def _check_together(effective: Mapping[str, EffectiveSetting], *, where: str) -> None:
    low, high = effective["min.compaction.lag.ms"], effective["max.compaction.lag.ms"]
    max_lag_ms = _value(effective, high.key)
    if max_lag_ms is not None and _value(effective, low.key) > max_lag_ms:
        raise InvalidConfigError(f"{where}: {low} but {high}; the first must not exceed the second")

    for unit in ("ms", "bytes"):
        if _is_over_retention(effective, unit):
            local, total = effective[f"local.retention.{unit}"], effective[f"retention.{unit}"]
            raise InvalidConfigError(
                f"{where}: {local} but {total}; the first must not exceed the second, "
                f"{AS_RETENTION} makes them the same"
            )

    strategy = effective["compaction.strategy"]
    if strategy.value == "header":
        for key in ("compaction.strategy.header", "compaction.strategy.header.format"):
            if not effective[key].value:
                raise InvalidConfigError(
                    f"{where}: {strategy} but {effective[key]}; "
                    f"the strategy needs it, allowed: {TOPIC_KEYS[key].kind.allowed}"
                )


def _is_over_retention(effective: Mapping[str, EffectiveSetting], unit: str) -> bool:
    """Return whether the WAL would outlast the topic's retention. Only policies with `delete` apply retention.*."""
    local = _value(effective, f"local.retention.{unit}")
    total = _value(effective, f"retention.{unit}")
    deletes = "delete" in _value(effective, "cleanup.policy")
    return deletes and local is not None and total is not None and local > total


def _value(effective: Mapping[str, EffectiveSetting], key: str) -> Any:
    text = effective[key].value
    # Any, because the table knows the type of each key, and tests compare it with TopicSettings.
    return None if text == "" else TOPIC_KEYS[key].kind.parse(text)
