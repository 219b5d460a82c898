"""Kafka's topic settings that have no effect here.

Tools set them routinely, so they are checked and accepted, but not used. The value that is shown is the one that
applies, whatever was given. A value that promises something that is not done here is refused, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from lastword.config import BrokerConfig
from lastword.config.values import INT_MAX, LONG_MAX, Choice, Kind, Switch, WholeNumber
from lastword.errors import InvalidConfigError

Refusal = Callable[[Any, BrokerConfig], str | None]
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


@dataclass(frozen=True, slots=True, kw_only=True)
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


def _flush_messages(value: int, config: BrokerConfig) -> str | None:
    if config.wal_sync.mode == "group" or value == LONG_MAX:
        return None
    return f"with wal.sync={config.wal_sync} records are acknowledged before they are synced"


def _flush_ms(value: int, config: BrokerConfig) -> str | None:
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
        name="min.insync.replicas",
        kind=WholeNumber(low=1, high=INT_MAX),
        holds=_always("1"),
        meaning="there is one broker, so there is one replica",
        refusal=_only(
            1, "there is one broker, so at most one replica has a record before it is acknowledged"
        ),
    ),
    KafkaSetting(
        name="compression.type",
        kind=Choice(("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")),
        holds=_always("producer"),
        meaning="batches keep their producer's compression until they are sealed",
    ),
    *(
        KafkaSetting(
            name=f"compression.{codec}.level",
            kind=WholeNumber(low=-INT_MAX - 1, high=INT_MAX),
            holds=_always(default),
            meaning="nothing is recompressed",
        )
        for codec, default in (("gzip", "-1"), ("lz4", "9"), ("zstd", "3"))
    ),
    KafkaSetting(
        name="unclean.leader.election.enable",
        kind=Switch(),
        holds=_always("false"),
        meaning="no leader is ever elected",
    ),
    KafkaSetting(
        name="flush.messages",
        kind=WholeNumber(low=1),
        holds=_flushed_messages,
        meaning="see the broker's wal.sync",
        refusal=_flush_messages,
    ),
    KafkaSetting(
        name="flush.ms",
        kind=WholeNumber(),
        holds=_flushed_ms,
        meaning="see the broker's wal.sync",
        refusal=_flush_ms,
    ),
    KafkaSetting(
        name="preallocate", kind=Switch(), holds=_always("false"), meaning="files grow as they are written"
    ),
    KafkaSetting(
        name="file.delete.delay.ms",
        kind=WholeNumber(),
        holds=_always("0"),
        meaning="WAL files are deleted at once",
    ),
    KafkaSetting(
        name="index.interval.bytes",
        kind=WholeNumber(high=INT_MAX),
        holds=_always("4096"),
        meaning="there are no index files",
    ),
    KafkaSetting(
        name="segment.index.bytes",
        kind=WholeNumber(low=4, high=INT_MAX),
        holds=_always("10485760"),
        meaning="there are no index files",
    ),
    KafkaSetting(
        name="segment.jitter.ms",
        kind=WholeNumber(),
        holds=_always("0"),
        meaning="files are rolled when they are due",
    ),
    *(
        KafkaSetting(
            name=f"{side}.replication.throttled.replicas",
            kind=_Text(),
            holds=_always(""),
            meaning="nothing is replicated",
        )
        for side in ("leader", "follower")
    ),
    KafkaSetting(
        name="message.downconversion.enable",
        kind=Switch(),
        holds=_always("false"),
        meaning="all supported clients read the batches as they are",
    ),
    KafkaSetting(
        name="remote.storage.enable",
        kind=Switch(),
        holds=_always("true"),
        meaning="sealed segments are always in the warehouse",
        refusal=_only(
            True, "sealed segments are always in the warehouse; local.retention.* keeps them here, too"
        ),
    ),
    KafkaSetting(
        name="remote.log.copy.disable",
        kind=Switch(),
        holds=_always("false"),
        meaning="sealed segments are always in the warehouse",
        refusal=_only(False, "sealed segments are always in the warehouse"),
    ),
    KafkaSetting(
        name="remote.log.delete.on.disable",
        kind=Switch(),
        holds=_always("false"),
        meaning="sealed segments are always in the warehouse",
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
