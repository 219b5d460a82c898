"""The light of Spark on the dashboard, with a real Spark behind it."""

from __future__ import annotations

from pathlib import Path

import httpx
import psutil
import pytest
from tests.support.browser import Browser, browsing, require_browser
from tests.support.server import Server, serving

SETTINGS = "spark.master: local[1]\nworker.nice: 0\nworker.initial.delay.ms: 3600000\n"


@pytest.mark.soak
def test_the_light_follows_spark(tmp_path: Path) -> None:
    require_browser()
    with (
        serving(tmp_path / "data", settings=SETTINGS) as server,
        server.client() as api,
        browsing(tmp_path / "profile") as browser,
    ):
        created = api.post("/v1/topics", json={"name": "users", "config": {"cleanup.policy": "compact"}})
        assert created.status_code == 201
        browser.open(f"{server.url}/")
        light_says(browser, "idle", "starts when needed")

        compact(api)
        light_says(browser, "good", "running")

        java(server).kill()
        light_says(browser, "bad", "gone")
        browser.find(".alerts li", "Spark has ended; the next compaction restarts it.")

        compact(api)
        light_says(browser, "good", "running")
        assert not browser.all(".alerts li")


def light_says(browser: Browser, good: str, words: str) -> None:
    browser.find(f".light.{good}", f"Spark\n{words}")


def compact(api: httpx.Client) -> None:
    for value in ("1", "2"):
        sent = api.post("/v1/topics/users/records", json={"records": [{"key": "alice", "value": value}]})
        assert sent.status_code == 200, sent.text
    done = api.post("/v1/topics/users/compact", json={"seal": True}, timeout=200)
    assert (done.status_code, done.json()["engine"]) == (200, "spark"), done.text


def java(server: Server) -> psutil.Process:
    (found,) = (
        each for each in psutil.Process(server.process.pid).children(recursive=True) if each.name() == "java"
    )
    return found
