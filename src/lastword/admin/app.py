"""The paths of the admin API. Handlers without `async` run on the admin's threads; none touches the broker's loop."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Annotated, Any, Literal, cast

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse

from lastword.admin import connectors, exposition, health, models, pages, problems, scenes
from lastword.admin.context import AdminContext, GroupAdmin, decoded, one_key
from lastword.admin.jobs import EVENTS, Jobs
from lastword.admin.page import page
from lastword.broker.groups.replay import GROUPS_TOPIC
from lastword.errors import InvalidError, InvalidRecordError, UnavailableError
from lastword.folder import running
from lastword.operations import records, topics, wal
from lastword.operations.table import CREATE_TOPIC, EXPLAIN, OPERATIONS, SHOW_WAL, Operation
from lastword.record_json import Json, Parsed, parse_record

AskGroups = Callable[[Callable[[GroupAdmin], Any]], Any]
"""Calls the coordinator on the broker's loop, and waits for its answer."""

MAX_RECORDS = 10_000
MAX_BYTES = 16 << 20
GROUPS_S = 10.0
CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'"

_WITH_QUERIES = (SHOW_WAL.name, EXPLAIN.name)
"""Operations whose requests are query parameters, each with a description."""

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
    broker: Callable[[], tuple[health.Listens | None, asyncio.AbstractEventLoop | None]] = lambda: (
        None,
        None,
    ),
    groups: Callable[[], GroupAdmin | None] = lambda: None,
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
    _add_operations(app, context, jobs)
    _add_queries(app, context, ask_groups)
    _add_records(app, context)
    _add_worker(app, context, jobs)
    _add_groups(app, ask_groups)
    _add_health(app, context, broker, sources_problem, ask_groups)
    connectors.add(app, context)
    pages.add(app, context)
    scenes.add(app, context, jobs, stories or scenes.Stories())
    return app


_TAGS = {"wal": "WAL", "config": "settings"}


def _add_operations(app: FastAPI, context: AdminContext, jobs: Jobs) -> None:
    """Add the paths of the operations in the table whose requests are objects, or empty."""
    for operation in OPERATIONS.values():
        if operation.name in _WITH_QUERIES:
            continue
        tag = "maintenance" if operation.in_worker else _TAGS.get(operation.path.split("/")[-1], "topics")
        tag = "WAL" if "/wal" in operation.path else tag
        app.add_api_route(
            operation.path,
            _endpoint(operation, context, jobs),
            methods=[operation.verb],
            tags=[tag],
            name=operation.name,
            description=operation.function.__doc__,
            status_code=201 if operation is CREATE_TOPIC else 200,
            responses=_JOB if operation.in_worker else None,
            response_model=None,
        )


def _endpoint(operation: Operation[Any, Any], context: AdminContext, jobs: Jobs) -> Callable[..., Any]:
    """Make a handler with the parameters of one operation: those in its path, and the body."""

    def request_of(given: dict[str, Any]) -> Json:
        body = given.pop("body", None)
        return operation.heard({**given, **({} if body is None else body.said())})

    def answer(**given: Any) -> Any:
        return operation.call(context.log, request_of(given))

    async def answer_with_progress(request: Request, **given: Any) -> Response:
        return await jobs.answer(request, context.worker.job(operation.name, **request_of(given)))

    endpoint: Any = answer_with_progress if operation.in_worker else answer
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("request", kind, annotation=Request)] if operation.in_worker else []
    parameters += [
        inspect.Parameter(name, kind, annotation=str) for name in re.findall(r"{(\w+)}", operation.path)
    ]
    if operation.verb in ("POST", "PATCH"):
        model = models.REQUESTS.get(operation.name, models.Nothing)
        parameters.append(inspect.Parameter("body", kind, annotation=model))
    returned = Response if operation.in_worker else Any
    endpoint.__signature__ = inspect.Signature(parameters, return_annotation=returned)
    return cast(Callable[..., Any], endpoint)


