"""The processes that the template forks (template.py), seen from the supervisor."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

from lastword.errors import UnavailableError
from lastword.folder.processes import is_running

logger = logging.getLogger(__name__)

KILLED_TRIES = 250


class Forked:
    """A forked process: its id and its exit code, which is negative for the signal that killed it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def ended(self, code: int) -> None:
        self.returncode = code
        self._ended.set()


class Nursery:
    """Forks processes by way of a template, which is started on demand.

    If the template is killed, its processes can't be waited for any more. They are killed too, so that the supervisor
    restarts them.
    """

    def __init__(self, module: str = "lastword.serve.template") -> None:
        self._module = module
        self._one_at_a_time = asyncio.Lock()
        self._template: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._listener: asyncio.Task[None] | None = None
        self._answer: asyncio.Future[Forked] | None = None
        self._forked: dict[int, Forked] = {}

    async def fork(self, name: str, options: dict[str, Any], leash: socket.socket) -> Forked:
        """Fork a process with this end of a leash. Raise UnavailableError if that fails."""
        async with self._one_at_a_time:
            if self._control is None:
                self._control = await self._start()
            assert self._template is not None
            self._answer = asyncio.get_running_loop().create_future()
            request = json.dumps({"start": name, "options": options}).encode() + b"\n"
            try:
                socket.send_fds(self._control, [request], [leash.fileno()])
                return await self._answer
            except asyncio.CancelledError:
                if self._answer.done() and not self._answer.cancelled() and not self._answer.exception():
                    # It was forked just before the request was cancelled.
                    self._answer.result().send_signal(signal.SIGKILL)
                raise
            except OSError as error:
                raise UnavailableError(
                    f"The {name}'s process could not be started, because its template process ended: "
                    f"{show_ending(await self._template_end())}. Its log, above, may say why."
                ) from error
            finally:
                self._answer = None

    async def close(self) -> None:
        """End the template, and those of its processes that still run."""
        if self._template is None or self._listener is None:
            return
        await self._template_end(patience_s=0)
        await self._listener

    async def _template_end(self, patience_s: float = 5.0) -> int:
        """Wait for the template to end, kill it if it does not, and return its exit code."""
        assert self._template is not None
        try:
            return await asyncio.wait_for(self._template.wait(), patience_s)
        except TimeoutError:
            with suppress(ProcessLookupError):
                self._template.kill()
            return await self._template.wait()

    async def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            self._template = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self._module,
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                # Else a file in the current folder, such as grp.py, would shadow Python's own module, also in Spark's.
                env={**os.environ, "PYTHONSAFEPATH": "1"},
                stdin=asyncio.subprocess.DEVNULL,
                # Ctrl-C on the terminal is for the supervisor, which stops all processes in order.
                start_new_session=True,
            )
        self._listener = asyncio.create_task(self._listen(ours))
        return ours

    async def _listen(self, control: socket.socket) -> None:
        """Handle the template's messages until it is gone."""
        loop = asyncio.get_running_loop()
        heard = b""
        with control, suppress(OSError):
            while part := await loop.sock_recv(control, 65536):
                *lines, heard = (heard + part).split(b"\n")
                for line in lines:
                    self._hear(json.loads(line))
        self._control = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionResetError("the template is gone"))
        left, self._forked = list(self._forked.values()), {}
        for process in left:
            logger.error("the template of process %d is gone; killing the process", process.pid)
            await _kill(process)

    def _hear(self, message: dict[str, Any]) -> None:
        if "ended" in message:
            if (process := self._forked.pop(message["ended"], None)) is not None:
                process.ended(message["code"])
            return
        if "refused" in message:
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(
                    UnavailableError(f"No process can be started: {message['refused']}.")
                )
            return
        process = Forked(message["forked"])
        if self._answer is None or self._answer.done():
            # The caller was stopped meanwhile.
            process.send_signal(signal.SIGKILL)
            return
        self._forked[process.pid] = process
        self._answer.set_result(process)


async def _kill(process: Forked) -> None:
    """Kill a process whose end is no longer reported, and wait for it: until then it may hold a port and a lock."""
    for _ in range(KILLED_TRIES):
        process.send_signal(signal.SIGKILL)
        if not is_running(process.pid):
            break
        await asyncio.sleep(0.02)
    # If this is process 1, as in a container, it adopts orphans and must reap them.
    with suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)
    process.ended(-signal.SIGKILL)


def show_ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
