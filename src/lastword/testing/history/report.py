"""The result of a check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lastword.testing.history.events import Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """An observation that no legal order of the operations explains."""

    rule: str
    topic: str
    partition: int | None = None
    offset: int | None = None
    key: bytes | None = None
    what: str
    """The anomaly, in one sentence."""
    events: tuple[tuple[Operation, str], ...] = ()
    """The operations that prove it, in chronological order, each with a sentence about its part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The anomalies of a history, and the number of facts that each rule checked.

    A rule that checked no facts proves nothing.
    """

    anomalies: tuple[Anomaly, ...]
    checked: Mapping[str, int]
    """The number of facts that each rule checked."""
    found: Mapping[str, int]
    """The number of anomalies that each rule found. `anomalies` may hold fewer of them."""

    @property
    def ok(self) -> bool:
        return not self.found
