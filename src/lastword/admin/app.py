"""The paths of the admin API. Handlers without `async` run on the admin's threads; none touches the broker's loop."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from contextlib import nullcontext
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse

from lastword.admin import connectors, exposition, health, models, pages, problems, scenes
from lastword.admin.context import AdminContext, GroupAdmin, decoded, keys_of, one_key
from lastword.admin.jobs import EVENTS, Jobs
from lastword.admin.page import page
from lastword.broker.groups.replay import GROUPS_TOPIC
from lastword.errors import InvalidError, InvalidRecordError, UnavailableError
from lastword.folder import running
from lastword.operations import describing, records, topics, wal
from lastword.record_json import Json, Parsed, parse_record

AskGroups = Callable[[Callable[[GroupAdmin], Any]], Any]
"""Calls the coordinator on the broker's loop, and waits for what it says."""

MAX_RECORDS = 10_000
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
        "description": "What was done. With `Accept: text/event-stream`: `progress` events, then one `result` or "
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
    """The app. `broker`, `groups` and `sources_problem` are asked for at each request."""
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
    _add_topics(app, context, ask_groups)
    _add_records(app, context)
    _add_jobs(app, context, jobs)
    _add_groups(app, ask_groups)
    _add_health(app, context, broker, sources_problem, ask_groups)
    connectors.add(app, context)
    pages.add(app, context)
    scenes.add(app, context, jobs, stories or scenes.Stories())
    return app


def _add_topics(app: FastAPI, context: AdminContext, ask_groups: AskGroups) -> None:
    log = context.log

    @app.get("/v1/topics", tags=["topics"])
    def list_topics() -> list[Json]:
        """Every topic, with the settings of its own."""
        return topics.list_topics(log)

    @app.post("/v1/topics", tags=["topics"], status_code=201)
    def create_topic(new: models.NewTopic) -> Json:
        """Create a topic."""
        return topics.create_topic(log, new.name, partitions=new.partitions, config=new.config)

    @app.get("/v1/topics/{topic}", tags=["topics"])
    def describe_topic(topic: str) -> Json:
        """What a topic is, where its records are, what compaction has to do, what is wrong."""
        return describing.describe_topic(log, topic)

    @app.patch("/v1/topics/{topic}", tags=["topics"])
    def alter_topic(topic: str, changes: models.TopicChanges) -> Json:
        """Change settings, take them back, add partitions."""
        return topics.alter_topic(
            log, topic, set_config=changes.set, unset=changes.unset, partitions=changes.partitions
        )

    @app.delete("/v1/topics/{topic}", tags=["topics"])
    def delete_topic(topic: str) -> Json:
        """Delete a topic with all its records and the positions of its readers."""
        return topics.delete_topic(log, topic)

    @app.get("/v1/topics/{topic}/repair", tags=["topics"])
    def repair_plan(topic: str) -> Json:
        """What is wrong with a topic's table, and the older state that it can go back to."""
        return topics.repair_plan(log, topic)

    @app.post("/v1/topics/{topic}/repair", tags=["topics"])
    def repair_topic(topic: str, _nothing: models.Nothing) -> Json:
        """Have a topic whose table can't be read go back to an older state of it."""
        return topics.repair_topic(log, topic)

    @app.get("/v1/topics/{topic}/config", tags=["settings"])
    def topic_config(topic: str) -> list[Json]:
        """Each setting that holds for a topic, and where it comes from."""
        return topics.settings(log, topic)

    @app.get("/v1/config", tags=["settings"])
    def broker_config() -> list[Json]:
        """Each setting that topics inherit or that is the broker's, and where it comes from. Secrets are masked."""
        return topics.settings(log, None)

    @app.get("/v1/topics/{topic}/history", tags=["topics"])
    def history(topic: str) -> Json:
        """The snapshots that are kept, oldest first, and what each did."""
        return topics.history(log, topic)

    @app.post("/v1/topics/{topic}/delete-records", tags=["topics"])
    def delete_records(topic: str, wanted: models.DeleteRecords) -> Json:
        """Delete the records of a partition before an offset."""
        return topics.delete_records(log, topic, partition=wanted.partition, before=wanted.before)

    @app.get("/v1/wal", tags=["WAL"])
    def show_wal(topic: Annotated[str | None, Query(description="Only this topic.")] = None) -> list[Json]:
        """The WAL files of each partition, what is kept aside, and known damage."""
        return wal.show_wal(log, topic)

    @app.get("/v1/topics/{topic}/wal/damage", tags=["WAL"])
    def wal_damage(topic: str) -> Json:
        """The damaged ranges of a topic's WAL."""
        return wal.wal_damage(log, topic)

    @app.post("/v1/topics/{topic}/wal/skip-damage", tags=["WAL"])
    def skip_damage(topic: str, _nothing: models.Nothing) -> Json:
        """Leave the damaged ranges behind, for ever; the damaged files are kept aside."""
        if topic != GROUPS_TOPIC:
            return wal.skip_wal_damage(log, topic)
        # The coordinator knows all of it, also what can't be read any more.
        ask_groups(lambda groups: groups.write_again())
        skipped = wal.skip_wal_damage(log, topic)
        ask_groups(lambda groups: groups.repaired())
        return skipped


