"""The paths of the admin API. Handlers without `async` run on the admin's threads; none touches the broker's loop."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import nullcontext
from typing import Annotated, Any, cast

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse

from lastword.admin import exposition, health, models, pages, problems, scenes
from lastword.admin.context import AdminContext
from lastword.admin.groups import CoordinatedGroups
from lastword.admin.jobs import EVENTS, Jobs
from lastword.admin.page import page
from lastword.broker.groups.replay import GROUPS_TOPIC
from lastword.broker.server import Broker
from lastword.errors import UnavailableError
from lastword.folder import running
from lastword.operations import records, wal
from lastword.operations.connectors import summary
from lastword.operations.options import decoded
from lastword.operations.table import (
    CREATE_TOPIC,
    DELETE_GROUP,
    DESCRIBE_GROUP,
    LIST_GROUPS,
    OPERATIONS,
    SKIP_DAMAGE,
    Operation,
)
from lastword.record_json import Json

AskBroker = Callable[[], tuple[Broker | None, asyncio.AbstractEventLoop | None]]
AskGroups = Callable[[Callable[[CoordinatedGroups], Any]], Any]
"""Calls the coordinator on the broker's loop, and waits for its answer."""

MAX_BYTES = 16 << 20
GROUPS_S = 10.0
CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {
        "model": models.Problem,
        "description": "What is wrong, and what is allowed.",
        "content": {problems.MEDIA_TYPE: {}},
    }
}
_JOB: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The report. With `Accept: text/event-stream`: `progress` events, then one `result` or "
        "`problem`.",
        "content": {"application/json": {}, EVENTS: {}},
    }
}


def build(
    context: AdminContext,
    jobs: Jobs,
    *,
    version: str,
    broker: AskBroker = lambda: (None, None),
    groups: Callable[[], CoordinatedGroups | None] = lambda: None,
    stories: scenes.Stories | None = None,
    sources_problem: Callable[[], str | None] = lambda: None,
) -> FastAPI:
    """Build the app. `broker`, `groups` and `sources_problem` are called at each request."""
    app = FastAPI(
        title="Lastword",
        summary="The admin API of a Lastword server: everything that the command line does.",
        version=version,
        responses=_ERRORS,
        docs_url=None,
        redoc_url=None,
    )

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(page(app.openapi()), headers={"Content-Security-Policy": CONTENT_POLICY})

    problems.install(app)
    ask_groups = _group_asker(broker, groups)
    _add_operations(app, context, jobs, ask_groups)
    _add_records(app, context)
    _add_health(app, context, broker, sources_problem, ask_groups)
    pages.add(app, context)
    scenes.add(app, context, jobs, stories or scenes.Stories())
    return app


_TAGS = {
    "wal": "WAL",
    "config": "settings",
    "records": "records",
    "explain": "records",
    "groups": "groups",
    "connectors": "connectors",
}
"""The tags of operations, by a part of their paths."""


def _add_operations(app: FastAPI, context: AdminContext, jobs: Jobs, ask: AskGroups) -> None:
    """Add the paths of the operations in the table."""
    coordinated = _coordinated(context, ask)
    for operation in OPERATIONS.values():
        in_worker = operation.process == "worker"
        others = "maintenance" if in_worker else "topics"
        app.add_api_route(
            operation.path,
            _endpoint(operation, context, jobs, coordinated.get(operation.name)),
            methods=[operation.verb],
            tags=[next((_TAGS[part] for part in operation.path.split("/") if part in _TAGS), others)],
            name=operation.name,
            description=inspect.getdoc(operation.function),
            status_code=201 if operation is CREATE_TOPIC else 200,
            responses=_JOB if in_worker else None,
            response_model=operation.answer,
        )


def _coordinated(context: AdminContext, ask: AskGroups) -> dict[str, Callable[..., Any]]:
    """Return the functions of the operations that need the coordinator."""

    def skip_damage(name: str) -> Json:
        if name != GROUPS_TOPIC:
            return wal.skip_lost_ranges(context.log, name)
        # The coordinator knows everything, including what can't be read any more.
        ask(lambda groups: groups.write_again())
        skipped = wal.skip_lost_ranges(context.log, name)
        ask(lambda groups: groups.repaired())
        return skipped

    return {
        SKIP_DAMAGE.name: skip_damage,
        LIST_GROUPS.name: lambda: ask(lambda groups: groups.list_groups()),
        DESCRIBE_GROUP.name: lambda group: ask(lambda groups: groups.describe_group(group)),
        DELETE_GROUP.name: lambda group: ask(lambda groups: groups.delete_group(group)),
    }


