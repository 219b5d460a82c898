"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources.

The settings of topics, and some of the broker's (broker_settings.py), can be changed at runtime. Kafka has no
namespaces, so a setting that comes from one is shown as a broker setting. Kafka's settings that have no effect here
(kafka_settings.py) are shown with the value that applies, as read-only. Kafka's group settings belong to protocols that
are not served, so a group has none. There are no client metrics subscriptions either.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import Final

from kafka.protocol.admin import (
    AlterConfigsResponse,
    DescribeConfigsResponse,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesResponse,
)

from lastword.broker.broker_settings import (
    ADVERTISED,
    ADVERTISED_LISTENERS,
    ALTERABLE,
    BrokerSettings,
    Level,
    as_listeners,
)
from lastword.broker.errors import ErrorCode, code_of
from lastword.broker.kafka_settings import KAFKA_SETTINGS, KafkaSetting, own_settings
from lastword.broker.node import Node
from lastword.broker.nulls import refusing_nulls
from lastword.broker.wire import Answer, Handler, Message, Peer, Request
from lastword.config import (
    BrokerConfig,
    EffectiveSetting,
    check_not_internal,
    check_topic_config,
    check_topic_name,
    is_internal,
)
from lastword.config.keys import BROKER_KEYS, TOPIC_KEYS
from lastword.config.masking import MASK
from lastword.config.values import INT_MAX, CleanupPolicy, Ratio, Switch, WholeNumber
from lastword.errors import InvalidConfigError, InvalidError, LastwordError
from lastword.log.topic import Topic

logger = logging.getLogger(__name__)

DESCRIBE_CONFIGS: Final = 32
ALTER_CONFIGS: Final = 33
INCREMENTAL_ALTER_CONFIGS: Final = 44
LIST_CONFIG_RESOURCES: Final = 74

_TOPIC: Final = 2
_BROKER: Final = 4
_BROKER_LOGGER: Final = 8
_CLIENT_METRICS: Final = 16
_GROUP: Final = 32
_RESOURCE_TYPES: Final = (_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP)


class Source(IntEnum):
    """The source of a setting, by Kafka's numbers."""

    TOPIC = 1
    # These two are made of broker_settings.Level.
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigType(IntEnum):
    """Kafka's types of settings."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Operation(IntEnum):
    """The operation of an incremental change on a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedSetting:
    """A setting as Kafka shows it. `synonyms` are all levels that define it, the effective one first."""

    name: str
    value: str | None
    source: Source
    read_only: bool
    is_sensitive: bool = False
    synonyms: tuple[tuple[str | None, Source], ...] = ()


def described_topic_config(config: BrokerConfig, name: str, own: Mapping[str, str]) -> list[DescribedSetting]:
    """Return the effective settings of a topic whose own settings are `own`."""
    levels = [config.explain(name, own), config.explain(name), config.explain()]
    if is_internal(name):
        levels = levels[:1]
    described = [
        _described(effective, synonyms, read_only=is_internal(name))
        for effective, *synonyms in zip(*map(_topic_settings, levels), strict=True)
    ]
    described += [_described_as_held(each, config) for each in KAFKA_SETTINGS.values()]
    return sorted(described, key=lambda each: each.name)


def described_broker_config(settings: BrokerSettings, listens_at: str) -> list[DescribedSetting]:
    """Return the effective settings of the broker, which also apply to topics without their own."""
    found = [
        _with_changes(_described(effective, (), read_only=effective.key not in ALTERABLE), settings)
        for effective in settings.file_config.explain()
    ]
    (advertised,) = (each for each in found if each.name == ADVERTISED)
    return [*found, _as_kafka_advertises(advertised, listens_at)]


def _with_changes(described: DescribedSetting, settings: BrokerSettings) -> DescribedSetting:
    """Return the setting with the clients' changes ahead of the file's value."""
    changed = tuple((text, Source(level)) for level, text in settings.of(described.name))
    if not changed:
        return described
    value, source = changed[0]
    return replace(described, value=value, source=source, synonyms=(*changed, *described.synonyms))


def _as_kafka_advertises(advertised: DescribedSetting, listens_at: str) -> DescribedSetting:
    return replace(
        advertised,
        name=ADVERTISED_LISTENERS,
        value=as_listeners(advertised.value or listens_at),
        synonyms=tuple((as_listeners(text or listens_at), source) for text, source in advertised.synonyms),
    )


