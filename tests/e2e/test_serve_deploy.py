"""deploy/: the rules, the dashboard and the unit, held against a real server and the tools that read them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from tests.support.server import serving

DEPLOY = Path(__file__).parents[2] / "deploy"
METRIC = re.compile(r"\blastword_[a-z0-9_]+")
EXPECTED = [
    "lastword_log_cleaner_compactions_total",
    "lastword_log_cleaner_cleaned_bytes_total",
    "lastword_log_cleaner_dirty_ratio",
    "lastword_log_cleaner_duration_seconds",
    "lastword_wal_retention_files_deleted_total",
    "lastword_wal_retention_bytes_reclaimed_total",
    "lastword_wal_retention_errors_total",
    "lastword_wal_retention_last_run_timestamp",
    "lastword_wal_disk_usage_bytes",
    "lastword_topic_bytes",
    "lastword_log_cleaner_uncleanable_partitions",
    "lastword_log_cleaner_overdue_seconds",
    "lastword_log_cleaner_last_run_timestamp",
    "lastword_kafka_requests_total",
    "lastword_kafka_request_duration_seconds",
    "lastword_append_bytes_total",
    "lastword_fetch_bytes_total",
    "lastword_tiering_lag_seconds",
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[set[str]]:
    """The names of all metrics that a server exports."""
    with serving(tmp_path_factory.mktemp("deploy") / "data") as server:
        text = httpx.get(f"{server.url}/metrics").text
        yield set(re.findall(r"^# HELP (\S+)", text, re.MULTILINE))


def named(text: str) -> set[str]:
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in METRIC.findall(text)}


@pytest.mark.parametrize("file", ["alerts.yml", "alerts_test.yml", "grafana-dashboard.json"])
def test_each_metric_that_is_named_is_exported(exported: set[str], file: str) -> None:
    found = named((DEPLOY / file).read_text())
    assert found
    assert found - exported == set()


def test_the_metrics_that_operators_expect_are_exported(exported: set[str]) -> None:
    assert set(EXPECTED) - exported == set()


def test_each_alert_says_what_and_where_to_look() -> None:
    (group,) = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]:
        assert set(rule["annotations"]) == {"summary", "look"}
        assert rule["labels"]["severity"] in ("warning", "critical")


def test_the_dashboard_has_panels_that_don_t_overlap() -> None:
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        assert panel["type"] == "row" or all(target["expr"] for target in panel["targets"])


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "rules", "alerts.yml"],
        ["check", "config", "prometheus.yml"],
        ["test", "rules", "alerts_test.yml"],
    ],
)
def test_prometheus_accepts_the_rules(arguments: list[str]) -> None:
    beside = Path(sys.executable).with_name("promtool")
    tool = str(beside) if beside.exists() else shutil.which("promtool")
    if tool is None:
        pytest.skip(
            "promtool is not installed: scripts/ensure-promtool takes it out of Debian's package prometheus"
        )
    done = subprocess.run([tool, *arguments], cwd=DEPLOY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    tool = shutil.which("systemd-analyze")
    if tool is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "lastword.service"
    command = Path(sys.executable).with_name("lastword")
    unit.write_text(
        (DEPLOY / "lastword.service").read_text().replace("/opt/lastword/bin/lastword", str(command))
    )
    done = subprocess.run([tool, "verify", str(unit)], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if "lastword.service" in line]
    assert complaints == []
