"""The dashboard: its pages, which are static files, and the paths that only they use.

A page holds no data: it asks the API for everything and sets it as text. Its policy allows only scripts and styles of
this server, none within the page, and no text to become markup.

A browser can't send a token when it opens a page. So the page at /login takes the token, sends it once like any other
client, and gets a cookie instead, which is not the token and which scripts can't read. The cookie is valid only for
pages of the same origin (guard.py).
"""

from __future__ import annotations

import hashlib
import hmac
import mimetypes
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse

from lastword.admin import models, views
from lastword.admin.context import AdminContext
from lastword.errors import UnavailableError
from lastword.operations.options import decoded, one_key
from lastword.record_json import Json

WEB = Path(__file__).with_name("web")
PAGES = ("/", "/topic", "/records", "/live", "/scene")
LOGIN = "/login"
OPEN_PATHS = (LOGIN, "/web/login.js", "/web/base.css", "/web/icon.svg")
"""Paths that need no token, so that one can be entered. They reveal nothing."""

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
MOST_STATE = 1000
MOST_RECORDS = 500


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str
    tag: str


def cookie_of(token: str) -> tuple[str, str]:
    """Return the name and the value of the cookie for a token.

    A browser sends a host's cookies to all of its ports. The name depends on the token alone, so that servers of one host
    don't replace each other's cookie, unless they have the same token, and so the same cookie.
    """
    digest = hmac.new(token.encode(), b"lastword dashboard", hashlib.sha256).hexdigest()
    return f"lastword_{digest[:8]}", digest[8:]


def add(app: FastAPI, context: AdminContext) -> None:
    """Add the pages and their own paths."""
    overview = views.Overview(context.log)
    _add_files(app, overview)
    _add_login(app)
    _add_views(app, context, overview)


def _add_files(app: FastAPI, overview: views.Overview) -> None:
    files = {
        path.name: _File(
            content := path.read_bytes(),
            mimetypes.guess_type(path.name)[0] or "application/octet-stream",
            f'"{hashlib.sha256(content).hexdigest()[:16]}"',
        )
        for path in sorted(WEB.iterdir())
        if path.is_file()
    }

    def answer(request: Request, name: str) -> Response:
        file = files[name]
        headers = {**HEADERS, "ETag": file.tag}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        kind = "text/javascript" if name.endswith(".js") else file.media_type
        return Response(file.content, media_type=kind, headers=headers)

    async def page(request: Request) -> Response:
        if request.url.path == "/":
            # The page asks for it as soon as its scripts are loaded.
            overview.begin()
        return answer(request, "index.html")

    for path in PAGES:
        app.add_api_route(path, page, methods=["GET"], include_in_schema=False)

    @app.get(LOGIN, include_in_schema=False)
    async def login_page(request: Request) -> Response:
        return answer(request, "login.html")

    @app.get("/favicon.ico", include_in_schema=False)
    async def icon(request: Request) -> Response:
        return answer(request, "icon.svg")

    for each in files:
        if not each.endswith(".html"):

            async def static(request: Request, name: str = each) -> Response:
                return answer(request, name)

            app.add_route(f"/web/{each}", static, methods=["GET"], include_in_schema=False)


def _add_login(app: FastAPI) -> None:
    @app.post(LOGIN, include_in_schema=False)
    async def login(request: Request, _nothing: models.Nothing) -> Response:
        # The guard has let it pass: the token is right, or none is needed.
        token = request.headers.get("authorization", "").partition(" ")[2].strip()
        response = Response(status_code=204)
        if token:
            name, value = cookie_of(token)
            response.set_cookie(
                name, value, httponly=True, samesite="strict", secure=request.url.scheme == "https"
            )
        return response

    @app.post("/logout", include_in_schema=False)
    async def logout(request: Request, _nothing: models.Nothing) -> Response:
        response = Response(status_code=204)
        for name in request.cookies:
            if name.startswith("lastword_"):
                response.delete_cookie(name, httponly=True, samesite="strict")
        return response


