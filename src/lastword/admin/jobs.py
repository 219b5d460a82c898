"""Long requests. They run on their own threads, a bounded number of them.

A client that accepts `text/event-stream` gets `progress` events with a stage and numbers, then one `result` or
`problem`. Other clients wait for the result. If the client disconnects, the job is told and stops before its next
commit; earlier commits stay.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from lastword.errors import LastwordError, UnavailableError
from lastword.folder.problems import to_problem

Job = Callable[[Callable[..., None], Callable[[], bool]], Any]
"""Does the work. Its arguments report progress, and tell whether the client has disconnected."""

EVENTS = "text/event-stream"
ALIVE_S = 10.0
"""A comment is sent after this time without an event, so that no proxy on the way gives up."""
PROGRESS_S = 0.2
"""The shortest time between progress events: a bar is for people."""
POLL_S = 1.0
THREADS = 8


class Jobs:
    """Runs long requests."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="lastword-admin-job")
        self._closed = False

    def close(self) -> None:
        """Accept no more jobs. Clients that still wait get an error within POLL_S."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def answer(self, request: Request, job: Job) -> Response:
        """Run a job, and answer with events or with the result, as the request accepts."""
        self._check_open()
        if EVENTS in request.headers.get("accept", ""):
            return StreamingResponse(
                self._events(job), media_type=EVENTS, headers={"Cache-Control": "no-store"}
            )
        gone = threading.Event()
        running = self._begin(job, _ignore, gone.is_set)
        try:
            while not (await asyncio.wait([running], timeout=POLL_S))[0]:
                self._check_open()
                if await request.is_disconnected():
                    gone.set()
        except BaseException:
            gone.set()
            raise
        return JSONResponse(self._result(running))

    def _begin(self, job: Job, report: Callable[..., None], gone: Callable[[], bool]) -> asyncio.Future[Any]:
        try:
            running = asyncio.get_running_loop().run_in_executor(self._pool, job, report, gone)
        except RuntimeError:
            # The pool has been closed.
            self._check_open()
            raise
        running.add_done_callback(_seen)
        return running

    def _result(self, done: asyncio.Future[Any]) -> Any:
        if done.cancelled():
            # Before it could start.
            self._check_open()
        return done.result()

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("The server is stopping; this job ends before its next commit.")

    async def _events(self, job: Job) -> AsyncIterator[str]:
        loop = asyncio.get_running_loop()
        latest: list[tuple[Any, ...]] = []
        news = asyncio.Event()
        gone = threading.Event()

        def report(*progress: Any) -> None:
            latest[:] = [progress]
            loop.call_soon_threadsafe(news.set)

        silent_s = 0.0
        try:
            try:
                running = self._begin(job, report, gone.is_set)
                running.add_done_callback(lambda _: news.set())
                while not running.done():
                    self._check_open()
                    try:
                        await asyncio.wait_for(news.wait(), POLL_S)
                    except TimeoutError:
                        silent_s += POLL_S
                        if silent_s >= ALIVE_S:
                            silent_s = 0.0
                            yield ": alive\n\n"
                        continue
                    news.clear()
                    silent_s = 0.0
                    if latest:
                        yield _event("progress", list(latest.pop()))
                    if not running.done():
                        await asyncio.wait([running], timeout=PROGRESS_S)
                yield _event("result", self._result(running))
            except LastwordError as error:
                yield _event("problem", to_problem(error))
            except Exception as error:  # noqa: BLE001
                yield _event(
                    "problem",
                    {"error": "LastwordError", "message": f"unexpected {type(error).__name__}: {error}"},
                )
        finally:
            gone.set()


def _seen(done: asyncio.Future[Any]) -> None:
    """Retrieve the error: if the client is gone, nothing else does."""
    if not done.cancelled():
        done.exception()


def _ignore(*_progress: Any) -> None: ...


def _event(name: str, data: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