class ConfigHandlers:
    """Shows and changes settings."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def handlers(self) -> dict[int, Handler]:
        return refusing_nulls(
            {
                DESCRIBE_CONFIGS: self._describe_configs,
                ALTER_CONFIGS: self._alter_configs,
                INCREMENTAL_ALTER_CONFIGS: self._incremental_alter_configs,
                LIST_CONFIG_RESOURCES: self._list_resources,
            }
        )

    # ---------------------------------------------------------------------------------------------- list

    async def _list_resources(self, request: Request, _peer: Peer) -> Answer:
        """List the resources whose settings can be requested. In version 0 those are only client metrics."""
        wanted = set(request.message.resource_types) if request.api_version >= 1 else {_CLIENT_METRICS}
        is_known = wanted <= set(_RESOURCE_TYPES)
        names = {
            _BROKER: [str(self._node.node_id)],
            _TOPIC: self._node.topic_names(include_internal=True),
        }
        resource_class = ListConfigResourcesResponse.ConfigResource
        return ListConfigResourcesResponse(
            throttle_time_ms=0,
            error_code=int(ErrorCode.NONE if is_known else ErrorCode.UNSUPPORTED_VERSION),
            config_resources=[
                resource_class(resource_name=name, resource_type=kind)
                for kind, own in names.items()
                if is_known and (not wanted or kind in wanted)
                for name in own
            ],
        )

    # ------------------------------------------------------------------------------------------ describe

    async def _describe_configs(self, request: Request, _peer: Peer) -> Answer:
        message = request.message
        result_class = DescribeConfigsResponse.DescribeConfigsResult
        with_documentation = request.api_version >= 3 and bool(message.include_documentation)
        results = []
        for resource in message.resources:
            code, text, settings = ErrorCode.NONE, None, []
            try:
                settings = self._settings_of(resource)
            except LastwordError as error:
                code, text = code_of(error), str(error)
            wanted = None if resource.configuration_keys is None else set(resource.configuration_keys)
            results.append(
                result_class(
                    error_code=int(code),
                    error_message=text,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=[
                        _config(each, bool(message.include_synonyms), with_documentation)
                        for each in settings
                        if wanted is None or each.name in wanted
                    ],
                )
            )
        return DescribeConfigsResponse(throttle_time_ms=0, results=results)

    def _settings_of(self, resource: Message) -> list[DescribedSetting]:
        config = self._node.config
        if resource.resource_type == _TOPIC:
            topic = self._topic(resource.resource_name)
            return described_topic_config(config, topic.name, topic.config)
        if resource.resource_type == _BROKER:
            level = self._level(resource.resource_name)
            described = described_broker_config(self._node.settings, self._node.listens_at)
            if level is Level.THIS_BROKER:
                return described
            return [
                replace(each, value=text, source=Source(level), synonyms=((text, Source(level)),))
                for each in described
                if (text := self._node.settings.at(level).get(each.name)) is not None
            ]
        if resource.resource_type == _GROUP:
            _check_group(resource.resource_name)
            return []
        raise _no_such_resource(resource.resource_type)

    # --------------------------------------------------------------------------------------------- alter

    async def _alter_configs(self, request: Request, _peer: Peer) -> Answer:
        """Replace settings, Kafka's old way: those that are given are set, all others are reset."""

        def changed(_topic: Topic, configs: Sequence[Message]) -> dict[str, object]:
            # A client that reads all settings, changes some and sends all back sends Kafka's, too.
            return {each.name: each.value for each in configs}

        results = await self._alter(request.message, changed, replaces=True)
        return AlterConfigsResponse(
            throttle_time_ms=0,
            responses=[AlterConfigsResponse.AlterConfigsResourceResponse(**each) for each in results],
        )

    async def _incremental_alter_configs(self, request: Request, _peer: Peer) -> Answer:
        results = await self._alter(request.message, self._incrementally_changed, replaces=False)
        response_class = IncrementalAlterConfigsResponse.AlterConfigsResourceResponse
        return IncrementalAlterConfigsResponse(
            throttle_time_ms=0, responses=[response_class(**each) for each in results]
        )

    async def _alter(
        self,
        message: Message,
        changed: Callable[[Topic, Sequence[Message]], dict[str, object]],
        *,
        replaces: bool,
    ) -> list[dict[str, object]]:
        results: list[dict[str, object]] = []
        counts = Counter((each.resource_type, each.resource_name) for each in message.resources)
        for resource in message.resources:
            code, text = ErrorCode.NONE, None
            try:
                if counts[resource.resource_type, resource.resource_name] > 1:
                    raise InvalidError(f"{resource.resource_name!r} is named twice")
                is_trial = bool(message.validate_only)
                if resource.resource_type == _BROKER:
                    await self._alter_broker(resource, replaces=replaces, is_trial=is_trial)
                else:
                    topic = self._to_alter(resource)
                    await self._node.call_slow(
                        self._apply, topic, partial(changed, topic, resource.configs), is_trial
                    )
            except LastwordError as error:
                code, text = code_of(error), str(error)
            results.append(
                {
                    "error_code": int(code),
                    "error_message": text,
                    "resource_type": resource.resource_type,
                    "resource_name": resource.resource_name,
                }
            )
        return results

    def _to_alter(self, resource: Message) -> Topic:
        if resource.resource_type == _TOPIC:
            check_not_internal(resource.resource_name, "altered")
            return self._topic(resource.resource_name)
        if resource.resource_type == _GROUP:
            _check_group(resource.resource_name)
            names = ", ".join(sorted({each.name for each in resource.configs}))
            raise InvalidConfigError(
                f"group {resource.resource_name!r} has no settings, so it has no {names}: groups use the classic "
                f"protocol, in which each member has its own settings."
            )
        raise _no_such_resource(resource.resource_type)

    async def _alter_broker(self, resource: Message, *, replaces: bool, is_trial: bool) -> None:
        level = self._level(resource.resource_name)
        counts = Counter(each.name for each in resource.configs)
        given: dict[str, str | None] = {}
        for each in resource.configs:
            if counts[each.name] > 1:
                raise InvalidError(f"the broker: {each.name} is named twice")
            given[each.name] = each.value if replaces else _incremental_value(each)
        settings = self._node.settings
        await self._node.call(settings.change, level, given, replaces=replaces, is_trial=is_trial)
        # So that the new settings are shown everywhere.
        self._node.log.config = settings.config

    def _incrementally_changed(self, topic: Topic, configs: Sequence[Message]) -> dict[str, object]:
        own: dict[str, object] = dict(topic.config)
        counts = Counter(each.name for each in configs)
        for each in configs:
            where = f"topic {topic.name!r}"
            if counts[each.name] > 1:
                raise InvalidError(f"{where}: {each.name} is named twice")
            if each.config_operation == Operation.SET:
                own[each.name] = each.value
            elif each.config_operation == Operation.DELETE:
                if each.name not in TOPIC_KEYS and each.name not in KAFKA_SETTINGS:
                    # Raises the error that suggests a name.
                    check_topic_config({each.name: ""}, where=where)
                own.pop(each.name, None)
            elif each.config_operation in (Operation.APPEND, Operation.SUBTRACT):
                own[each.name] = self._changed_list(topic, each)
            else:
                raise InvalidError(
                    f"{where}: {each.config_operation} is not an operation on {each.name}; "
                    f"allowed: 0 (set), 1 (delete), 2 (append), 3 (subtract)"
                )
        return own

    def _changed_list(self, topic: Topic, change: Message) -> str:
        where = f"topic {topic.name!r}"
        if change.name in KAFKA_SETTINGS:
            return str(change.value or "")
        if change.name != "cleanup.policy":
            check_topic_config({change.name: ""} if change.name not in TOPIC_KEYS else {}, where=where)
            raise InvalidConfigError(f"{where}: {change.name} is not a list; only lists can be appended to")
        given = [part.strip() for part in (change.value or "").split(",")]
        now = sorted(topic.settings.cleanup_policy)
        if change.config_operation == Operation.APPEND:
            return ",".join(dict.fromkeys([*now, *given]))
        return ",".join(part for part in now if part not in given)

    def _apply(self, topic: Topic, changed: Callable[[], dict[str, object]], is_trial: bool) -> None:
        log = self._node.log
        where = f"topic {topic.name!r}"
        # The change is based on the current settings: no other thread may change them in between.
        with log.altering:
            own = own_settings(changed(), log.config, where=where)
            if is_trial:
                log.config.resolve(topic.name, check_topic_config(own, where=where))
                return
            log.alter_topic(topic.name, set_config=own, unset=[key for key in topic.config if key not in own])
        logger.info("altered the settings of topic %s for a client: %s", topic.name, dict(topic.config))

    # ------------------------------------------------------------------------------------------ internal

    def _topic(self, name: str) -> Topic:
        check_topic_name(name)
        return self._node.topic(name)

    def _level(self, name: str) -> Level:
        """Return the level that a broker's name stands for: its id is this broker, an empty name is all brokers."""
        if name not in ("", str(self._node.node_id)):
            raise InvalidError(f"There is no broker {name!r}; the only broker is {self._node.node_id}.")
        return Level.THIS_BROKER if name else Level.ALL_BROKERS


