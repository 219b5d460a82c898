"""The scene over HTTP: stories, each with its own log, and runs of real topics.

A story is compacted in this process, on its own few records. A topic is compacted by the worker, like every requested
compaction. At most MOST_STORIES stories are kept. A new one ends the least recently used.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, TypeVar
from uuid import uuid4

from fastapi import FastAPI, Query, Request, Response

from lastword.admin import models, scene
from lastword.admin.context import AdminContext
from lastword.admin.jobs import Jobs
from lastword.errors import InvalidError, UnavailableError, UnknownTopicError
from lastword.folder.channel import ReportProgress
from lastword.operations.table import COMPACT_TOPIC
from lastword.record_json import Json

T = TypeVar("T")

MOST_STORIES = 8
MOST_STORY_RECORDS = 300


class Stories:
    """The open stories, by id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stories: OrderedDict[str, tuple[scene.Story, threading.Lock]] = OrderedDict()

    def begin(self) -> Json:
        story = scene.Story()
        story_id = uuid4().hex
        with self._lock:
            self._stories[story_id] = (story, threading.Lock())
            old = [self._stories.popitem(last=False)[1] for _ in range(len(self._stories) - MOST_STORIES)]
        for each, lock in old:
            with lock:
                each.close()
        return {"id": story_id, "steps": story.steps, "told": 0, **story.picture()}

    def do(self, story_id: str, act: Callable[[scene.Story], T]) -> T:
        """Call `act` with a story. Calls for one story run one at a time."""
        with self._lock:
            found = self._stories.get(story_id)
            if found is not None:
                self._stories.move_to_end(story_id)
        if found is None:
            raise UnknownTopicError("there is no such story; begin a new one")
        story, lock = found
        with lock:
            return act(story)

    def close(self) -> None:
        with self._lock:
            stories, self._stories = self._stories, OrderedDict()
        for story, lock in stories.values():
            with lock:
                story.close()


def add(app: FastAPI, context: AdminContext, jobs: Jobs, stories: Stories) -> None:
    """Add the scene's paths."""
    _add_stories(app, stories)
    _add_topics(app, context, jobs)


def _add_stories(app: FastAPI, stories: Stories) -> None:
    @app.post("/v1/scene/stories", tags=["scene"], status_code=201)
    def begin_story(_nothing: models.Nothing) -> Json:
        """Begin the story of alice, bob and carol, on its own log."""
        return stories.begin()

    @app.get("/v1/scene/stories/{story}", tags=["scene"])
    def look_at_story(story: str) -> Json:
        """Show a story: its steps, the number of steps done, and the picture of its partition."""
        return stories.do(story, lambda each: {"steps": each.steps, "told": each.told, **each.picture()})

    @app.post("/v1/scene/stories/{story}/advance", tags=["scene"])
    def advance_story(story: str, _nothing: models.Nothing) -> Json:
        """Do the next step of a story. The answer has `picture`, or `run` with its frames."""
        return stories.do(story, lambda each: {**each.advance(), "clock_ahead_ms": each.clock.ahead_ms})

    @app.post("/v1/scene/stories/{story}/produce", tags=["scene"])
    def produce_in_story(story: str, new: models.StoryRecord) -> Json:
        """Append a record to a story's topic."""

        def produce(told: scene.Story) -> Json:
            found = told.picture()["picture"]
            if sum(len(each["records"]) for each in found["segments"]) >= MOST_STORY_RECORDS:
                raise InvalidError(
                    f"a story has room for {MOST_STORY_RECORDS} records; compact it, or begin a new one"
                )
            return told.produce((new.key, new.value))

        return stories.do(story, produce)

    @app.post("/v1/scene/stories/{story}/seal", tags=["scene"])
    def seal_story(story: str, _nothing: models.Nothing) -> Json:
        """Seal a story's WAL."""
        return stories.do(story, lambda each: each.seal())

    @app.post("/v1/scene/stories/{story}/compact", tags=["scene"])
    def compact_story(story: str, _nothing: models.Nothing) -> Json:
        """Really seal and compact a story's partition. `run` has the frames."""
        return stories.do(story, lambda each: each.compact())

    @app.post("/v1/scene/stories/{story}/clock", tags=["scene"])
    def move_story_clock(story: str, wanted: models.ClockMove) -> Json:
        """Move a story's clock forward."""
        return stories.do(story, lambda each: each.move_clock(wanted.forward_ms))


def _add_topics(app: FastAPI, context: AdminContext, jobs: Jobs) -> None:
    @app.get("/v1/topics/{topic}/scene", tags=["scene"])
    def look_at_topic(topic: str, partition: Annotated[int, Query(ge=0)] = 0) -> Json:
        """Show the picture of a partition of at most a few hundred records."""
        return {"picture": scene.picture(context.log, topic, partition)}

    @app.post("/v1/topics/{topic}/scene/run", tags=["scene"])
    async def run_topic(request: Request, topic: str, wanted: models.SceneRun) -> Response:
        """Really seal and compact a partition. `run` has the frames."""
        compact = context.worker.job(
            COMPACT_TOPIC.name, **COMPACT_TOPIC.request(topic, partitions=[wanted.partition])
        )

        def run(progress: ReportProgress, gone: Callable[[], bool]) -> Json:
            rehearsed = scene.rehearse(context.log, topic, wanted.partition)
            report = compact(progress, gone)
            partitions = [each for each in report["partitions"] if each["problem"]]
            for failure in (*report["failed_topics"], *partitions):
                raise UnavailableError(f"{topic} could not be compacted: {failure['problem']}")
            return {"run": scene.finish(context.log, rehearsed)}

        return await jobs.answer(request, run)
