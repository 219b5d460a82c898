"""Who may ask the admin API, and how."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from starlette.responses import PlainTextResponse

from lastword.admin import server
from lastword.admin.guard import MAX_BODY_BYTES, Guard
from lastword.admin.server import AdminServer, is_loopback, read_token
from lastword.errors import InvalidConfigError, UnavailableError

TOKEN = "0123456789abcdef"


async def app(scope: Any, receive: Any, send: Any) -> None:
    size = 0
    while (message := await receive()).get("more_body"):
        size += len(message["body"])
    await PlainTextResponse(f"{size + len(message.get('body', b''))}")(scope, receive, send)


def ask(token: str | None, method: str = "GET", path: str = "/v1/topics", **options: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(Guard(app, token=token))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9644") as client:
            return await client.request(method, path, **options)

    return asyncio.run(send())


@pytest.mark.parametrize("host", ["127.0.0.1:9644", "localhost", "LOCALHOST:1", "[::1]:9644", "[::1]"])
def test_names_of_this_machine_pass(host: str) -> None:
    assert ask(None, headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example.com", "127.0.0.1.evil.com", "localhost.evil.com:9644", "10.0.0.1", "", "[::2]"]
)
def test_other_names_do_not(host: str) -> None:
    assert ask(None, headers={"Host": host}).status_code == 421


def test_with_a_token_the_host_does_not_matter_and_the_token_does() -> None:
    right = {"Authorization": f"Bearer {TOKEN}", "Host": "lastword.example.com"}
    assert ask(TOKEN, headers=right).status_code == 200
    for given in (
        "",
        "Bearer",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer \xff",
    ):
        answer = ask(TOKEN, headers=[(b"Authorization", given.encode("latin-1"))])
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
    assert ask(TOKEN, path="/healthz").status_code == 200
    assert ask(TOKEN, path="/metrics").status_code == 401


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_changes_must_say_that_they_are_json(method: str) -> None:
    assert ask(None, method).status_code == 415
    assert ask(None, method, content=b"{}", headers={"Content-Type": "text/plain"}).status_code == 415
    json = {"Content-Type": "application/json; charset=utf-8"}
    assert ask(None, method, content=b"{}", headers=json).text == "2"


def test_pages_of_another_origin_are_refused() -> None:
    assert ask(None, headers={"Origin": "http://127.0.0.1:9644"}).status_code == 200
    for origin in ("http://evil.example.com", "null", "http://127.0.0.1:8000", "https://127.0.0.1:9644"):
        assert ask(None, headers={"Origin": origin}).status_code == 403


CROSS = [{"Sec-Fetch-Site": site} for site in ("cross-site", "same-site", "what-comes-next")]


@pytest.mark.parametrize("site", CROSS)
@pytest.mark.parametrize(
    "fetched",
    [
        {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
        {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"},
        {},
    ],
)
def test_a_page_of_another_site_can_not_even_ask_for_something_to_read(
    site: dict[str, str], fetched: dict[str, str]
) -> None:
    """An <img> sends no Origin, and what it asks for costs the server all the same."""
    for path in ("/v1/views/topics/big/state", "/v1/topics", "/metrics", "/readyz", "/web/app.js"):
        assert ask(None, path=path, headers=site | fetched).status_code == 403
        assert ask(None, "HEAD", path=path, headers=site | fetched).status_code == 403


@pytest.mark.parametrize("site", CROSS)
def test_a_link_elsewhere_may_lead_to_a_page_but_no_frame_may_show_it(site: dict[str, str]) -> None:
    linked = site | {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    for path in ("/", "/records?name=users", "/login", "/docs"):
        assert ask(None, path=path, headers=linked).status_code == 200
        assert ask(None, path=path, headers=linked | {"Sec-Fetch-Dest": "iframe"}).status_code == 403
        assert ask(None, path=path, headers=linked | {"Sec-Fetch-Mode": "no-cors"}).status_code == 403
    json = {"Content-Type": "application/json"}
    assert ask(None, "POST", path="/logout", content=b"{}", headers=linked | json).status_code == 403
    assert ask(None, "POST", path="/login", content=b"{}", headers=linked | json).status_code == 403


def test_our_own_pages_and_an_address_that_is_typed_pass() -> None:
    for site in ("same-origin", "none"):
        assert ask(None, headers={"Sec-Fetch-Site": site}).status_code == 200


def test_a_body_is_bounded_whether_it_says_its_length_or_not() -> None:
    json = {"Content-Type": "application/json"}
    too_much = b" " * (MAX_BODY_BYTES + 1)
    assert ask(None, "POST", content=too_much, headers=json).status_code == 413

    async def chunks() -> Any:
        for _ in range(3):
            yield too_much[: MAX_BODY_BYTES // 2]

    assert ask(None, "POST", content=chunks(), headers=json).status_code == 413


def test_beyond_this_machine_a_token_is_required() -> None:
    assert [is_loopback(each) for each in ("127.0.0.1", "127.9.9.9", "::1", "localhost")] == [True] * 4
    assert [is_loopback(each) for each in ("0.0.0.0", "::", "10.0.0.1", "example.com")] == [False] * 4
    with pytest.raises(InvalidConfigError, match=r"without a token"):
        AdminServer("0.0.0.0", 0, token=None)
    AdminServer("0.0.0.0", 0, token=TOKEN).close()


def test_a_port_that_is_taken_is_named() -> None:
    first = AdminServer("127.0.0.1", 0, token=None)
    with pytest.raises(UnavailableError, match=rf"127\.0\.0\.1:{first.address[1]}: Address already in use"):
        AdminServer("127.0.0.1", first.address[1], token=None)
    first.close()


def test_a_request_that_outlasts_the_server_is_told_that_it_is_stopping(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as the deletion of a topic beside an object store that does not answer."""
    monkeypatch.setattr(server, "STOP_S", 0)
    asked = threading.Event()

    async def wait_forever(scope: Any, receive: Any, send: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    admin = AdminServer("127.0.0.1", 0, token=None)
    admin.start(wait_forever)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(httpx.delete, f"http://127.0.0.1:{admin.address[1]}/v1/topics/users", timeout=60)
        assert asked.wait(60)
        admin.close()
    assert answer.result().status_code == 503
    assert answer.result().json()["error"] == "UnavailableError"
    assert "stopping" in answer.result().json()["detail"]
    assert "Traceback" not in caplog.text


def test_a_token_is_read_from_a_file_and_must_be_long_enough(tmp_path: Any) -> None:
    file = tmp_path / "token"
    with pytest.raises(InvalidConfigError, match=r"can't read"):
        read_token(file)
    file.write_text("short\n")
    with pytest.raises(InvalidConfigError, match=r"has 5 characters; at least 16"):
        read_token(file)
    file.write_text(f"  {TOKEN}\n")
    assert read_token(file) == TOKEN