def _endpoint(
    operation: Operation[Any, Any],
    context: AdminContext,
    jobs: Jobs,
    coordinated: Callable[..., Any] | None,
) -> Callable[..., Any]:
    """Make a handler with the parameters of one operation: those in its path, and the body or the query."""
    log = context.log

    def on_log(**asked: Any) -> Any:
        # Not earlier: clients may change the broker's settings.
        target = {"folder": log.path, "settings": log.config}.get(operation.role, log)
        return operation.function(target, **asked)

    function = coordinated or on_log

    def arguments(given: dict[str, Any]) -> dict[str, Any]:
        more: models.Request | None = given.pop("more", None)
        return operation.heard({**given, **({} if more is None else more.said())})

    def answer(**given: Any) -> Any:
        return function(**arguments(given))

    async def answer_with_progress(request: Request, **given: Any) -> Response:
        asked = operation.request(**arguments(given))
        return await jobs.answer(request, context.worker.job(operation.name, **asked))

    in_worker = operation.process == "worker"
    endpoint: Any = answer_with_progress if in_worker else answer
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("request", kind, annotation=Request)] if in_worker else []
    parameters += [inspect.Parameter(name, kind, annotation=str) for name in operation.in_path]
    model = models.REQUESTS.get(operation.name)
    if operation.verb in ("POST", "PATCH"):
        parameters.append(inspect.Parameter("more", kind, annotation=model or models.Nothing))
    elif model is not None:
        parameters.append(inspect.Parameter("more", kind, annotation=Annotated[model, Query()]))
    returned = Response if in_worker else Any
    endpoint.__signature__ = inspect.Signature(parameters, return_annotation=returned)
    return cast(Callable[..., Any], endpoint)


def _add_records(app: FastAPI, context: AdminContext) -> None:
    log = context.log

    @app.get("/v1/topics/{topic}/records", tags=["records"])
    def consume(
        topic: str,
        start: Annotated[
            str | None, Query(alias="from", description="earliest (the default), latest or an offset.")
        ] = None,
        from_time: Annotated[
            str | None,
            Query(description="Start at the first record not older: ISO 8601, or milliseconds since 1970."),
        ] = None,
        partition: Annotated[int | None, Query(description="Only this partition.")] = None,
        max_records: Annotated[int, Query(alias="max", ge=1, le=models.MAX_RECORDS)] = 500,
        max_bytes: Annotated[int, Query(ge=1, le=MAX_BYTES)] = MAX_BYTES,
        state: Annotated[
            bool, Query(description="The newest record of each key, without deleted keys, ordered by key.")
        ] = False,
        after_key_base64: Annotated[
            str | None, Query(description="With state: only keys after this one, as given in `next`.")
        ] = None,
        as_of: Annotated[
            str | None, Query(description="As of an offset, a time (ISO 8601) or snapshot:ID.")
        ] = None,
    ) -> Json:
        """Read some records. The answer has the offset of each partition, or with state the key, to continue from."""
        after_key = None if after_key_base64 is None else decoded(after_key_base64, "after_key_base64")
        with context.searches.turn() if state else nullcontext():
            return records.read_records(
                log,
                topic,
                start=start,
                from_time=from_time,
                partition=partition,
                max_records=max_records,
                max_bytes=max_bytes,
                state=state,
                after_key=after_key,
                as_of=as_of,
            )


def _group_asker(broker: AskBroker, groups: Callable[[], CoordinatedGroups | None]) -> AskGroups:
    def ask(call: Callable[[CoordinatedGroups], Any]) -> Any:
        coordinator, (_, loop) = groups(), broker()
        if coordinator is None or loop is None:
            raise UnavailableError("This server has no consumer groups, or is still starting.")
        try:
            return asyncio.run_coroutine_threadsafe(call(coordinator), loop).result(GROUPS_S)
        except TimeoutError:
            raise UnavailableError(f"The coordinator has not answered within {GROUPS_S:g} s.") from None

    return ask


def _add_health(
    app: FastAPI,
    context: AdminContext,
    broker: AskBroker,
    sources_problem: Callable[[], str | None],
    ask_groups: AskGroups,
) -> None:
    @app.get("/v1/status", tags=["health"])
    def status() -> Json:
        """Show the server's processes, the worker's last jobs, the sources, and problems."""
        sources = summary(context.log.path, context.log.clock, sources_problem())
        return {**health.status(context, *broker()), "sources": sources}

    @app.get("/healthz", tags=["health"])
    async def alive() -> Json:
        """Tell whether this process is alive: always, if it answers."""
        return {"alive": True}

    @app.get("/readyz", tags=["health"], responses={503: {"description": "Not ready; `problems` says why."}})
    def ready() -> JSONResponse:
        """Tell whether clients can be served and compaction works: the broker listens, the WAL can be written, the
        worker answers, and no compaction or erasure keeps failing.
        """
        found = health.problems(context, *broker())
        return JSONResponse({"ready": not found, "problems": found}, status_code=503 if found else 200)

    @app.get("/metrics", tags=["health"], response_class=PlainTextResponse)
    def metrics() -> Response:
        """Return the metrics of all processes, in Prometheus' text format."""
        text = exposition.exposition(
            context.worker.metrics,
            running.load(context.log.path),
            lambda: ask_groups(lambda groups: groups.lags()),
        )
        return Response(text, media_type=exposition.CONTENT_TYPE)
