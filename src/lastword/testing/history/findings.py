"""Findings: counts and anomalies, collected while the rules check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from lastword.testing.history.events import Operation
from lastword.testing.history.options import Options
from lastword.testing.history.report import Anomaly, Report

Event = tuple[Operation | None, str]


class Findings:
    """Counts the facts that each rule checked, and collects the anomalies."""

    def __init__(self, options: Options, names: Iterable[str]) -> None:
        self._options = options
        self._checked: Counter[str] = Counter(dict.fromkeys(names, 0))
        self._found: Counter[str] = Counter()
        self._anomalies: list[Anomaly] = []

    def checked(self, rule: str, facts: int = 1) -> None:
        self._checked[rule] += facts

    def anomaly(
        self,
        rule: str,
        what: str,
        events: Iterable[Event],
        *,
        topic: str,
        partition: int | None = None,
        offset: int | None = None,
        key: bytes | None = None,
    ) -> None:
        """Report an anomaly. Events without an operation are dropped."""
        if self._options.rules is not None and rule not in self._options.rules:
            return
        self._found[rule] += 1
        if self._found[rule] > self._options.stories:
            return
        told: dict[int, tuple[Operation, str]] = {}
        for operation, words in events:
            if operation is not None:
                told.setdefault(id(operation), (operation, words))
        self._anomalies.append(
            Anomaly(
                rule=rule,
                topic=topic,
                partition=partition,
                offset=offset,
                key=key,
                what=what,
                events=tuple(sorted(told.values(), key=lambda each: each[0].invoked)),
            )
        )

    def report(self) -> Report:
        chosen = self._options.rules
        checked = {name: n for name, n in self._checked.items() if chosen is None or name in chosen}
        return Report(anomalies=tuple(self._anomalies), checked=checked, found=dict(self._found))
