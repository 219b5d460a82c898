"""How long the dashboard's pages take: 1,000 topics; a topic of 200 partitions and 10,000 segments.

    python -m bench.dashboard [--quick] [--rounds N] [--json PATH] [--keep FOLDER]

The topics are real ones; the 10,000 segments are committed to a real table, but their files are not written, because no
page opens them. Measured are the answers of the admin API over HTTP, the first and later ones, and, where Chromium is
installed, each time in a new browser with an empty profile: from opening a page until its rows or drawings are there,
and the longest time for which it was busy, its polls included.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

import lastword
from bench.support import Results, console, median
from lastword.admin import app as admin_app
from lastword.admin.context import Desk, WorkerDesk
from lastword.admin.jobs import Jobs
from lastword.admin.server import AdminServer
from lastword.broker.server import Broker
from lastword.log import Log
from lastword.segments.model import Positions, Segment

TOPICS = 1000
PARTITIONS = 200
SEGMENTS = 50
"""A partition."""
INLINE = "lastword.compaction.inline:InlineCompactionServiceFactory"


CONFIG = {"compaction.service.factory": INLINE, "wal.sync": "none"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the topics")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="a folder that is kept, and used again")
    args = parser.parse_args()
    logging.getLogger("lastword").setLevel(logging.ERROR)
    topics = TOPICS // (10 if args.quick else 1)
    results = Results("dashboard")
    with tempfile.TemporaryDirectory(prefix="lastword-bench-") as temporary:
        folder = args.keep or Path(temporary)
        if not (folder / "catalog.db").exists():
            with lastword.open(folder, config=CONFIG) as log:
                fill(log, topics)
        with lastword.open(folder, config=CONFIG) as log, serving(log) as url:
            measure(url, results)
            browse(url, args.rounds, results)
    results.show(
        f"{topics:,} topics, and one of {PARTITIONS} partitions and {PARTITIONS * SEGMENTS:,} segments"
    )
    results.save(args.json)


def fill(log: Log, topics: int) -> None:
    began_s = time.monotonic()
    for number in range(topics):
        topic = log.create_topic(f"topic-{number:04}", config={"cleanup.policy": "compact"})
        topic.append(f"key-{number}", "value")
    wide = log.create_topic("wide", partitions=PARTITIONS, config={"cleanup.policy": "compact"})
    base = wide.table.snapshot()
    segments = [
        segment(wide.table.location, partition, index)
        for partition in range(PARTITIONS)
        for index in range(SEGMENTS)
    ]
    ends = {
        each: Positions(first_dirty=500 * (SEGMENTS // 2), sealed_end=500 * SEGMENTS)
        for each in range(PARTITIONS)
    }
    wide.table.append(base, segments, ends, operation="seal", details={"segments": str(len(segments))})
    console.print(f"made {topics + 1} topics in {time.monotonic() - began_s:.0f} s", style="dim")


def segment(location: str, partition: int, index: int) -> Segment:
    return Segment(
        path=f"{location}/data/bench-{partition}-{index}.parquet",
        partition=partition,
        first_offset=index * 500,
        last_offset=index * 500 + 499,
        records=500,
        size_bytes=40_000,
        min_timestamp_ms=1_700_000_000_000,
        max_timestamp_ms=1_700_000_100_000,
        null_keys=0,
        null_values=0,
    )


@contextmanager
def serving(log: Log) -> Iterator[str]:
    """The admin API on a log whose topics a broker has opened, as in a server."""

    async def open_topics() -> None:
        broker = Broker(log, host="127.0.0.1", port=0)
        await broker.start()
        await broker.stop()

    asyncio.run(open_topics())
    server, jobs = AdminServer("127.0.0.1", 0, token=None), Jobs()
    server.start(admin_app.build(Desk(log, WorkerDesk(Path("no.sock"))), jobs, version="bench"))
    try:
        yield f"http://127.0.0.1:{server.address[1]}"
    finally:
        jobs.close()
        server.close()


def measure(url: str, results: Results) -> None:
    with httpx.Client(base_url=url, timeout=120) as client:
        for name, path in (("all topics", "/v1/views/overview"), ("the wide topic", "/v1/views/topics/wide")):
            first, size = timed(lambda asked=path: client.get(asked))
            later = []
            for _ in range(5):
                # A view of all topics is kept for two seconds.
                time.sleep(2.1)
                later.append(timed(lambda asked=path: client.get(asked))[0])
            results.add(
                what=f"answer: {name}",
                first_s=first,
                seconds=median(later),
                most_s=max(later),
                busy_ms=0,
                bytes=size,
            )


def browse(url: str, rounds: int, results: Results) -> None:
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        console.print("no Chromium: pages are not opened")
        return
    for name, path, selector, least in (
        ("all topics", "/", ".topics tbody tr", 90),
        ("the wide topic", "/topic?name=wide", "svg.strip", 12),
    ):
        shown, busy = [], []
        for _ in range(rounds):
            with chromium(_WATCH % {"selector": selector, "least": least}) as driver:
                driver.get(url + path)
                while not driver.execute_script("return window.shownMs"):
                    time.sleep(0.05)
                shown.append(driver.execute_script("return window.shownMs") / 1000)
                # A poll or two.
                time.sleep(6)
                busy.append(driver.execute_script("return Math.max(0, ...window.longTasks)"))
                if path != "/":
                    scrolled_s, while_scrolling = scroll(driver)
        results.add(
            what=f"page: {name}",
            first_s=shown[0],
            seconds=median(shown),
            most_s=max(shown),
            busy_ms=round(max(busy)),
            bytes=0,
        )
    results.add(
        what="scrolling through all partitions",
        first_s=scrolled_s,
        seconds=scrolled_s,
        most_s=scrolled_s,
        busy_ms=round(while_scrolling),
        bytes=0,
    )


def scroll(driver: Any) -> tuple[float, float]:
    """How long it takes to go through all partitions of the wide topic, and for how long the page was busy at most."""
    driver.execute_script(
        "window.longTasks.length = 0;"
        "[...document.querySelectorAll('button')].find(b => b.textContent.startsWith('Show all')).click()"
    )
    began_s = time.monotonic()
    for step in range(40):
        driver.execute_script("scrollTo(0, arguments[0])", step * 600)
    return time.monotonic() - began_s, driver.execute_script("return Math.max(0, ...window.longTasks)")


@contextmanager
def chromium(script: str) -> Iterator[Any]:
    """A new browser that runs a script in every page before the page's own."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"):
        options.add_argument(flag)
    options.binary_location = str(shutil.which("chromium"))
    driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})
    try:
        yield driver
    finally:
        driver.quit()


_WATCH = """
window.longTasks = [];
new PerformanceObserver(list => list.getEntries().forEach(each => longTasks.push(each.duration)))
  .observe({type: 'longtask', buffered: true});
const look = () => {
  if (document.querySelectorAll('%(selector)s').length >= %(least)d) window.shownMs = performance.now();
  else requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""


def timed(act: Callable[[], httpx.Response]) -> tuple[float, int]:
    began_s = time.monotonic()
    answer = act()
    answer.raise_for_status()
    return time.monotonic() - began_s, len(answer.content)


if __name__ == "__main__":
    main()