def _add_views(app: FastAPI, context: AdminContext, overview: views.Overview) -> None:
    @app.get("/v1/session", tags=["dashboard"])
    async def session(request: Request) -> Json:
        """Tell whether the client is signed in by the login's cookie."""
        return {"by_cookie": any(name.startswith("lastword_") for name in request.cookies)}

    # These two are large and plain: they are sent as they are, without validating each value.
    @app.get("/v1/views/overview", tags=["dashboard"], response_model=Json)
    def all_topics() -> Response:
        """List all topics, one row each: their records and sizes, how dirty they are, what is due and why, problems."""
        return JSONResponse(overview.current())

    @app.get("/v1/views/topics/{topic}", tags=["dashboard"], response_model=Json)
    def one_topic(
        topic: str,
        estimates: Annotated[
            bool, Query(description="Also estimate the garbage of each segment, from the files' footers.")
        ] = False,
    ) -> Response:
        """Show where a topic's records are along its offsets, its readers, and its snapshots."""
        return JSONResponse(views.layout(context.log, topic, estimates=estimates))

    @app.get("/v1/views/topics/{topic}/settings", tags=["dashboard"])
    def settings(topic: str) -> list[Json]:
        """List the settings that a topic can have, each with its value, source, meaning and allowed values."""
        return views.settings(context.log, topic)

    @app.get("/v1/views/topics/{topic}/records", tags=["dashboard"])
    def records(
        topic: str,
        partition: Annotated[int | None, Query(description="Only this partition.")] = None,
        key: Annotated[str | None, Query(description="Only records of this key, as text.")] = None,
        key_base64: Annotated[str | None, Query(description="Only records of this key, in base64.")] = None,
        as_of: Annotated[str | None, Query(description="As of a time or snapshot:ID.")] = None,
        at: Annotated[
            str | None,
            Query(
                description="newest (the default), oldest, up to `offset:N` or `time:T` (ISO 8601, or milliseconds "
                "since 1970), or the `next` (older) or `previous` (newer) of another page."
            ),
        ] = None,
        limit: Annotated[int, Query(alias="max", ge=1, le=MOST_RECORDS)] = 50,
    ) -> Json:
        """Return a page of records over all partitions, newest first. Of `total`, `newer` come before it."""
        wanted = one_key(None if key is None else key.encode(), key_base64)
        # A key is searched for among all keys; the place of everything else is known.
        with nullcontext() if wanted is None else context.searches.turn():
            return views.records(
                context.log, topic, partition=partition, key=wanted, as_of=as_of, at=at, limit=limit
            )

    @app.get("/v1/views/topics/{topic}/state", tags=["dashboard"])
    def state(
        topic: str,
        search: Annotated[str | None, Query(description="Only keys that contain this text.")] = None,
        as_of: Annotated[str | None, Query(description="As of a time or snapshot:ID.")] = None,
        after: Annotated[
            str | None, Query(description="Only keys after this one, as given in `next`.")
        ] = None,
        limit: Annotated[int, Query(alias="max", ge=1, le=MOST_STATE)] = 100,
    ) -> Json:
        """Return a page of the newest record of each key, without deleted keys, ordered by key. A count is null if there
        are too many keys to count.
        """
        behind = None if after is None else decoded(after, "after")
        with context.searches.turn():
            return views.state(context.log, topic, search=search, as_of=as_of, limit=limit, after=behind)

    @app.get("/v1/views/engine", tags=["dashboard"])
    def engine() -> Json:
        """Show the compaction engine in the worker's process, and its state."""
        try:
            found: Json = context.worker.ask("engine", {})
        except UnavailableError as error:
            return {
                "factory": context.log.config.compaction_service_factory,
                "state": "unknown",
                "why": str(error),
            }
        return found
