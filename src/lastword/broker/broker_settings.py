"""Broker settings that clients change at runtime. They override those of the configuration file.

Kafka has two levels of them: for one broker, and for all. Both are kept in one file of the data folder, which is
replaced as a whole before a change takes effect. If the process is killed, the change was either made or not. Settings
that other processes use, or that are read only once, can't be changed this way.

`advertised.listeners` is Kafka's name and format for `kafka.advertised`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Final

from lastword.config import BrokerConfig
from lastword.config.keys import BROKER_KEYS
from lastword.config.values import split_address
from lastword.errors import InvalidConfigError, InvalidError, LastwordError, StorageError
from lastword.folder import state_file
from lastword.folder.paths import BROKER_SETTINGS_FILE

logger = logging.getLogger(__name__)

LISTENER: Final = "PLAINTEXT"
"""The name of the only listener, in Kafka's terms."""

ADVERTISED: Final = "kafka.advertised"
ADVERTISED_LISTENERS: Final = "advertised.listeners"
ALTERABLE: Final = frozenset(
    {
        ADVERTISED,
        "auto.create.topics.enable",
        "connections.max.idle.ms",
        "fetch.max.bytes",
        "max.connections",
        "num.partitions",
        "offset.metadata.max.bytes",
    }
)


class Level(IntEnum):
    """The brokers that a setting was changed for, by Kafka's source numbers. The first level takes precedence."""

    THIS_BROKER = 2
    ALL_BROKERS = 3


Changed = dict[Level, dict[str, str]]


class BrokerSettings:
    """The settings that clients changed, and the resulting configuration. Thread-safe."""

    def __init__(self, folder: Path, file_config: BrokerConfig) -> None:
        self.file_config = file_config
        self._path = folder / BROKER_SETTINGS_FILE
        self._changing = threading.Lock()
        self._changed = _load(self._path, file_config)
        self.config = _altered(file_config, self._changed, self._path)

    def at(self, level: Level) -> dict[str, str]:
        """Return the settings that were changed at a level."""
        return dict(self._changed[level])

    def of(self, key: str) -> Iterator[tuple[Level, str]]:
        """Yield the levels at which a setting was changed, with its values. The first one takes effect."""
        for level in Level:
            if key in self._changed[level]:
                yield level, self._changed[level][key]

    def change(
        self, level: Level, given: Mapping[str, str | None], *, replaces: bool, is_trial: bool = False
    ) -> None:
        """Change settings. None resets a setting, and `replaces` also resets those that are not given.

        Raise InvalidError, and change nothing, if a setting can't be changed or can't have its new value.
        """
        with self._changing:
            own = {} if replaces else dict(self._changed[level])
            for name, value in given.items():
                key, text = _checked(name, value, is_sent_back=replaces, config=self.config)
                if text is not None:
                    own[key] = text
                elif key is not None:
                    own.pop(key, None)
            changed = {**self._changed, level: own}
            config = _altered(self.file_config, changed, self._path)
            if is_trial:
                return
            _save(self._path, changed)
            self._changed, self.config = changed, config
            logger.info("a client changed broker settings at level %s: %s", level.name, own)

    def advertised(self) -> tuple[str, int] | None:
        """Return the address that a client set for others to connect to, or None if none was set."""
        for _, text in self.of(ADVERTISED):
            return split_address(text)
        return None


def as_listeners(address: str) -> str:
    """Return an address in Kafka's format of advertised.listeners."""
    return f"{LISTENER}://{address}"


def _checked(
    name: str, value: str | None, *, is_sent_back: bool, config: BrokerConfig
) -> tuple[str, str | None]:
    """Return the setting and the text of its value, or None as the value if it is reset."""
    key = ADVERTISED if name == ADVERTISED_LISTENERS else name
    setting = BROKER_KEYS.get(key)
    if setting is None:
        # Raises the error that suggests a name. Settings that topics inherit are known here, too.
        BrokerConfig.from_mapping({name: value}, where="the broker")
    if key not in ALTERABLE:
        if is_sent_back and any(each.key == key and each.value == value for each in config.explain()):
            # A client that reads all settings, changes some and sends all back sends these, too.
            return key, None
        raise InvalidError(
            f"{name} can't be changed while the broker runs; {', '.join(sorted(ALTERABLE))} can. "
            f"Change it in the configuration file and restart the broker."
        )
    if value is None:
        return key, None
    assert setting is not None
    text = _listener(value) if name == ADVERTISED_LISTENERS else value
    try:
        canonical = setting.canonical(text, where="the broker")
        if key == ADVERTISED and split_address(canonical)[1] == 0:
            raise InvalidError(f"{name} is {value!r}; clients need a port other than 0 to connect to")
    except InvalidConfigError as error:
        raise InvalidError(str(error)) from None
    return key, canonical


def _listener(value: str) -> str:
    name, separator, address = value.strip().partition("://")
    if not separator or name.upper() != LISTENER or "," in address:
        raise InvalidError(
            f"{ADVERTISED_LISTENERS} is {value!r}; there is one listener: {LISTENER}://HOST:PORT is allowed"
        )
    return address


def _altered(config: BrokerConfig, changed: Changed, path: Path) -> BrokerConfig:
    merged = {**changed[Level.ALL_BROKERS], **changed[Level.THIS_BROKER]}
    return config.altered(merged, where=str(path)) if merged else config


def _load(path: Path, config: BrokerConfig) -> Changed:
    nothing: Changed = {level: {} for level in Level}
    try:
        changed = state_file.load(path, _changed_from, "Change them again.") or nothing
        _altered(config, changed, path)
        return changed
    except LastwordError as error:
        # Serving matters more, and the settings of the configuration file are valid.
        logger.error(
            "settings that clients have changed can't be read from %s, so those of the configuration file apply: %s",
            path,
            error,
        )
        return nothing


def _changed_from(saved: Mapping[str, Mapping[str, object]]) -> Changed:
    return {level: {str(k): str(v) for k, v in saved[level.name].items()} for level in Level}


def _save(path: Path, changed: Changed) -> None:
    content = {"version": 1, **{level.name: own for level, own in changed.items()}}
    try:
        state_file.save(path, content, indent=1)
    except OSError as error:
        raise StorageError(f"Can't write {path}: {error.strerror or error}. Nothing was changed.") from error
