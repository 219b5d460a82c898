"""Options: the properties of a system that its history does not show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The promises that differ between systems. The defaults are Lastword's."""

    settings: Mapping[str, str] = field(default_factory=dict)
    """The broker's defaults for topic settings. They also apply to topics whose creation is not recorded."""
    gaps_never_close: bool = False
    """Whether a record that one reader missed is never shown again. If not, this holds only below the first dirty offset
    in the first reader's response. True for Kafka, which has one copy of a record."""
    at_least_once: bool = False
    """Whether a produce may be appended more than once, because the client retries without idempotence."""
    only_recorded: bool = True
    """Whether only recorded processes produce. If so, a record without a recorded produce is an anomaly."""
    takeover_loses_unsealed: bool = True
    """Whether a takeover may lose records that are acknowledged but not sealed."""
    clock_skew_ms: int = 0
    """How far the recorded clock may lag behind the server's clock."""
    rules: frozenset[str] | None = None
    """The names of the rules to check. None means all."""
    stories: int = 20
    """The maximum number of stories per rule."""
