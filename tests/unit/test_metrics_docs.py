"""docs/operations.md names every metric."""

from __future__ import annotations

import re
from pathlib import Path

import prometheus_client

from lastword import metrics

PAGE = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()


def named() -> set[str]:
    """The names of the table, those that are cut short (`…_errors_total`) made whole by the one before them."""
    found: set[str] = set()
    for row in re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE):
        before = ""
        for name in re.findall(r"`([^`]+)`", row):
            if name.startswith("…"):
                words = before.split("_")
                candidates = ["_".join(words[:count]) + name[1:] for count in range(1, len(words))]
                found.update(candidates)
            else:
                before = name
                found.add(name)
    return found


def test_every_metric_is_on_the_page() -> None:
    page = named()
    own = {
        sample
        for each in vars(metrics).values()
        if isinstance(each, prometheus_client.metrics.MetricWrapperBase)
        for family in each.describe()
        for sample in [family.name + ("_total" if family.type == "counter" else "")]
    }
    assert own
    assert sorted(own - page) == []
