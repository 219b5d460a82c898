"""How long the dashboard's pages take to get their data: 1,000 topics; a topic of 200 partitions and 10,000 segments.

The topics are real ones; the 10,000 segments are committed to a real table, but their files are not written, because no
page opens them. Measured are the answers of the admin API over HTTP, the first and later ones, and, where Chromium is
installed, the time from opening a page until its rows or drawings are there and the longest time for which it was busy.

    python -m bench.dashboard [FOLDER]      a folder is kept, and used again
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import httpx

import lastword
from lastword.admin import app as admin_app
from lastword.admin.desk import Desk, WorkerDesk
from lastword.admin.jobs import Jobs
from lastword.admin.server import AdminServer
from lastword.broker.server import Broker
from lastword.log import Log
from lastword.segments.table import Positions, Segment

TOPICS = 1000
PARTITIONS = 200
SEGMENTS = 50
"""A partition."""
INLINE = "lastword.compaction.inline:InlineCompactionServiceFactory"


CONFIG = {"compaction.service.factory": INLINE, "wal.sync": "none"}


def main() -> None:
    logging.getLogger("lastword").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="lastword-bench-") as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        if not (folder / "catalog.db").exists():
            with lastword.open(folder, config=CONFIG) as log:
                fill(log)
        with lastword.open(folder, config=CONFIG) as log, serving(log) as url:
            measure(url)
            browse(url)


def fill(log: Log) -> None:
    began_s = time.monotonic()
    for number in range(TOPICS):
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
    print(f"made {TOPICS + 1} topics in {time.monotonic() - began_s:.0f} s")


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


def measure(url: str) -> None:
    with httpx.Client(base_url=url, timeout=120) as client:
        for name, path in (
            ("all topics", "/v1/views/overview"),
            ("200 partitions, 10,000 segments", "/v1/views/topics/wide"),
        ):
            first, size = timed(lambda asked=path: client.get(asked))
            later = []
            for _ in range(5):
                # A view of all topics is kept for two seconds.
                time.sleep(2.1)
                later.append(timed(lambda asked=path: client.get(asked))[0])
            print(f"{name}: first {first:.2f} s, then {median(later):.2f} s, {size / 1e6:.2f} MB")


def browse(url: str) -> None:
    if shutil.which("chromium") is None or shutil.which("chromedriver") is None:
        print("no Chromium: pages are not opened")
        return
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"):
        options.add_argument(flag)
    options.binary_location = str(shutil.which("chromium"))
    driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _NOTE_LONG_TASKS})
    try:
        for name, path, ready in (
            ("all topics", "/", "document.querySelectorAll('.topics tbody tr').length >= 200"),
            ("the wide topic", "/topic?name=wide", "document.querySelectorAll('svg.strip').length >= 12"),
        ):
            driver.get(url + path)
            while not driver.execute_script(f"return {ready}"):
                time.sleep(0.05)
            shown = driver.execute_script("return performance.now()")
            time.sleep(6)
            busy = driver.execute_script("return Math.max(0, ...window.longTasks)")
            print(
                f"{name}: shown after {shown / 1000:.2f} s, busy for {busy:.0f} ms at the longest, polls included"
            )
        driver.execute_script(
            "[...document.querySelectorAll('button')].find(b => b.textContent.startsWith('Show all')).click()"
        )
        began_s = time.monotonic()
        for step in range(40):
            driver.execute_script("scrollTo(0, arguments[0])", step * 600)
        busy = driver.execute_script("return Math.max(0, ...window.longTasks)")
        print(
            f"all 200 partitions scrolled through in {time.monotonic() - began_s:.2f} s, busy for {busy:.0f} ms at the longest"
        )
    finally:
        driver.quit()


_NOTE_LONG_TASKS = (
    "window.longTasks = []; new PerformanceObserver(list => list.getEntries().forEach(each => "
    "longTasks.push(each.duration))).observe({type: 'longtask', buffered: true})"
)


def timed(act: Callable[[], httpx.Response]) -> tuple[float, int]:
    began_s = time.monotonic()
    answer = act()
    answer.raise_for_status()
    return time.monotonic() - began_s, len(answer.content)


if __name__ == "__main__":
    main()