def _add_queries(app: FastAPI, context: AdminContext, ask_groups: AskGroups) -> None:
    log = context.log

    @app.get("/v1/config", tags=["settings"])
    def broker_config() -> list[Json]:
        """List the settings that topics inherit and the broker's own, each with its source. Secrets are masked."""
        return topics.broker_settings(log)

    @app.get(SHOW_WAL.path, tags=["WAL"])
    def show_wal(topic: Annotated[str | None, Query(description="Only this topic.")] = None) -> list[Json]:
        """Show the WAL files of each partition, the files kept aside, and known damage."""
        return SHOW_WAL.function(log, topic)

    @app.post("/v1/topics/{topic}/wal/skip-damage", tags=["WAL"])
    def skip_damage(topic: str, _nothing: models.Nothing) -> Json:
        """Permanently skip the damaged ranges. The damaged files are kept aside."""
        if topic != GROUPS_TOPIC:
            return wal.skip_wal_damage(log, topic)
        # The coordinator knows everything, including what can't be read any more.
        ask_groups(lambda groups: groups.write_again())
        skipped = wal.skip_wal_damage(log, topic)
        ask_groups(lambda groups: groups.repaired())
        return skipped

    @app.get(EXPLAIN.path, tags=["records"])
    def explain(
        topic: str,
        partition: Annotated[int | None, Query(description="Only this partition.")] = None,
        key: Annotated[str | None, Query(description="Only records of this key, as text.")] = None,
        key_base64: Annotated[str | None, Query(description="Only records of this key, in base64.")] = None,
        from_offset: Annotated[int, Query(alias="from", ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_RECORDS)] = 100,
        run: Annotated[
            Literal["asked for", "forced", "worker"],
            Query(
                description="The run to explain: that of `compact`, the same with `force`, or the worker's."
            ),
        ] = "asked for",
        seal: Annotated[bool, Query(description="Whether the run seals first.")] = True,
    ) -> Json:
        """Explain where records are, and whether, why and until when they stay or go in a compaction that starts now."""
        # The worker does it, because it reads the keys of all segments, and no produce request should wait for that.
        wanted = EXPLAIN.request(
            topic,
            partition=partition,
            key=one_key(key, key_base64),
            from_offset=from_offset,
            limit=limit,
            run=run,
            seal=seal,
        )
        found: Json = context.worker.ask(EXPLAIN.name, wanted)
        return found


def _add_records(app: FastAPI, context: AdminContext) -> None:
    log = context.log

    @app.post("/v1/topics/{topic}/records", tags=["records"])
    def produce(topic: str, new: models.NewRecords) -> Json:
        """Append records after checking all of them. If one is invalid, none is appended.

        If a disk fails after some partitions have been written, the problem's `appended` lists them and the offsets that
        their records got. A request that got no answer may have been carried out, wholly or in part.
        """
        parsed = [_parsed(index, each) for index, each in enumerate(new.records)]
        return records.append_records(
            log,
            topic,
            parsed,
            partition=new.partition,
            compression=new.compression,
            check_only=new.check_only,
        )

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
        max_records: Annotated[int, Query(alias="max", ge=1, le=MAX_RECORDS)] = 500,
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


def _parsed(index: int, entry: Json) -> Parsed:
    try:
        return parse_record(entry)
    except InvalidRecordError as error:
        raise InvalidRecordError(f"records.{index}: {error}") from None
    except InvalidError as error:
        raise InvalidError(f"records.{index}: {error}") from None


def _add_worker(app: FastAPI, context: AdminContext, jobs: Jobs) -> None:
    @app.post("/v1/worker/run", tags=["maintenance"], responses=_JOB)
    async def run_worker(request: Request, _nothing: models.Nothing) -> Response:
        """Run every job of the worker once, now."""
        return await jobs.answer(request, context.worker.job("run_all"))


def _group_asker(
    broker: Callable[[], tuple[health.Listens | None, asyncio.AbstractEventLoop | None]],
    groups: Callable[[], GroupAdmin | None],
) -> AskGroups:
    def ask(call: Callable[[GroupAdmin], Any]) -> Any:
        coordinator, (_, loop) = groups(), broker()
        if coordinator is None or loop is None:
            raise UnavailableError("This server has no consumer groups, or is still starting.")
        try:
            return asyncio.run_coroutine_threadsafe(call(coordinator), loop).result(GROUPS_S)
        except TimeoutError:
            raise UnavailableError(f"The coordinator has not answered within {GROUPS_S:g} s.") from None

    return ask


def _add_groups(app: FastAPI, ask: AskGroups) -> None:
    @app.get("/v1/groups", tags=["groups"])
    def list_groups() -> list[Json]:
        """List the consumer groups, and how far each is behind."""
        found: list[Json] = ask(lambda coordinator: coordinator.list_groups())
        return found

    # A group's id may be any text, even with slashes.
    @app.get("/v1/groups/{group:path}", tags=["groups"])
    def describe_group(group: str) -> Json:
        """Describe a consumer group: its state, members, committed offsets, and how far it is behind."""
        found: Json = ask(lambda coordinator: coordinator.describe_group(group))
        return found

    @app.delete("/v1/groups/{group:path}", tags=["groups"])
    def delete_group(group: str) -> Json:
        """Delete a consumer group without members, with its committed offsets."""
        ask(lambda coordinator: coordinator.delete_group(group))
        return {"group": group, "deleted": True}


def _add_health(
    app: FastAPI,
    context: AdminContext,
    broker: Callable[[], tuple[health.Listens | None, asyncio.AbstractEventLoop | None]],
    sources_problem: Callable[[], str | None],
    ask_groups: AskGroups,
) -> None:
    @app.get("/v1/status", tags=["health"])
    def status() -> Json:
        """Show the server's processes, the worker's last jobs, the sources, and problems."""
        sources = connectors.summary(context.log.path, context.log.clock, sources_problem())
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
