"""`check` decides whether a log that keeps its promises can produce a history."""

from __future__ import annotations

import gc
from collections.abc import Iterable

from lastword.testing.history.events import Operation
from lastword.testing.history.findings import Findings
from lastword.testing.history.history import History
from lastword.testing.history.options import Options
from lastword.testing.history.report import Report
from lastword.testing.history.rules import CHECKS, RULES
from lastword.testing.history.truth.reading import read_truth


def check(history: History | Iterable[Operation], options: Options | None = None) -> Report:
    """Check a history against all rules."""
    chosen = options or Options()
    ordered = history if isinstance(history, History) else History.of(history)
    findings = Findings(chosen, RULES)
    # Millions of objects are created here and all live until the end. Garbage collection would take a third of the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        truth = read_truth(ordered.operations, chosen, findings)
        for judge in CHECKS:
            judge(truth, findings)
    finally:
        if collects:
            gc.enable()
    return findings.report()
