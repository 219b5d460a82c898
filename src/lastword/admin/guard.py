"""Access control. It runs before the app, so the app never sees a refused request.

If only this machine is served, no token is needed, but a browser runs on this machine too. A web page must not reach the
API under its own name (DNS rebinding), change anything, or start an expensive search. So the Host must be one of
this machine's names. Every request from a page of another origin is refused, even for an image, except a
link to one of our pages. A request that changes something must be JSON, which a page can't send to another origin without
a preflight request. With a token none of that is needed, because a page does not know the token.

Instead of the token a browser may have the cookie that it got from the login (pages.py). A browser sends it automatically,
so a request with the cookie must come from a page of the same origin. Other ports of this machine are other origins.
"""

from __future__ import annotations

import asyncio
import hmac
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lastword import metrics
from lastword.admin import pages
from lastword.admin.problems import problem

MAX_BODY_BYTES = 64 << 20

_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
_OPEN_PATHS = ("/healthz",)
"""Paths that need no token, for monitors of the process. They reveal nothing."""
_READING = ("GET", "HEAD")
_LINKED_PATHS = (*pages.PAGES, pages.LOGIN, "/docs")
"""Pages that any other page may link to: they hold no data."""


class _TooLargeError(BaseException):
    """The body has more than MAX_BODY_BYTES. Not an Exception, so that the app does not handle it."""


class Guard:
    """Lets requests pass, or answers with the problem."""

    def __init__(self, app: ASGIApp, *, token: str | None) -> None:
        self._app = app
        self._token = None if token is None else token.encode()
        self._cookie = ("", "") if token is None else pages.cookie_of(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope["method"], scope["path"], headers)
        if refusal is not None:
            status, why = refusal
            response = problem(status, "InvalidError", why)
            if status == HTTPStatus.UNAUTHORIZED and _is_navigation(scope, headers):
                there = quote(scope["path"] + "?" + scope["query_string"].decode("latin-1"), safe="")
                response.status_code = HTTPStatus.SEE_OTHER
                response.headers["Location"] = f"{pages.LOGIN}?next={there}"
            if status == HTTPStatus.UNAUTHORIZED:
                response.headers["WWW-Authenticate"] = "Bearer"
            metrics.ADMIN_REQUESTS.labels(str(int(status))).inc()
            await response(scope, receive, send)
            return
        await self._bounded(scope, receive, send)

    async def _bounded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the app answer. If the body is too large, answer with that error instead."""
        received = 0
        has_begun = False

        async def bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > MAX_BODY_BYTES:
                raise _TooLargeError
            return message

        async def counted(message: Message) -> None:
            nonlocal has_begun
            if received > MAX_BODY_BYTES:
                raise _TooLargeError
            if message["type"] == "http.response.start":
                has_begun = True
                metrics.ADMIN_REQUESTS.labels(str(message["status"])).inc()
            await send(message)

        try:
            await self._app(scope, bounded, counted)
        except _TooLargeError:
            metrics.ADMIN_REQUESTS.labels("413").inc()
            answer = problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "InvalidError", _TOO_LARGE)
            await answer(scope, receive, send)
        except asyncio.CancelledError:
            # The server is stopping, and its shutdown timeout is over.
            if has_begun:
                raise
            metrics.ADMIN_REQUESTS.labels("503").inc()
            answer = problem(HTTPStatus.SERVICE_UNAVAILABLE, "UnavailableError", _STOPPING)
            await answer(scope, receive, send)

    def _refusal(self, method: str, path: str, headers: Headers) -> tuple[HTTPStatus, str] | None:
        if self._token is not None:
            given = headers.get("authorization", "")
            scheme, _, token = given.partition(" ")
            is_right = hmac.compare_digest(token.strip().encode(), self._token)
            is_open = path in _OPEN_PATHS or (path in pages.OPEN_PATHS and method in _READING)
            if not given and self._has_cookie(headers):
                if (why := _foreign(method, path, headers)) is not None:
                    return HTTPStatus.FORBIDDEN, why
            elif not is_open and (scheme.lower() != "bearer" or not is_right):
                return HTTPStatus.UNAUTHORIZED, (
                    "a token is required: send it as `Authorization: Bearer TOKEN`; admin.token.file names its file"
                )
        else:
            host = _without_port(headers.get("host", ""))
            if host not in _LOCAL_NAMES:
                return HTTPStatus.MISDIRECTED_REQUEST, (
                    f"the Host is {host!r}; allowed: {', '.join(_LOCAL_NAMES)}, because only this machine is served"
                )
            origin = headers.get("origin")
            if origin is not None and origin.removeprefix("http://") != headers.get("host"):
                return HTTPStatus.FORBIDDEN, f"the request comes from a page of another origin: {origin}"
            if (why := _foreign(method, path, headers)) is not None:
                return HTTPStatus.FORBIDDEN, why
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > MAX_BODY_BYTES:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, _TOO_LARGE
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if method in ("POST", "PUT", "PATCH") and content_type != "application/json":
            return HTTPStatus.UNSUPPORTED_MEDIA_TYPE, (
                f"the Content-Type is {content_type or 'not given'}; allowed: application/json"
            )
        return None

    def _has_cookie(self, headers: Headers) -> bool:
        try:
            cookies = SimpleCookie(headers.get("cookie", ""))
        except CookieError:
            return False
        name, value = self._cookie
        return name in cookies and hmac.compare_digest(cookies[name].value.encode(), value.encode())


def _foreign(method: str, path: str, headers: Headers) -> str | None:
    """Return why a browser's request comes neither from one of our pages nor from a link to one."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host"):
        return f"the request comes from a page of another origin: {origin}"
    site = headers.get("sec-fetch-site", "none")
    if site not in ("same-origin", "none") and not _follows_a_link(method, path, headers):
        return f"the request comes from a page of another origin: Sec-Fetch-Site is {site}"
    return None


def _follows_a_link(method: str, path: str, headers: Headers) -> bool:
    """Return whether a link on another page opens one of our pages, in a window and not in a frame."""
    fetched = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest"))
    return method in _READING and path in _LINKED_PATHS and fetched == ("navigate", "document")


def _is_navigation(scope: Scope, headers: Headers) -> bool:
    """Return whether a browser opens one of our pages."""
    return (
        scope["method"] == "GET"
        and scope["path"] in pages.PAGES
        and "authorization" not in headers
        and "text/html" in headers.get("accept", "")
    )


_STOPPING = "the server is stopping and could not wait for the request, which may still be carried out"
_TOO_LARGE = f"the body is larger than {MAX_BODY_BYTES} bytes; use a Kafka client for more data"


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).lower()
