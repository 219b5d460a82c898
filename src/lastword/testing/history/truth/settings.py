"""The settings of a topic over time, as far as the rules depend on them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lastword.testing.history.events import Outcome, TopicSettings
from lastword.testing.history.truth.clockline import NEVER

DAY_MS = 86_400_000
_INT64_MIN, _INT64_MAX = -(1 << 63), (1 << 63) - 1
_DECIMAL = re.compile(rb"[+-]?[0-9]+")

Rank = tuple[int, int]
"""A record's version, for comparisons. UNRANKED, the lowest, is for records without a version."""

UNRANKED: Rank = (0, 0)
ANY_LOW: Rank = (-1, 0)
ANY_HIGH: Rank = (2, 0)


@dataclass(frozen=True, slots=True)
class Strategy:
    """The order by which one record of a key wins."""

    name: str = "offset"
    header: str | None = None
    header_format: str = "long"

    @property
    def is_versioned(self) -> bool:
        return self.name not in ("offset", "first")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """The settings of a topic that the rules depend on."""

    compacts: bool
    deletes: bool
    strategy: Strategy
    delete_retention_ms: int
    tombstone_clock: str
    min_lag_ms: int
    retention_ms: int | None
    has_size_limit: bool
    has_append_time: bool
    may_lose_tail: bool

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> TopicRules:
        """Return the rules that settings define. The defaults are Kafka's."""
        policy = {each.strip() for each in settings.get("cleanup.policy", "delete").split(",")}
        retention_ms = int(settings.get("retention.ms", 7 * DAY_MS))
        return cls(
            compacts="compact" in policy,
            deletes="delete" in policy,
            strategy=Strategy(
                settings.get("compaction.strategy", "offset"),
                settings.get("compaction.strategy.header"),
                settings.get("compaction.strategy.header.format", "long"),
            ),
            delete_retention_ms=int(settings.get("delete.retention.ms", DAY_MS)),
            tombstone_clock=settings.get("tombstone.clock", "compaction"),
            min_lag_ms=int(settings.get("min.compaction.lag.ms", 0)),
            retention_ms=None if retention_ms < 0 else retention_ms,
            has_size_limit=int(settings.get("retention.bytes", -1)) >= 0,
            has_append_time=settings.get("message.timestamp.type", "CreateTime") != "CreateTime",
            may_lose_tail=settings.get("wal.sync", "group") != "group",
        )


@dataclass(frozen=True, slots=True)
class Window:
    """Rules that may have been in force between two numbers of the order."""

    since: int
    until: int
    rules: TopicRules


def windows_of(
    since: int,
    initial: Sequence[Mapping[str, str]],
    defaults: Mapping[str, str],
    changes: Sequence[TopicSettings],
) -> tuple[list[Window], list[Mapping[str, str]]]:
    """Return the rules that may have been in force, and the settings that may be in force at the end.

    A change may be in force from its invocation on. The settings before it may be in force until it completes, and for
    ever if the change is in doubt or was concurrent with another one.
    """
    open_ones: list[tuple[int, Mapping[str, str]]] = [(since, each) for each in initial]
    windows: list[Window] = []
    busy_until = -1
    for change in changes:
        if change.outcome is Outcome.REFUSED:
            continue
        is_sure = (
            change.outcome is Outcome.OK and change.completed is not None and change.invoked > busy_until
        )
        busy_until = max(busy_until, NEVER if change.completed is None else change.completed)
        changed: list[tuple[int, Mapping[str, str]]] = []
        for began, settings in open_ones:
            after = {
                **settings,
                **{name: value for name, value in change.settings.items() if value is not None},
            }
            for name, value in change.settings.items():
                if value is None:
                    after.pop(name, None)
            changed.append((change.invoked, after))
            if is_sure:
                assert change.completed is not None
                windows.append(Window(began, change.completed, TopicRules.of({**defaults, **settings})))
        open_ones = changed if is_sure else [*open_ones, *changed]
        open_ones = _distinct(open_ones)
    windows += [
        Window(began, NEVER, TopicRules.of({**defaults, **settings})) for began, settings in open_ones
    ]
    return _joined(windows), [settings for _, settings in open_ones]


def _distinct(found: list[tuple[int, Mapping[str, str]]]) -> list[tuple[int, Mapping[str, str]]]:
    first: dict[tuple[tuple[str, str], ...], tuple[int, Mapping[str, str]]] = {}
    for began, settings in found:
        first.setdefault(tuple(sorted(settings.items())), (began, settings))
    return list(first.values())


def _joined(windows: list[Window]) -> list[Window]:
    """Merge adjacent windows of the same rules."""
    joined: dict[TopicRules, list[Window]] = {}
    for each in sorted(windows, key=lambda window: window.since):
        before = joined.setdefault(each.rules, [])
        if before and each.since <= before[-1].until + 1:
            before[-1] = Window(before[-1].since, max(before[-1].until, each.until), each.rules)
        else:
            before.append(each)
    return sorted((each for found in joined.values() for each in found), key=lambda window: window.since)


def parse_version(value: bytes | None, header_format: str) -> int | None:
    """Return a version header's value as a number, or None if it is not a number."""
    if value is None:
        return None
    if header_format == "long":
        return int.from_bytes(value, "big", signed=True) if len(value) == 8 else None
    if not _DECIMAL.fullmatch(value) or len(value.lstrip(b"+-").lstrip(b"0")) > 19:
        return None
    digits = value.lstrip(b"+-").lstrip(b"0")
    number = int(digits or b"0") * (-1 if value.startswith(b"-") else 1)
    return number if _INT64_MIN <= number <= _INT64_MAX else None
