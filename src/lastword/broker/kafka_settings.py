"""Kafka's topic settings that have no effect here.

Tools set them routinely, so they are checked and accepted, but not used. Clients see the value that
applies, not the given one. A value that promises a missing feature is refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from lastword.config import BrokerConfig
from lastword.config.values import INT_MAX, LONG_MAX, Choice, Kind, Switch, WholeNumber
from lastword.errors import InvalidConfigError

Refusal = Callable[[object, BrokerConfig], str | None]
"""Returns the reason why a value can't be guaranteed, or None if it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """Any text."""

    allowed: str = "any text"

    def parse(self, raw: object) -> str:
        if raw is None:
            raise ValueError(raw)
        return str(raw)

    def text(self, value: object) -> str:
        return str(value)


@dataclass(frozen=True, slots=True)
class KafkaSetting:
    """A setting of Kafka: its allowed values, and the value that applies here."""

    name: str
    kind: Kind
    holds: Callable[[BrokerConfig], str]
    meaning: str
    refusal: Refusal = lambda _value, _config: None


def _always(value: str) -> Callable[[BrokerConfig], str]:
    return lambda _config: value


def _only(wanted: object, why: str) -> Refusal:
    return lambda value, _config: None if value == wanted else why


def _flush_messages(value: object, config: BrokerConfig) -> str | None:
    if config.wal_sync.mode == "group" or value == LONG_MAX:
        return None
    return f"with wal.sync={config.wal_sync} records are acknowledged before they are synced"


def _flush_ms(value: object, config: BrokerConfig) -> str | None:
    assert isinstance(value, int)
    sync = config.wal_sync
    if sync.mode == "group" or value == LONG_MAX or (sync.interval_ms or LONG_MAX) <= value:
        return None
    return f"with wal.sync={sync} records are synced less often"


def _flushed_messages(config: BrokerConfig) -> str:
    return "1" if config.wal_sync.mode == "group" else str(LONG_MAX)


def _flushed_ms(config: BrokerConfig) -> str:
    return str(config.wal_sync.interval_ms or LONG_MAX)


_SETTINGS: Final = (
    KafkaSetting(
        "min.insync.replicas",
        WholeNumber(low=1, high=INT_MAX),
        _always("1"),
        "there is one broker, so there is one replica",
        refusal=_only(
            1, "there is one broker, so at most one replica has a record before it is acknowledged"
        ),
    ),
    KafkaSetting(
        "compression.type",
        Choice(("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")),
        _always("producer"),
        "batches keep their producer's compression until they are sealed",
    ),
    *(
        KafkaSetting(
            f"compression.{codec}.level",
            WholeNumber(low=-INT_MAX - 1, high=INT_MAX),
            _always(default),
            "nothing is recompressed",
        )
        for codec, default in (("gzip", "-1"), ("lz4", "9"), ("zstd", "3"))
    ),
    KafkaSetting("unclean.leader.election.enable", Switch(), _always("false"), "no leader is ever elected"),
    KafkaSetting(
        "flush.messages",
        WholeNumber(low=1),
        _flushed_messages,
        "see the broker's wal.sync",
        refusal=_flush_messages,
    ),
    KafkaSetting("flush.ms", WholeNumber(), _flushed_ms, "see the broker's wal.sync", refusal=_flush_ms),
    KafkaSetting("preallocate", Switch(), _always("false"), "files grow as they are written"),
    KafkaSetting("file.delete.delay.ms", WholeNumber(), _always("0"), "WAL files are deleted at once"),
    KafkaSetting(
        "index.interval.bytes", WholeNumber(high=INT_MAX), _always("4096"), "there are no index files"
    ),
    KafkaSetting(
        "segment.index.bytes",
        WholeNumber(low=4, high=INT_MAX),
        _always("10485760"),
        "there are no index files",
    ),
    KafkaSetting("segment.jitter.ms", WholeNumber(), _always("0"), "files are rolled when they are due"),
    *(
        KafkaSetting(f"{side}.replication.throttled.replicas", _Text(), _always(""), "nothing is replicated")
        for side in ("leader", "follower")
    ),
    KafkaSetting(
        "message.downconversion.enable",
        Switch(),
        _always("false"),
        "all supported clients read the batches as they are",
    ),
    KafkaSetting(
        "remote.storage.enable",
        Switch(),
        _always("true"),
        "sealed segments are always in the warehouse",
        refusal=_only(
            True, "sealed segments are always in the warehouse; local.retention.* keeps them here, too"
        ),
    ),
    KafkaSetting(
        "remote.log.copy.disable",
        Switch(),
        _always("false"),
        "sealed segments are always in the warehouse",
        refusal=_only(False, "sealed segments are always in the warehouse"),
    ),
    KafkaSetting(
        "remote.log.delete.on.disable",
        Switch(),
        _always("false"),
        "sealed segments are always in the warehouse",
    ),
)

KAFKA_SETTINGS: Final[Mapping[str, KafkaSetting]] = {each.name: each for each in _SETTINGS}


def own_settings(given: Mapping[str, object], config: BrokerConfig, *, where: str) -> dict[str, object]:
    """Check Kafka's settings and return the others. Raise InvalidConfigError if a setting can't be accepted."""
    for name, value in given.items():
        if (setting := KAFKA_SETTINGS.get(name)) is not None:
            _check(setting, value, config, where)
    return {name: value for name, value in given.items() if name not in KAFKA_SETTINGS}


def _check(setting: KafkaSetting, value: object, config: BrokerConfig, where: str) -> None:
    shown = "has no value" if value is None else f"is {str(value)!r}"
    try:
        parsed = setting.kind.parse(value)
    except ValueError:
        raise InvalidConfigError(
            f"{where}: {setting.name} {shown}; allowed: {setting.kind.allowed}"
        ) from None
    if (why := setting.refusal(parsed, config)) is not None:
        raise InvalidConfigError(
            f"{where}: {setting.name} {shown}; this can't be guaranteed, because {why}. "
            f"{setting.name}={setting.holds(config)} applies."
        )
