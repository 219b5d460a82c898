"""The dashboard and the scene in a real browser, on a real server."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from selenium.webdriver.common.keys import Keys
from tests.support.browser import Browser, browsing, require_browser
from tests.support.server import SETTINGS, Server

SLOW = "seal.interval.ms: 3600000\nworker.initial.delay.ms: 3600000\nworker.interval.ms: 3600000\n"
PAGES = (
    "/",
    "/topic?name={topic}",
    "/records?name={topic}",
    "/records?name={topic}&view=state",
    "/live",
    "/scene",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_browser()
    return tmp_path_factory.mktemp("web")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    started = start(folder, free_port())
    yield started
    if started.process.poll() is None:
        started.stop()
    assert "Traceback" not in started.log, started.log


@pytest.fixture(scope="module")
def browser(folder: Path) -> Iterator[Browser]:
    with browsing(folder / "profile") as opened:
        yield opened


@pytest.fixture(autouse=True)
def wide(browser: Browser) -> None:
    browser.look_like()
    browser.log()


@pytest.fixture
def api(server: Server) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def start(folder: Path, port: int) -> Server:
    return Server(folder / "data", settings=SETTINGS + SLOW, admin=f"127.0.0.1:{port}")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def create(api: httpx.Client, name: str, *records: dict[str, Any], **config: str) -> str:
    made = {"cleanup.policy": "compact"} | {key.replace("_", "."): value for key, value in config.items()}
    assert api.post("/v1/topics", json={"name": name, "config": made}).status_code == 201
    if records:
        sent = api.post(f"/v1/topics/{name}/records", json={"records": list(records)})
        assert sent.status_code == 200, sent.text
    return name


def complaints(browser: Browser) -> list[str]:
    return [each for each in browser.log() if not each.startswith(("INFO", "DEBUG"))]


# ----------------------------------------------------------------------------------------------- the scene


def cells(browser: Browser) -> dict[int, str]:
    return {int(each.get_attribute("data-offset") or -1): each.text for each in browser.all("[data-offset]")}


def state(browser: Browser) -> dict[str, str]:
    keys, values = browser.texts(".state th"), browser.texts(".state td")
    return dict(zip(keys, values, strict=True))


def frame(browser: Browser, index: int) -> None:
    """Go to a frame of the run by the slider."""
    browser.run(
        "const [slider, at] = arguments; slider.value = at; slider.dispatchEvent(new Event('input'))",
        browser.find("input[type=range]"),
        index,
    )


def test_what_is_produced_in_the_scene_is_compacted_step_by_step(browser: Browser, server: Server) -> None:
    browser.look_like(prefers_reduced_motion="reduce")
    browser.open(f"{server.url}/scene")
    browser.find(".segments", "The log is empty")
    for number, (key, value) in enumerate([("dora", "Bonn"), ("emil", "Graz"), ("dora", "Turku")]):
        browser.type("#scene-key", key)
        browser.type("#scene-value", value)
        browser.click("button", "Send")
        browser.find(f'[data-offset="{number}"]', value)
    browser.type("#scene-key", "emil")
    browser.click("button", "Delete key")
    browser.find('[data-offset="3"]', "deleted")
    assert browser.find('[data-offset="3"]').get_attribute("class") == "cell is-tombstone"
    before = state(browser)
    assert before == {"dora": "Turku"}

    browser.click("button", "Run compaction")
    browser.find(".engine .says", "The run has")
    assert set(cells(browser)) == {0, 1, 2, 3}
    assert browser.run("return document.getAnimations().length") == 0, "no motion was asked for"
    browser.find("body").send_keys(Keys.ARROW_RIGHT)
    browser.find(".engine .says", "is sealed: it becomes a segment")
    browser.click("[aria-label='One step forward']")
    browser.find(".function.at-work code.lit", "seen = set()")
    browser.click("[aria-label='One step forward']")
    browser.find(".engine .says", "Offset 3 wins its key")
    browser.find('.current[data-offset="3"]', "wins")
    browser.click("[aria-label='One step back']")
    assert "wins" not in cells(browser)[3]

    last = int(browser.find("input[type=range]").get_attribute("max") or 0)
    marks = {}
    for index in range(last + 1):
        frame(browser, index)
        if browser.find(".engine .phase").text == "Decide":
            marks = cells(browser)
    assert {offset for offset, text in marks.items() if "goes" in text} == {0, 1}
    assert {offset for offset, text in marks.items() if "stays" in text} == {2, 3}
    assert set(cells(browser)) == {2, 3}
    assert state(browser) == before
    browser.find(".state", "The same as before the run")
    frame(browser, -1)
    assert set(cells(browser)) == {0, 1, 2, 3}, "back at the start"
    assert complaints(browser) == []


def test_the_story_is_told_to_its_end(browser: Browser, server: Server) -> None:
    browser.look_like(prefers_reduced_motion="reduce")
    browser.open(f"{server.url}/scene")
    steps = len(browser.wait(lambda: browser.all(".steps li"), "steps"))
    for number in range(1, steps + 1):
        browser.click("button.next")
        browser.wait(lambda told=number: len(browser.all(".steps .told")) == told, f"step {number}")
        if browser.all(".player:not([hidden])"):
            browser.click("[aria-label='To the end']")
    browser.find(".state", "The same as before the run")
    assert state(browser) == {"bob": "Milan", "alice": "Paris"}
    assert set(cells(browser)) == {4, 5}
    browser.find(".clock", "1 h ahead")


def test_any_small_topic_can_be_watched_and_is_really_compacted(
    browser: Browser, server: Server, api: httpx.Client
) -> None:
    topic = create(api, "watched", *({"key": key, "value": "1"} for key in "aab"))
    browser.open(f"{server.url}/scene?topic={topic}")
    browser.find('[data-offset="2"]')
    browser.wait(
        lambda: browser.run("return document.querySelector('.source select').value") == f"0/{topic}",
        "its name",
    )
    browser.click("button", "Run compaction")
    browser.click("[aria-label='To the end']")
    browser.wait(lambda: set(cells(browser)) == {1, 2}, "only the last words")
    found = api.get(f"/v1/topics/{topic}/records").json()["records"]
    assert [each["offset"] for each in found] == [1, 2]


# ----------------------------------------------------------------------------------------- the topic's page


def test_a_topic_is_compacted_from_its_page(browser: Browser, server: Server, api: httpx.Client) -> None:
    records = ({"key": f"k{number % 50}", "value": "v" * 50} for number in range(5000))
    topic = create(api, "many", *records, compaction_at_seal="false")
    api.post(f"/v1/topics/{topic}/seal", json={})
    browser.open(f"{server.url}/")
    browser.click("a", topic)
    browser.find("svg.strip[aria-label*='1 sealed segment, 1 of them dirty']")
    browser.find("section", "would remove about 4,950 records of the 5,000")
    browser.click("[data-act='Dry run']")
    browser.find(".job", "Nothing was changed")
    # The bar may come and go faster than anybody can look: it is noted when it appears.
    browser.run(
        "window.bars = []; new MutationObserver(() => document.querySelector('.job progress') && bars.push(1))"
        ".observe(document.querySelector('.job'), {childList: true, subtree: true})"
    )
    browser.click("[data-act='Compact']")
    browser.find(".job", "5,000 → 50 records")
    assert browser.run("return bars.length") > 0
    browser.find("table", "Compacted")
    browser.wait(lambda: browser.all("svg .segment.clean"), "a clean segment")
    assert api.get(f"/v1/views/topics/{topic}").json()["records"] == 50
    browser.run("document.querySelector('svg.strip').focus()")
    browser.find("svg.strip").send_keys(Keys.ARROW_RIGHT)
    browser.find(".partition .says", "clean · 50 records")
    assert complaints(browser) == []


def test_a_snapshot_shows_the_past(browser: Browser, server: Server, api: httpx.Client) -> None:
    topic = create(api, "past", {"key": "a", "value": "old"})
    api.post(f"/v1/topics/{topic}/seal", json={})
    api.post(f"/v1/topics/{topic}/records", json={"records": [{"key": "a", "value": "new"}]})
    browser.open(f"{server.url}/topic?name={topic}")
    row = browser.find("tbody tr", "Sealed")
    row.find_element("link text", "state").click()
    browser.find(".records", "old")
    assert "new" not in browser.find(".records").text
    browser.click("a", "as it is now")
    browser.find(".records", "new")


def test_a_setting_is_changed_and_a_bad_value_refused_in_the_servers_words(
    browser: Browser, server: Server, api: httpx.Client
) -> None:
    topic = create(api, "tuned")
    browser.open(f"{server.url}/topic?name={topic}")
    row = "[data-key='min.cleanable.dirty.ratio']"
    browser.click(f"{row} button", "Change")
    browser.type(f"{row} input", "lots")
    browser.click(f"{row} button", "Save")
    said = browser.find(f"{row} .problem").text
    answer = api.patch(f"/v1/topics/{topic}", json={"set": {"min.cleanable.dirty.ratio": "lots"}})
    assert said == answer.json()["detail"]
    assert "'lots'; allowed: " in said
    browser.type(f"{row} input", "0.25")
    browser.click(f"{row} button", "Save")
    browser.find(row, "this topic's own")
    settings = {each["key"]: each for each in api.get(f"/v1/topics/{topic}/config").json()}
    assert (
        settings["min.cleanable.dirty.ratio"]["value"],
        settings["min.cleanable.dirty.ratio"]["source"],
    ) == (
        "0.25",
        "topic",
    )
    browser.click(f"{row} button", "Change")
    browser.click(f"{row} button", "Inherit")
    browser.find(row, "default")


# ------------------------------------------------------------------------------------------------- records


def values(browser: Browser) -> list[str]:
    return browser.texts(".records .value code")


def test_records_of_all_partitions_are_paged_through_the_newest_first(
    browser: Browser, server: Server, api: httpx.Client
) -> None:
    config = {"cleanup.policy": "compact", "compaction.at.seal": "false"}
    api.post("/v1/topics", json={"name": "paged", "partitions": 3, "config": config})
    sent = [
        {
            "key": f"k{number % 9}",
            "value": f"v{number}",
            "timestamp": 1_700_000_000_000 + number,
            "partition": number % 3,
        }
        for number in range(120)
    ]
    api.post("/v1/topics/paged/records", json={"records": sent[:70]})
    api.post("/v1/topics/paged/seal", json={})
    api.post("/v1/topics/paged/records", json={"records": sent[70:]})
    newest = [each["value"] for each in reversed(sent)]

    browser.open(f"{server.url}/records?name=paged")
    browser.find(".count", "Records 1 to 50 of 120, newest first.")
    assert values(browser) == newest[:50]
    browser.find(".record .verdict", "stays")
    browser.click(".pages a", "Older")
    browser.find(".count", "Records 51 to 100 of 120")
    assert values(browser) == newest[50:100]
    browser.click(".pages a", "Older")
    browser.find(".count", "Records 101 to 120 of 120")
    assert values(browser) == newest[100:]
    assert "Older" not in browser.find(".pages").text
    browser.click(".pages a", "Newer")
    browser.find(".count", "Records 51 to 100 of 120")
    assert values(browser) == newest[50:100]
    browser.click(".pages a", "Oldest")
    browser.find(".count", "Records 71 to 120 of 120")
    assert values(browser) == newest[70:]
    browser.open(f"{server.url}/records?name=paged&partition=1")
    browser.find(".count", "40 records, newest first.")
    assert values(browser) == newest[1::3]
    assert complaints(browser) == []


def test_the_last_word_of_a_key_with_many_records_comes_first(
    browser: Browser, server: Server, api: httpx.Client
) -> None:
    topic = create(api, "busy", *({"key": "busy", "value": f"v{number}"} for number in range(430)))
    api.post(f"/v1/topics/{topic}/records", json={"records": [{"key": "other", "value": "x"}]})
    browser.open(f"{server.url}/records?name={topic}")
    browser.run(
        "arguments[0].value = 'key'; arguments[0].dispatchEvent(new Event('change'))",
        browser.find('select[aria-label="Begin at"]'),
    )
    browser.type('input[aria-label="Key"]', "busy")
    browser.click("button", "Show")
    browser.find(".count", "Records 1 to 50 of 430 of this key, newest first.")
    assert values(browser)[:2] == ["v429", "v428"]
    browser.find(".record:first-child .verdict", "stays")
    browser.find(".record:nth-child(2) .verdict", "goes")
    browser.click(".pages a", "Older")
    browser.find(".count", "Records 51 to 100 of 430 of this key")
    assert values(browser)[0] == "v379"


def test_large_records_make_short_pages_and_none_is_hidden(
    browser: Browser, server: Server, api: httpx.Client
) -> None:
    topic = create(
        api, "bulky", *({"key": f"k{number}", "value": f"{number} {'x' * 400_000}"} for number in range(13))
    )
    for view in ("", "&view=state"):
        browser.open(f"{server.url}/records?name={topic}{view}")
        browser.find(".count", "13 keys; 11 of them on this page" if view else "Records 1 to 11 of 13")
        assert len(browser.all(".record")) == 11
        browser.click(".pages a", "Next page" if view else "Older")
        browser.find(".count", "13 keys; 2 of them on this page" if view else "Records 12 to 13 of 13")
        assert len(browser.all(".record")) == 2
    assert complaints(browser) == []


# --------------------------------------------------------------------------------------------- what is hostile

HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\">",
    "<script>document.title='owned'</script>",
    "\"'`${1}</pre></td><b>bold</b>",
    "javascript:alert(1)",
    "nul\x00 escape\x1b[31m bell\x07",
    "right to left \u202e gnirts \u2066 zero\u200bwidth",
    "{{constructor.constructor('alert(1)')()}}",
)


def test_hostile_keys_values_and_headers_are_shown_as_what_they_are(
    browser: Browser, server: Server, api: httpx.Client
) -> None:
    topic = create(api, "hostile", max_message_bytes="4000000")
    records: list[dict[str, Any]] = [
        {"key": text, "value": text, "headers": {text.replace("\x00", ""): text}} for text in HOSTILE
    ]
    records += [
        {
            "key_base64": base64.b64encode(b"\xff\x00\xfe").decode(),
            "value_base64": base64.b64encode(b"\x80" * 9).decode(),
        },
        {"value": "it has no key"},
        {"key": "gone", "value": None},
        {"key": "large", "value": "<b>" + "x" * 1_000_000},
        {"key": "json", "value": json.dumps({"</script>": "<i>", "n": 1}) + " " * 700},
    ]
    sent = api.post(f"/v1/topics/{topic}/records", json={"records": records})
    assert sent.status_code == 200, sent.text
    pages = [
        f"/records?name={topic}",
        f"/records?name={topic}&view=state",
        f"/scene?topic={topic}",
        f"/topic?name={topic}",
    ]
    for page in pages:
        browser.open(server.url + page)
        browser.find("main h1")
        if "records" in page:
            browser.find(".records", HOSTILE[0])
            browser.find(".records", HOSTILE[1])
            browser.find(".records", "nul␀ escape␛[31m bell␇")
            browser.find(".records", "\\u202e")
            for each in browser.all("details summary"):
                each.click()
        elif "scene" in page:
            browser.find("[data-offset]", "<script>doc")
        foreign = (
            "return document.querySelectorAll('main img, main b.bold, main i:not(.soft), main script').length"
        )
        assert browser.run(foreign) == 0
        assert (
            browser.run(
                "return [...document.querySelectorAll('main b')].filter(b => b.textContent === 'bold').length"
            )
            == 0
        )
        assert browser.run("return document.title") not in ("owned", "")
        assert complaints(browser) == []
    browser.open(f"{server.url}/records?name={topic}")
    browser.find(".no-key")
    browser.find(".tombstone", "tombstone")
    browser.find(".record .tag", "hex")
    browser.find(".records", "ff 00 fe")


def test_the_policy_stops_a_script_that_gets_into_the_page_anyhow(browser: Browser, server: Server) -> None:
    browser.open(f"{server.url}/")
    browser.find("h1")
    attempts = (
        "document.body.innerHTML = '<b>x</b>'",
        "document.createElement('img').setAttribute('onerror', 'alert(1)')",
        "document.createElement('script').textContent = 'alert(1)'",
    )
    for each in attempts:
        tried = browser.run(f"try {{ {each}; return 'done' }} catch (error) {{ return error.name }}")
        assert tried == "TypeError", each
    elsewhere = (
        "const done = arguments[0]; fetch('http://127.0.0.1:1/').then(() => done('done'), e => done(e.name))"
    )
    assert browser.driver.execute_async_script(elsewhere) == "TypeError"
    assert any("Content Security Policy" in each for each in browser.log())


# ------------------------------------------------------------------------------------- for everybody, everywhere


def unnamed(browser: Browser) -> list[str]:
    """What can be used, but has no name that a screen reader could say."""
    usable = browser.all("button, input, select, a, [role=img], summary")
    nameless = [each for each in usable if each.is_displayed() and not each.accessible_name.strip()]
    return [each.get_attribute("outerHTML") or "" for each in nameless]


def test_every_page_fits_a_phone_and_names_what_can_be_used(
    browser: Browser, server: Server, api: httpx.Client
) -> None:
    topic = create(api, "everywhere", {"key": "a", "value": "1" * 100}, {"key": "a", "value": None})
    for width in (1280, 360):
        browser.look_like(width=width, height=740, prefers_color_scheme="dark" if width == 360 else "light")
        for page in PAGES:
            browser.open(server.url + page.format(topic=topic))
            browser.find("h1")
            browser.wait(lambda: len(browser.find("main").text) > 40, "content")
            overflow = browser.run("return document.documentElement.scrollWidth - innerWidth")
            assert overflow <= 0, (page, width)
            assert browser.wait(lambda: [unnamed(browser)], "names") == [[]], (page, width)
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert max(int(each) for each in paper.removeprefix("rgb(").removesuffix(")").split(",")) < 60, (
        "it is dark"
    )


def test_live_shows_what_is_produced(browser: Browser, server: Server, api: httpx.Client) -> None:
    topic = create(api, "lively")
    browser.open(f"{server.url}/live")
    browser.find(".chart-card", "Records produced")

    def rate() -> bool:
        api.post(f"/v1/topics/{topic}/records", json={"records": [{"key": "a", "value": "1"}] * 50})
        shown = browser.find(".chart-card", "Records produced").find_element("css selector", "b").text
        return shown not in ("–", "0/s")

    browser.wait(rate, "a rate")


# -------------------------------------------------------------------------------------- the server goes away


def test_a_page_survives_the_server_being_stopped_and_started_again(
    browser: Browser, server: Server, folder: Path
) -> None:
    browser.open(f"{server.url}/")
    browser.find("table", "everywhere")
    assert server.stop() == 0
    browser.find("#banner", "does not answer")
    browser.find("table", "everywhere")
    again = start(folder, int(server.url.rpartition(":")[2]))
    try:
        browser.wait(lambda: not browser.find_now("#banner"), "the banner to go")
        with again.client() as api:
            create(api, "afterwards")
        browser.find("table", "afterwards")
    finally:
        again.stop()