def _add_records(app: FastAPI, context: AdminContext) -> None:
    log = context.log

    @app.post("/v1/topics/{topic}/records", tags=["records"])
    def produce(topic: str, new: models.NewRecords) -> Json:
        """Append records, once all of them have been checked: one that is wrong keeps all from being appended.

        Where a disk fails when some partitions have been written, the problem's `appended` says which, and which offsets
        their records got. A request without an answer may have been carried out, in part, too.
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
            Query(description="The first record that is not older: ISO 8601, or milliseconds since 1970."),
        ] = None,
        partition: Annotated[int | None, Query(description="Only this partition.")] = None,
        max_records: Annotated[int, Query(alias="max", ge=1, le=MAX_RECORDS)] = 500,
        max_bytes: Annotated[int, Query(ge=1, le=MAX_BYTES)] = MAX_BYTES,
        state: Annotated[
            bool, Query(description="The newest record of each key, without deleted keys, by key.")
        ] = False,
        after_key_base64: Annotated[
            str | None, Query(description="With state: only keys behind this one, as `next` has it.")
        ] = None,
        as_of: Annotated[
            str | None, Query(description="As it was: an offset, a time (ISO 8601) or snapshot:ID.")
        ] = None,
    ) -> Json:
        """Some records, and the offset of each partition to go on from, or with state the key."""
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

    @app.get("/v1/topics/{topic}/explain", tags=["records"])
    def explain(
        topic: str,
        partition: Annotated[int | None, Query(description="Only this partition.")] = None,
        key: Annotated[str | None, Query(description="Only records of this key, as text.")] = None,
        key_base64: Annotated[str | None, Query(description="Only records of this key.")] = None,
        from_offset: Annotated[int, Query(alias="from", ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_RECORDS)] = 100,
        run: Annotated[
            Literal["asked for", "forced", "worker"],
            Query(description="The run that is explained: as `compact`, as that by force, or as the worker."),
        ] = "asked for",
        seal: Annotated[bool, Query(description="Whether the run seals first.")] = True,
    ) -> Json:
        """Where records are, whether they stay or go in a compaction that begins now, why and until when."""
        wanted_key = one_key(key, key_base64)
        # It reads the keys of all segments: that is the worker's, so that no produce has to wait for it.
        wanted = {
            "topic": topic,
            "partition": partition,
            "key_base64": None if wanted_key is None else base64.b64encode(wanted_key).decode(),
            "from_offset": from_offset,
            "limit": limit,
            "run": run,
            "seal": seal,
        }
        found: Json = context.worker.ask("explain", wanted)
        return found


def _parsed(index: int, entry: Json) -> Parsed:
    try:
        return parse_record(entry)
    except InvalidRecordError as error:
        raise InvalidRecordError(f"records.{index}: {error}") from None
    except InvalidError as error:
        raise InvalidError(f"records.{index}: {error}") from None


def _add_jobs(app: FastAPI, context: AdminContext, jobs: Jobs) -> None:
    worker = context.worker

    @app.post("/v1/topics/{topic}/seal", tags=["maintenance"], responses=_JOB)
    async def seal(request: Request, topic: str, _nothing: models.Nothing) -> Response:
        """Commit everything that is only in the WAL as sealed segments."""
        return await jobs.answer(request, worker.job("seal", topic=topic))

    @app.post("/v1/topics/{topic}/compact", tags=["maintenance"], responses=_JOB)
    async def compact_topic(request: Request, topic: str, wanted: models.CompactTopic) -> Response:
        """Compact a topic, whatever its dirty ratio is; or show what that would do."""
        return await jobs.answer(request, worker.job("compact_topic", topic=topic, **wanted.model_dump()))

    @app.post("/v1/compact", tags=["maintenance"], responses=_JOB)
    async def compact(request: Request, wanted: models.CompactAll) -> Response:
        """Compact what is due in all topics, or whatever is dirty; or show what that would do."""
        return await jobs.answer(
            request, worker.job("compact_all", all_dirty=wanted.all, dry_run=wanted.dry_run)
        )

    @app.post("/v1/topics/{topic}/verify", tags=["maintenance"], responses=_JOB)
    async def verify(request: Request, topic: str, wanted: models.Verify) -> Response:
        """Prove on Spark that compaction lost nothing, by comparing two snapshots."""
        return await jobs.answer(request, worker.job("verify", topic=topic, **wanted.model_dump()))

    @app.post("/v1/topics/{topic}/erase", tags=["maintenance"], responses=_JOB)
    async def erase(request: Request, topic: str, wanted: models.Erase) -> Response:
        """Remove every record of some keys from all files of a topic, for good."""
        keys = keys_of(wanted.keys, wanted.keys_base64)
        return await jobs.answer(request, worker.job("erase", topic=topic, keys_base64=keys))

    @app.post("/v1/backup", tags=["maintenance"], responses=_JOB)
    async def backup(request: Request, wanted: models.Backup) -> Response:
        """Make a backup of the whole log, while it is served."""
        if "://" not in wanted.to and not wanted.to.startswith("/"):
            raise InvalidError(
                f"to: {wanted.to!r} must be a whole path, or an address such as s3://bucket/path."
            )
        return await jobs.answer(request, worker.job("backup", **wanted.model_dump()))

    @app.post("/v1/retention", tags=["maintenance"], responses=_JOB)
    async def retention(request: Request, wanted: models.Retention) -> Response:
        """Run one round of retention, or show what would go."""
        return await jobs.answer(request, worker.job("retention", **wanted.model_dump()))

    @app.post("/v1/worker/run", tags=["maintenance"], responses=_JOB)
    async def run_worker(request: Request, _nothing: models.Nothing) -> Response:
        """Run every job of the worker once, now."""
        return await jobs.answer(request, worker.job("run_all"))


def _group_asker(
    broker: Callable[[], tuple[health.Listens | None, asyncio.AbstractEventLoop | None]],
    groups: Callable[[], GroupAdmin | None],
) -> AskGroups:
    def ask(call: Callable[[GroupAdmin], Any]) -> Any:
        coordinator, (_, loop) = groups(), broker()
        if coordinator is None or loop is None:
            raise UnavailableError("This server has no consumer groups, or is just being started.")
        try:
            return asyncio.run_coroutine_threadsafe(call(coordinator), loop).result(GROUPS_S)
        except TimeoutError:
            raise UnavailableError(f"The coordinator has not answered within {GROUPS_S:g} s.") from None

    return ask


def _add_groups(app: FastAPI, ask: AskGroups) -> None:
    @app.get("/v1/groups", tags=["groups"])
    def list_groups() -> list[Json]:
        """The consumer groups that are known, and how far each is behind."""
        found: list[Json] = ask(lambda coordinator: coordinator.list_groups())
        return found

    # A group's id may be any text, with slashes, too.
    @app.get("/v1/groups/{group:path}", tags=["groups"])
    def describe_group(group: str) -> Json:
        """A consumer group: its state, members, committed offsets, and how far it is behind."""
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
        """The server's processes, what the worker did last, how its sources are, and what is wrong."""
        sources = connectors.summary(context.log.path, context.log.clock, sources_problem())
        return {**health.status(context, *broker()), "sources": sources}

    @app.get("/healthz", tags=["health"])
    async def alive() -> Json:
        """Whether this process is alive: always, if it answers."""
        return {"alive": True}

    @app.get("/readyz", tags=["health"], responses={503: {"description": "Not ready; `problems` says why."}})
    def ready() -> JSONResponse:
        """Whether clients can be served and compaction works: the broker listens, the WAL can be written, the worker is
        there, and nothing keeps failing to be compacted or erased.
        """
        found = health.problems(context, *broker())
        return JSONResponse({"ready": not found, "problems": found}, status_code=503 if found else 200)

    @app.get("/metrics", tags=["health"], response_class=PlainTextResponse)
    def metrics() -> Response:
        """The metrics of all processes, in Prometheus' text form."""
        text = exposition.exposition(
            context.worker.metrics,
            running.load(context.log.path),
            lambda: ask_groups(lambda groups: groups.lags()),
        )
        return Response(text, media_type=exposition.CONTENT_TYPE)