def _incremental_value(change: Message) -> str | None:
    if change.config_operation == Operation.DELETE:
        return None
    if change.config_operation == Operation.SET:
        return str(change.value) if change.value is not None else None
    if change.config_operation in (Operation.APPEND, Operation.SUBTRACT):
        raise InvalidConfigError(f"the broker: {change.name} is not a list; only lists can be appended to")
    raise InvalidError(
        f"the broker: {change.config_operation} is not an operation on {change.name}; allowed: 0 (set), 1 (delete)"
    )


def _check_group(name: str) -> None:
    if name == "":
        raise InvalidError("A group must be named: there are no settings for all groups.")


def _no_such_resource(resource_type: int) -> InvalidError:
    return InvalidError(
        f"Resources of type {resource_type} have no settings here; {_TOPIC} (topic) and {_BROKER} (broker) do."
    )


def _topic_settings(level: Iterable[EffectiveSetting]) -> list[EffectiveSetting]:
    return sorted((each for each in level if each.key in TOPIC_KEYS), key=lambda each: each.key)


def _described(
    effective: EffectiveSetting, others: Iterable[EffectiveSetting], *, read_only: bool
) -> DescribedSetting:
    setting = TOPIC_KEYS.get(effective.key) or BROKER_KEYS.get(effective.key)
    default = EffectiveSetting(
        key=effective.key, value=(setting.default if setting else None) or "", source="default"
    )
    # One for each level: a level that doesn't define the setting shows the one below it.
    levels = {each.source: each for each in (effective, *others, default)}
    is_sensitive = MASK in effective.value
    return DescribedSetting(
        name=effective.key,
        value=None if is_sensitive else effective.value or None,
        source=_source(effective),
        read_only=read_only,
        is_sensitive=is_sensitive,
        synonyms=tuple(
            (None if is_sensitive else each.value or None, _source(each)) for each in levels.values()
        ),
    )


