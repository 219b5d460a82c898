"""The file of `lastword connect`: sources by name, and the settings for creating their topics.

sources:
  users:
    connector: postgres-cdc
    topic: db.users
    config:
      table: users
settings:
  topic:
    auto_create: true
    default_config:
      cleanup.policy: compact
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lastword.config.document import Entry, read_file, read_mapping
from lastword.config.keys import closest
from lastword.config.topic import check_topic_setting
from lastword.config.values import Kind, Switch, WholeNumber
from lastword.connect.options import Given, Options
from lastword.errors import InvalidConfigError

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,100}")
_SOURCE_KEYS = ("connector", "topic", "config")
_SETTINGS = (
    "settings.topic.auto_create",
    "settings.topic.partitions",
    "settings.topic.default_config",
    "settings.retry.first_ms",
    "settings.retry.max_ms",
)
_DEFAULT_CONFIG = "settings.topic.default_config"
_COUNT = WholeNumber(low=1, high=2**31 - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceConfig:
    """One source, as given in the file."""

    name: str
    connector: str
    topic: str | None
    where: str
    given: Mapping[str, Given]

    @property
    def options(self) -> Options:
        """The connector's options, none taken yet."""
        return Options(path=f"sources.{self.name}.config", where=self.where, given=self.given)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectConfig:
    """The whole file."""

    sources: Mapping[str, SourceConfig]
    auto_create: bool = False
    partitions: int | None = None
    default_config: Mapping[str, str] = field(default_factory=dict)
    retry_first_ms: int = 1_000
    retry_max_ms: int = 60_000

    @classmethod
    def load(cls, path: Path) -> ConnectConfig:
        """Read a file. InvalidConfigError names the place, the value and the allowed values."""
        return _build(read_file(path), where=str(path))

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object], *, where: str = "config") -> ConnectConfig:
        return _build(read_mapping(mapping, where=where), where=where)


@dataclass(slots=True)
class _Draft:
    where: str
    texts: dict[str, Entry] = field(default_factory=dict)
    given: dict[str, Given] = field(default_factory=dict)


def _build(entries: Iterable[Entry], *, where: str) -> ConnectConfig:
    drafts: dict[str, _Draft] = {}
    settings: dict[str, Entry] = {}
    default_config: dict[str, str] = {}
    for entry in entries:
        section = entry.path[0].partition(".")[0]
        if section == "sources":
            _put_source(entry, drafts)
        elif entry.key.startswith(f"{_DEFAULT_CONFIG}."):
            key = entry.key.removeprefix(f"{_DEFAULT_CONFIG}.")
            default_config[key] = check_topic_setting(
                key, entry.value, where=f"{entry.where}: {_DEFAULT_CONFIG}"
            )
        elif entry.key in _SETTINGS:
            if entry.key == _DEFAULT_CONFIG and entry.value != {}:
                raise InvalidConfigError(f"{entry.where}: {entry.key} must be a group of topic settings")
            settings[entry.key] = entry
        else:
            known = ("sources", *_SETTINGS)
            meant = closest(entry.key, known)
            hint = f"; did you mean {meant!r}?" if meant else f"; allowed: {', '.join(known)}"
            raise InvalidConfigError(f"{entry.where}: unknown setting {entry.key!r}{hint}")
    if not drafts:
        raise InvalidConfigError(
            f"{where}: there are no sources; list them below 'sources', each under its name"
        )
    first_ms = _value(settings, "settings.retry.first_ms", _COUNT, 1_000)
    max_ms = _value(settings, "settings.retry.max_ms", _COUNT, 60_000)
    if first_ms > max_ms:
        place = settings.get("settings.retry.first_ms") or settings["settings.retry.max_ms"]
        raise InvalidConfigError(
            f"{place.where}: settings.retry.first_ms ({first_ms}) is above settings.retry.max_ms ({max_ms})"
        )
    return ConnectConfig(
        sources={name: _source(name, draft) for name, draft in drafts.items()},
        auto_create=_value(settings, "settings.topic.auto_create", Switch(), False),
        partitions=_value(settings, "settings.topic.partitions", _COUNT, None),
        default_config=default_config,
        retry_first_ms=first_ms,
        retry_max_ms=max_ms,
    )


def _put_source(entry: Entry, drafts: dict[str, _Draft]) -> None:
    parts, places = entry.path, entry.places
    if parts[0] != "sources" or len(parts) < 2:
        raise InvalidConfigError(f"{entry.where}: sources must be a group, with each source under its name")
    name = parts[1]
    if not _NAME.fullmatch(name):
        raise InvalidConfigError(
            f"{places[1]}: {name!r} is not a valid source name; allowed: 1 to 100 letters, digits, '-' and '_'"
        )
    draft = drafts.setdefault(name, _Draft(places[1]))
    key = parts[2] if len(parts) > 2 else ""
    if key == "config":
        rest = ".".join(parts[3:])
        if rest:
            draft.given[rest] = Given(entry.value, entry.where)
        elif entry.value not in ({}, None):
            raise InvalidConfigError(f"{entry.where}: sources.{name}.config must be a group of options")
    elif key in _SOURCE_KEYS and len(parts) == 3:
        draft.texts[key] = entry
    elif key or entry.value != {}:
        meant = closest(key, _SOURCE_KEYS)
        hint = f"; did you mean {meant!r}?" if meant else ""
        raise InvalidConfigError(
            f"{entry.where}: sources.{name} has the unknown key {'.'.join(parts[2:])!r}{hint} "
            f"(allowed: {', '.join(_SOURCE_KEYS)})"
        )


def _source(name: str, draft: _Draft) -> SourceConfig:
    texts: dict[str, str] = {}
    for key, entry in draft.texts.items():
        if not isinstance(entry.value, str) or not entry.value.strip():
            raise InvalidConfigError(f"{entry.where}: sources.{name}.{key} must be a non-empty string")
        texts[key] = entry.value
    if "connector" not in texts:
        raise InvalidConfigError(
            f"{draft.where}: sources.{name}.connector is missing; allowed: postgres-cdc, file, kafka, or module:Class"
        )
    return SourceConfig(
        name=name,
        connector=texts["connector"],
        topic=texts.get("topic"),
        where=draft.where,
        given=draft.given,
    )


def _value(settings: Mapping[str, Entry], key: str, kind: Kind, default: Any) -> Any:
    entry = settings.get(key)
    if entry is None:
        return default
    try:
        return kind.parse(entry.value)
    except ValueError:
        raise InvalidConfigError(
            f"{entry.where}: {key} is {entry.value!r}; allowed: {kind.allowed}"
        ) from None
