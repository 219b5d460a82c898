"""The broker's configuration: the settings in the file, and the settings of every topic that follow from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from lastword.config.document import Entry, read_file, read_mapping, read_yaml
from lastword.config.keys import BROKER_KEYS, BROKER_SETTINGS, TOPIC_KEYS, closest, unknown_setting
from lastword.config.masking import mask
from lastword.config.names import DEFAULT_NAMESPACE, check_namespace, is_internal, split_name
from lastword.config.topic import (
    EffectiveSetting,
    Given,
    Level,
    TopicSettings,
    build,
    check_topic_config,
    check_topic_setting,
    effective_settings,
)
from lastword.config.values import WalSync
from lastword.errors import InvalidConfigError

NAMESPACES = "namespaces"
CATALOG = "catalog"
SPARK = "spark"
TOPIC_DEFAULT_CONFIG = "topic.default_config"
_SECTIONS = (NAMESPACES, CATALOG, SPARK, TOPIC_DEFAULT_CONFIG)
_NOTHING: Mapping[str, str] = MappingProxyType({})

INTERNAL_CONFIG: Mapping[str, str] = MappingProxyType(
    {
        "cleanup.policy": "compact",
        "compaction.strategy": "offset",
        "null.key": "reject",
        # An internal topic is replayed at each start, so it is rolled, sealed and compacted early.
        "segment.bytes": "104857600",
        "max.message.bytes": "16777216",
    }
)
"""The settings of internal topics, whatever the file says."""


@dataclass(slots=True)
class _Contents:
    """A file's entries, each checked by itself and sorted into its section."""

    broker: dict[str, Given] = field(default_factory=dict)
    namespaces: dict[str, dict[str, Given]] = field(default_factory=dict)
    catalog: dict[str, Given] = field(default_factory=dict)
    spark: dict[str, Given] = field(default_factory=dict)
    topic_default_config: dict[str, Given] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Every setting of a broker, and the settings that topics inherit. A topic without own settings always resolves.

    None means 'no limit', for `warehouse` 'in the data folder'. An empty catalog means SQLite in the data folder.
    """

    kafka_listen: str
    kafka_advertised: str | None
    admin_listen: str
    admin_token_file: str | None
    connect_file: str | None
    wal_sync: WalSync
    wal_max_bytes: int | None
    auto_create_topics_enable: bool
    num_partitions: int
    socket_request_max_bytes: int
    queued_max_request_bytes: int
    max_connections: int
    connections_max_idle_ms: int
    fetch_max_bytes: int
    fetch_cache_bytes: int
    producer_id_expiration_ms: int
    group_initial_rebalance_delay_ms: int
    group_min_session_timeout_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    offsets_retention_minutes: int
    offsets_retention_check_interval_ms: int
    offset_metadata_max_bytes: int
    deleter_enabled: bool
    deleter_interval_ms: int
    deleter_time_enabled: bool
    deleter_size_enabled: bool
    worker_initial_delay_ms: int
    worker_interval_ms: int
    worker_nice: int
    seal_interval_ms: int
    retention_interval_ms: int
    expire_interval_ms: int
    collect_interval_ms: int
    compaction_service_factory: str
    compaction_task_memory_bytes: int
    compaction_task_bytes: int
    reader_hold_ms: int
    reader_hold_max_ms: int
    collect_grace_ms: int
    snapshot_retention_ms: int
    lease_ttl_ms: int
    warehouse: str | None
    topic_default_config: Mapping[str, str]
    # Not in the repr: it goes to logs, and these values contain passwords.
    catalog: Mapping[str, str] = field(repr=False)
    spark: Mapping[str, str] = field(repr=False)
    _contents: _Contents = field(repr=False)

    @classmethod
    def load(cls, path: Path | None) -> Self:
        """Load a file. Without one every setting has its default."""
        if path is None:
            return cls.from_mapping({}, where="")
        return cls._from_entries(read_file(path), where=str(path))

    @classmethod
    def from_text(cls, text: str, where: str) -> Self:
        """Load the text of a file. Errors name `where`."""
        return cls._from_entries(read_yaml(text, name=where), where=where)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object], where: str) -> Self:
        """Load a mapping in place of a file. Errors name `where`."""
        return cls._from_entries(read_mapping(mapping, where=where), where=where)

    @classmethod
    def _from_entries(cls, entries: Iterable[Entry], *, where: str) -> Self:
        return cls._of(_sort(entries), where=where)

    @classmethod
    def _of(cls, contents: _Contents, *, where: str) -> Self:
        _check_levels(contents, where=where)
        _check_session_timeouts(contents, where=where)
        values: dict[str, Any] = {
            setting.attribute: None if text == "" else setting.kind.parse(text)
            for setting, text in ((BROKER_KEYS[e.key], e.value) for e in _broker_settings(contents))
        }
        return cls(
            **values,
            topic_default_config=_texts(contents.topic_default_config),
            catalog=_texts(contents.catalog),
            spark=_texts(contents.spark),
            _contents=contents,
        )

    def altered(self, given: Mapping[str, str], *, where: str) -> Self:
        """Return a copy with other values of some broker settings. `where` says where these come from."""
        changed = {
            key: Given(BROKER_KEYS[key].canonical(text, where=where), where)
            if key in BROKER_KEYS
            else _not_of_the_broker(key, where)
            for key, text in given.items()
        }
        contents = replace(self._contents, broker={**self._contents.broker, **changed})
        return self._of(contents, where=where)

    def resolve(self, topic: str, own: Mapping[str, str]) -> TopicSettings:
        """Return the settings of a topic with these own ones. Raise InvalidConfigError if they contradict each other."""
        return build(self._effective(topic, own), where=f"topic {topic}")

    def explain(self, topic: str | None = None, own: Mapping[str, str] = _NOTHING) -> list[EffectiveSetting]:
        """Return every setting with its source: those of a topic, or that topics inherit, then the broker's.

        Settings that contradict each other are returned as they are. Secrets are masked.
        """
        if topic is None:
            effective = effective_settings([Level("broker", _topic_level(self._contents.broker))])
        else:
            effective = self._effective(topic, own)
        return [
            *effective.values(),
            *_broker_settings(self._contents),
            *_properties(CATALOG, f"{CATALOG}.", self._contents.catalog),
            *_properties(SPARK, "", self._contents.spark),
            *_default_config(self._contents.topic_default_config),
        ]

    def _effective(self, topic: str, own: Mapping[str, str]) -> dict[str, EffectiveSetting]:
        if is_internal(topic):
            return effective_settings(
                [Level("internal", {key: Given(text) for key, text in INTERNAL_CONFIG.items()})]
            )
        checked = check_topic_config(own, where=f"topic {topic}")
        level = Level("topic", {key: Given(text) for key, text in checked.items()})
        namespace, _ = split_name(topic)
        return effective_settings([level, *_inherited(self._contents, namespace)])


def _sort(entries: Iterable[Entry]) -> _Contents:
    contents = _Contents()
    places: dict[str, str] = {}
    for entry in entries:
        key = entry.key
        if key in places:
            raise InvalidConfigError(f"{entry.where}: {key!r} is given twice, also at {places[key]}")
        places[key] = entry.where
        _put(entry, contents)
    return contents


def _put(entry: Entry, contents: _Contents) -> None:
    key, where = entry.key, entry.where
    if key in BROKER_KEYS:
        contents.broker[key] = Given(BROKER_KEYS[key].canonical(entry.value, where=where), where)
    elif key in TOPIC_KEYS:
        contents.broker[key] = Given(TOPIC_KEYS[key].canonical(entry.value, where=where), where)
    elif key in _SECTIONS:
        _check_empty(key, entry)
    elif key.startswith(f"{NAMESPACES}."):
        _put_namespace(key.removeprefix(f"{NAMESPACES}."), entry, contents)
    elif key.startswith(f"{CATALOG}."):
        contents.catalog[key.removeprefix(f"{CATALOG}.")] = Given(_property(entry), where)
    elif key.startswith(f"{SPARK}."):
        contents.spark[key] = Given(_property(entry), where)
    elif key.startswith(f"{TOPIC_DEFAULT_CONFIG}."):
        setting = key.removeprefix(f"{TOPIC_DEFAULT_CONFIG}.")
        text = check_topic_setting(setting, entry.value, where=f"{where}: {TOPIC_DEFAULT_CONFIG}")
        contents.topic_default_config[setting] = Given(text, where)
    elif entry.path[0].partition(".")[0] == "topics":
        raise InvalidConfigError(
            f"{where}: {key!r}: a topic's own settings live with the topic, not in this file; "
            f"change them with `lastword topic alter`"
        )
    else:
        raise _unknown(entry)


def _put_namespace(rest: str, entry: Entry, contents: _Contents) -> None:
    namespace, dot, key = rest.partition(".")
    problem = check_namespace(namespace)
    if problem is not None:
        raise InvalidConfigError(f"{entry.where}: {namespace!r} is not the name of a namespace: {problem}")
    if not dot:
        _check_empty(f"namespace {namespace}", entry)
        return
    text = check_topic_setting(key, entry.value, where=f"{entry.where}: namespace {namespace}")
    contents.namespaces.setdefault(namespace, {})[key] = Given(text, entry.where)


def _check_empty(section: str, entry: Entry) -> None:
    # The value isn't shown: for the catalog it may be a URI with a password.
    if entry.value != {}:
        raise InvalidConfigError(
            f"{entry.where}: {section} must be a group of settings, '{{}}' if there are none"
        )


def _property(entry: Entry) -> str:
    """Return a catalog property in the text that pyiceberg takes. Its value is never shown in an error."""
    value = entry.value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    raise InvalidConfigError(f"{entry.where}: {entry.key} must be a single text or number")


def _unknown(entry: Entry) -> InvalidConfigError:
    """Return the error for an unknown key. For a misspelt section it names the section, not the settings in it."""
    parts = entry.key.split(".")
    for section in (parts[0], ".".join(parts[:2])):
        meant = closest(section, _SECTIONS, cutoff=0.75)
        if meant is not None:
            return unknown_setting(section, meant=meant, where=entry.places[0])
    return unknown_setting(
        entry.key, meant=closest(entry.key, (*BROKER_KEYS, *TOPIC_KEYS)), where=entry.where
    )


def _not_of_the_broker(key: str, where: str) -> Given:
    raise unknown_setting(key, meant=closest(key, BROKER_KEYS), where=where)


def _check_levels(contents: _Contents, *, where: str) -> None:
    """Check that topics without own settings resolve, auto-created or not: a file that loads must not break them."""
    created = Level(TOPIC_DEFAULT_CONFIG, contents.topic_default_config)
    for namespace in (DEFAULT_NAMESPACE, *contents.namespaces):
        inherited = list(_inherited(contents, namespace))
        place = f"{where}: topics of namespace {namespace}"
        build(effective_settings(inherited), where=place)
        build(
            effective_settings([created, *inherited]),
            where=f"{where}: auto-created topics of namespace {namespace}",
        )


def _check_session_timeouts(contents: _Contents, *, where: str) -> None:
    given = {each.key: each for each in _broker_settings(contents)}
    low, high = given["group.min.session.timeout.ms"], given["group.max.session.timeout.ms"]
    if int(low.value) > int(high.value):
        raise InvalidConfigError(f"{where}: {low} but {high}; the first must not exceed the second")


def _inherited(contents: _Contents, namespace: str) -> Iterator[Level]:
    yield Level(f"namespace {namespace}", contents.namespaces.get(namespace, {}))
    yield Level("broker", _topic_level(contents.broker))


def _topic_level(given: Mapping[str, Given]) -> dict[str, Given]:
    return {key: value for key, value in given.items() if key in TOPIC_KEYS}


def _broker_settings(contents: _Contents) -> Iterator[EffectiveSetting]:
    for setting in BROKER_SETTINGS:
        given = contents.broker.get(setting.key)
        if given is None:
            yield EffectiveSetting(key=setting.key, value=setting.default or "", source="default")
        else:
            yield EffectiveSetting(key=setting.key, value=given.text, source="broker", where=given.where)


def _properties(section: str, prefix: str, given: Mapping[str, Given]) -> Iterator[EffectiveSetting]:
    """Yield the properties that are passed on unchanged to pyiceberg or Spark."""
    if not given:
        yield EffectiveSetting(key=section, value="", source="default")
    for key, value in given.items():
        yield EffectiveSetting(
            key=f"{prefix}{key}", value=mask(key, value.text), source="broker", where=value.where
        )


def _default_config(given: Mapping[str, Given]) -> Iterator[EffectiveSetting]:
    if not given:
        yield EffectiveSetting(key=TOPIC_DEFAULT_CONFIG, value="", source="default")
    for key, value in given.items():
        yield EffectiveSetting(
            key=f"{TOPIC_DEFAULT_CONFIG}.{key}", value=value.text, source="broker", where=value.where
        )


def _texts(given: Mapping[str, Given]) -> dict[str, str]:
    return {key: value.text for key, value in given.items()}