def _described_as_held(setting: KafkaSetting, config: BrokerConfig) -> DescribedSetting:
    value = setting.holds(config)
    return DescribedSetting(
        name=setting.name,
        value=value,
        source=Source.DEFAULT,
        read_only=True,
        synonyms=((value, Source.DEFAULT),),
    )


def _source(effective: EffectiveSetting) -> Source:
    if effective.source in ("topic", "internal"):
        return Source.TOPIC
    return Source.DEFAULT if effective.source == "default" else Source.STATIC_BROKER


def _config(setting: DescribedSetting, with_synonyms: bool, with_documentation: bool) -> Message:
    config_class = DescribeConfigsResponse.DescribeConfigsResult.DescribeConfigsResourceResult
    known = TOPIC_KEYS.get(setting.name) or BROKER_KEYS.get(setting.name) or KAFKA_SETTINGS.get(setting.name)
    synonyms = setting.synonyms if with_synonyms else ()
    return config_class(
        name=setting.name,
        value=setting.value,
        read_only=setting.read_only,
        config_source=int(setting.source),
        is_sensitive=setting.is_sensitive,
        synonyms=[
            config_class.DescribeConfigsSynonym(name=setting.name, value=value, source=int(source))
            for value, source in synonyms
        ],
        config_type=int(_type(setting.name)),
        documentation=known.meaning if known is not None and with_documentation else None,
    )


def _type(name: str) -> ConfigType:
    known = TOPIC_KEYS.get(name) or BROKER_KEYS.get(name) or KAFKA_SETTINGS.get(name)
    kind = known.kind if known is not None else None
    if isinstance(kind, WholeNumber):
        return ConfigType.INT if kind.high <= INT_MAX else ConfigType.LONG
    if isinstance(kind, Switch):
        return ConfigType.BOOLEAN
    if isinstance(kind, Ratio):
        return ConfigType.DOUBLE
    return ConfigType.LIST if isinstance(kind, CleanupPolicy) else ConfigType.STRING
