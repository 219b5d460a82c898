"""With a token nothing is served without it, and pages of other origins can do nothing, with a token or without."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from tests.support.broker import INLINE
from tests.support.browser import browsing

import lastword
from lastword.admin import app as admin_app
from lastword.admin.context import AdminContext, WorkerClient
from lastword.admin.jobs import Jobs
from lastword.admin.pages import OPEN_PATHS, PAGES, WEB
from lastword.admin.scenes import Stories
from lastword.admin.server import AdminServer

TOKEN = "0123456789abcdef-and-more"
HTML = {"Accept": "text/html"}


@contextmanager
def admin(folder: Path, token: str | None) -> Iterator[tuple[str, lastword.Log]]:
    """The admin API over a log, in this process."""
    server, jobs, stories = AdminServer("127.0.0.1", 0, token=token), Jobs(), Stories()
    with lastword.open(folder, config={"compaction.service.factory": INLINE}) as log:
        server.start(
            admin_app.build(
                AdminContext(log, WorkerClient(folder / "no.sock")), jobs, version="0", stories=stories
            )
        )
        try:
            yield f"http://127.0.0.1:{server.address[1]}", log
        finally:
            jobs.close()
            server.close()
            stories.close()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[str]:
    with admin(tmp_path / "data", TOKEN) as (url, _):
        yield url


@contextmanager
def login(url: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=url) as client:
        answer = client.post("/login", json={}, headers={"Authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 204
        yield client


# ------------------------------------------------------------------------------------------------ by HTTP


def test_without_the_token_there_is_the_login_and_nothing_else(guarded: str) -> None:
    with httpx.Client(base_url=guarded) as client:
        for page in PAGES:
            assert client.get(page).status_code == 401
            sent_on = client.get(f"{page}?name=a%26b", headers=HTML)
            assert sent_on.status_code == 303
            assert sent_on.headers["location"].startswith("/login?next=")
        for file in WEB.iterdir():
            expected = 200 if f"/web/{file.name}" in OPEN_PATHS else 401
            assert client.get(f"/web/{file.name}").status_code == expected, file.name
        for path in ("/v1/views/overview", "/metrics", "/docs", "/openapi.json", "/v1/session"):
            assert client.get(path, headers=HTML).status_code == 401
        assert client.post("/login", json={}).status_code == 401
        assert client.post("/logout", json={}).status_code == 401
        assert client.get("/login").status_code == 200


def test_the_cookie_is_not_the_token_and_not_for_scripts(guarded: str) -> None:
    wrong = httpx.post(f"{guarded}/login", json={}, headers={"Authorization": "Bearer no"})
    assert wrong.status_code == 401
    assert "set-cookie" not in wrong.headers
    right = httpx.post(f"{guarded}/login", json={}, headers={"Authorization": f"Bearer {TOKEN}"})
    cookie = right.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert TOKEN not in cookie
    with login(guarded) as client:
        assert client.get("/").status_code == 200
        assert client.get("/v1/session").json() == {"by_cookie": True}
        assert client.post("/v1/topics", json={"name": "a"}).status_code == 201
        client.post("/logout", json={})
        assert client.get("/").status_code == 401


def test_a_request_with_the_cookie_must_come_from_a_page_of_ours(guarded: str) -> None:
    with login(guarded) as client:
        for headers in (
            {"Origin": "http://evil.example.com"},
            {"Origin": "http://127.0.0.1:1"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "same-site"},
            {"Sec-Fetch-Site": "cross-site"},
        ):
            assert client.get("/v1/topics", headers=headers).status_code == 403
            assert client.post("/v1/topics", json={"name": "b"}, headers=headers).status_code == 403
        own = {"Origin": guarded, "Sec-Fetch-Site": "same-origin"}
        assert client.post("/v1/topics", content="{}", headers=own).status_code == 415
        assert client.post("/v1/topics", json={"name": "b"}, headers=own).status_code == 201
        assert client.cookies
    bad = {"Cookie": "lastword_00000000=x; broken"}
    assert httpx.get(f"{guarded}/v1/topics", headers=bad).status_code == 401


def test_every_page_and_file_has_the_policy(tmp_path: Path) -> None:
    with admin(tmp_path / "data", None) as (url, _), httpx.Client(base_url=url) as client:
        for path in (
            *PAGES,
            "/login",
            *(f"/web/{each.name}" for each in WEB.iterdir() if each.suffix != ".html"),
        ):
            answer = client.get(path)
            assert answer.status_code == 200
            policy = answer.headers["content-security-policy"]
            assert "default-src 'self'" in policy
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            again = client.get(path, headers={"If-None-Match": answer.headers["etag"]})
            assert again.status_code == 304
        assert client.get("/web/index.html").status_code == 404
        assert client.get("/web/../app.py").status_code == 404


def test_the_files_name_no_other_host() -> None:
    for file in WEB.iterdir():
        text = file.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text and "https://" not in text, file.name
        assert "innerHTML" not in text and "style=" not in text and "onclick=" not in text, file.name


def test_a_story_that_is_gone_says_so(tmp_path: Path) -> None:
    with admin(tmp_path / "data", None) as (url, _), httpx.Client(base_url=url) as client:
        answer = client.post("/v1/scene/stories/none/advance", json={})
        assert answer.status_code == 404
        assert "begin a new one" in answer.json()["detail"]
        story = client.post("/v1/scene/stories", json={}).json()["id"]
        early = client.post(f"/v1/scene/stories/{story}/clock", json={"forward_ms": -1})
        assert early.status_code == 422


# ------------------------------------------------------------------------------------------------ by browser


EVIL = """
<!doctype html><title>evil</title><form id="f" method="post" enctype="text/plain" target="t"></form><iframe name="t"></iframe>
<script>
const url = location.hash.slice(1);
const body = JSON.stringify({name: "evil"});
const ask = (options) => fetch(url + "/v1/topics", {method: "POST", body, credentials: "include", ...options}).then(r => r.status, e => e.name);
async function attack() {
  const found = [
    await ask({headers: {"Content-Type": "application/json"}}),
    await ask({mode: "no-cors"}),
    await fetch(url + "/v1/topics", {credentials: "include"}).then(r => r.text(), e => e.name),
  ];
  const form = document.getElementById("f");
  form.action = url + "/v1/topics";
  const field = document.createElement("input");
  field.name = '{"name": "evil", "x": "';
  field.value = '"}';
  form.append(field);
  form.submit();
  return found;
}
</script>
"""


@contextmanager
def evil_site() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(EVIL.encode())

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{site.server_address[1]}/"
        site.shutdown()
        thread.join()


def test_people_sign_in_and_other_origins_can_do_nothing(tmp_path: Path) -> None:
    with (
        browsing(tmp_path / "profile") as browser,
        evil_site() as evil,
        admin(tmp_path / "guarded", TOKEN) as (guarded, guarded_log),
        admin(tmp_path / "open", None) as (unguarded, open_log),
    ):
        browser.open(f"{guarded}/records?name=nothing")
        browser.type("#token", "wrong")
        browser.click("button", "Sign in")
        browser.find("#problem", "not the token")
        browser.type("#token", TOKEN)
        browser.click("button", "Sign in")
        browser.find("main", "There is no topic “nothing”")
        assert browser.run("return document.cookie + Object.values(sessionStorage)") == ""

        for url, log in ((guarded, guarded_log), (unguarded, open_log)):
            browser.open(f"{evil}#{url}")
            browser.run("location.reload()")
            browser.wait(lambda: browser.run("return typeof attack") == "function", "the evil page")
            answers = browser.driver.execute_async_script("attack().then(arguments[0])")
            assert answers[0] == "TypeError"
            assert answers[2] == "TypeError"
            assert log.topics() == []

        # A link on a page elsewhere leads to ours all the same, and ours may then ask for what it shows.
        browser.open(evil)
        browser.run("location.assign(arguments[0])", f"{unguarded}/records?name=nothing")
        browser.find("main", "There is no topic “nothing”")

        browser.open(f"{guarded}/")
        browser.click("button", "Sign out")
        browser.find("#token")
        browser.open(f"{guarded}/")
        browser.find("#token")
