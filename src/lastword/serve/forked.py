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

logger = logging.getLogger(__name__)


class Forked:
    """A process: its number, and how it ended, negative for the signal that killed it."""

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
    """Forks processes by way of a template, which is started when it is needed and not there.

    If the template is killed its processes can't be waited for any more: they are killed too, and so started again by
    whoever keeps them.
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
        """A new process with this end of a leash. UnavailableError if there is none to be had."""
        async with self._one_at_a_time:
            if self._control is None:
                self._control = await self._start()
            assert self._template is not None
            self._answer = asyncio.get_running_loop().create_future()
            request = json.dumps({"start": name, "options": options}).encode() + b"\n"
            try:
                socket.send_fds(self._control, [request], [leash.fileno()])
                return await self._answer
            except OSError as error:
                raise UnavailableError(
                    f"The {name}'s process could not be started, because what it is forked from ended: "
                    f"{show_ending(await self._template.wait())}. Its log, above, may say why."
                ) from error
            finally:
                self._answer = None

    async def close(self) -> None:
        """End the template. Processes that it has forked and that still run end by their leashes."""
        if self._template is None or self._listener is None:
            return
        self._forked.clear()
        with suppress(ProcessLookupError):
            self._template.kill()
        await self._template.wait()
        await self._listener

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
                # Else a file in the current folder, such as grp.py, takes the place of Python's own; also in Spark's.
                env={**os.environ, "PYTHONSAFEPATH": "1"},
                stdin=asyncio.subprocess.DEVNULL,
                # Ctrl-C on the terminal is for the supervisor, which stops all in order.
                start_new_session=True,
            )
        self._listener = asyncio.create_task(self._listen(ours))
        return ours

    async def _listen(self, control: socket.socket) -> None:
        """Take in what the template says, until it is gone."""
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
        for process in self._forked.values():
            logger.error("what process %d was forked from is gone; it is killed", process.pid)
            process.send_signal(signal.SIGKILL)
            process.ended(-signal.SIGKILL)
        self._forked.clear()

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
            # Whoever asked was stopped meanwhile.
            process.send_signal(signal.SIGKILL)
            return
        self._forked[process.pid] = process
        self._answer.set_result(process)


def show_ending(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
