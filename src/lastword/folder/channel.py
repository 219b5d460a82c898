"""Small local channels between the processes of one data folder: Unix sockets, lines of JSON.

`ChannelServer`, `ask` and `hold`: maintenance asks the writer to roll, because only the writer rolls its files, and
announces commits to it. The writer's lock file names its socket. A connection carries one request and one answer. With
`hold` the connection stays open while the client does something, and a last answer confirms that the writer has noted
the end. Without that answer the writer has gone away. The connection of a killed client closes, which
is an end too. If there is no answer, the lock, not the socket, decides whether there is a writer. While the writer works
on a request it sends keep-alive lines. A client waits as long as they arrive, and gives up after TIMEOUT_S of silence.

`JobServer` and `ask_job`: the broker's process asks the worker's process for long work. A connection carries one
request, then any number of lines with progress, then one with the result or the error. A client that disconnects before
the end cancels the request: the job is notified, and ends before its next commit.
"""

from __future__ import annotations

import contextlib
import json
import logging
import select
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lastword.errors import ClosedError, LastwordError, UnavailableError
from lastword.folder.problems import from_problem, to_problem

logger = logging.getLogger(__name__)

TIMEOUT_S = 60.0
"""How long the other end may be silent."""
_WORKING_TIMES = 12
"""The number of keep-alive lines within TIMEOUT_S from a server that works on a request."""
_MAX_LINE_BYTES = 1 << 20
MAX_REQUEST_BYTES = 256 << 20
"""The largest request for a job: an erasure may have many keys."""

_POLL_S = 0.5
"""How often a waiting client checks whether to keep waiting."""

Handler = Callable[[dict[str, Any]], dict[str, Any] | AbstractContextManager[dict[str, Any]]]
"""Answers a request. If it returns a context manager, that yields the answer and exits when the client is done."""

ReportProgress = Callable[..., None]
"""Called with the name of a stage and numbers."""
JobHandler = Callable[[dict[str, Any], ReportProgress, Callable[[], bool]], Any]
"""Carries out a request. Gets a function to report progress, and one that returns whether the client has disconnected."""


class ChannelServer:
    """Answers requests, each on its own thread, from `start` until it is closed. Earlier requests wait."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        # The path of a socket may have only about 100 characters, so it can't be in the data folder.
        self._folder = tempfile.mkdtemp(prefix="lastword-")
        self.path = str(Path(self._folder) / "writer.sock")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(self.path)
        self._socket.listen(16)
        self._thread = threading.Thread(target=self._run, name="lastword-channel", daemon=True)
        self._serving: dict[threading.Thread, socket.socket] = {}
        self._serving_lock = threading.Lock()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Accept no more requests, and wait until the accepted ones are done."""
        try:
            # Wakes the waiting thread.
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            logger.debug("the channel was closed already")
        if self._thread.ident is not None:
            self._thread.join()
        with self._serving_lock:
            serving = dict(self._serving)
        for thread, connection in serving.items():
            # Don't wait for a client that holds a request open or has not sent it yet.
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RD)
            thread.join()
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            thread = threading.Thread(
                target=self._serve, args=(connection,), name="lastword-channel-request", daemon=True
            )
            with self._serving_lock:
                self._serving[thread] = connection
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                connection.settimeout(TIMEOUT_S)
                line = _read_line(connection)
                if line:
                    self._answer(connection, json.loads(line))
        except _AskerGoneError:
            logger.debug("a client of the writer's channel is gone")
        except (OSError, ValueError) as error:
            logger.warning("a request on the writer's channel failed: %s", error)
        finally:
            with self._serving_lock:
                del self._serving[threading.current_thread()]

    def _answer(self, connection: socket.socket, request: dict[str, Any]) -> None:
        try:
            with contextlib.ExitStack() as held:
                with _saying_that_it_works(connection):
                    answer = self._handler(request)
                    if isinstance(answer, AbstractContextManager):
                        first = held.enter_context(answer)
                if isinstance(answer, AbstractContextManager):
                    _tell(connection, first)
                    # Wait without a limit until the client is done or gone.
                    connection.settimeout(None)
                    said = b""
                    with contextlib.suppress(OSError):
                        said = _read_line(connection)
                    connection.settimeout(TIMEOUT_S)
                    with _saying_that_it_works(connection):
                        held.close()
                    if not said:
                        # The client was killed, or this is closing, which a client must not take as confirmation.
                        return
                    answer = {}
        except ClosedError as error:
            # The writer's log is closing. The client's own log is open, so it can try again.
            answer = {"problem": to_problem(UnavailableError(f"The writer is closing its log: {error}"))}
        except LastwordError as error:
            answer = {"problem": to_problem(error)}
        except _AskerGoneError:
            raise
        except Exception as error:
            # Without an answer, the client would wait until its timeout.
            logger.exception("a request on the writer's channel failed with an unexpected error: %s", request)
            unexpected = UnavailableError(
                f"The writer failed with an unexpected {type(error).__name__}: {error}"
            )
            answer = {"problem": to_problem(unexpected)}
        _tell(connection, answer)


class _AskerGoneError(Exception):
    """The client was killed, or has stopped waiting."""


def _tell(connection: socket.socket, answer: dict[str, Any]) -> None:
    try:
        _send(connection, answer)
    except OSError as error:
        raise _AskerGoneError from error


@contextlib.contextmanager
def _saying_that_it_works(connection: socket.socket) -> Iterator[None]:
    """Send keep-alive lines to the client until the block exits."""
    done = threading.Event()

    def say() -> None:
        while not done.wait(TIMEOUT_S / _WORKING_TIMES):
            try:
                _send(connection, {"working": True})
            except OSError:
                # The client is gone. Its request is carried out anyway.
                return

    thread = threading.Thread(target=say, name="lastword-channel-working", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def ask(path: str, request: dict[str, Any]) -> dict[str, Any] | None:
    """Return the writer's answer; None if there is no writer. Errors of the writer are raised here unchanged."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT_S)
        try:
            connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        return _exchange(connection, path, request)


@dataclass(slots=True)
class Hold:
    """A request that is held open: the writer's answer, None if there is no writer."""

    answer: dict[str, Any] | None
    is_ended: bool = False
    """Whether the writer that answered has noted the end. False if it ended first."""


@contextlib.contextmanager
def hold(path: str, request: dict[str, Any]) -> Iterator[Hold]:
    """Ask as `ask` does, and notify the writer when the block exits. On return, the writer has noted that if it can."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT_S)
        try:
            connection.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            yield Hold(None)
            return
        held = Hold(_exchange(connection, path, request))
        try:
            yield held
        finally:
            if held.answer is not None:
                held.is_ended = _exchange(connection, path, {"do": "done"}) is not None


def _exchange(connection: socket.socket, path: str, message: dict[str, Any]) -> dict[str, Any] | None:
    """Send a line and wait for the answer while the other end works. Return None if it has ended."""
    try:
        _send(connection, message)
        waiting = b""
        while received := connection.recv(1 << 16):
            *lines, waiting = (waiting + received).split(b"\n")
            for line in lines:
                answer: dict[str, Any] = json.loads(line)
                if "problem" in answer:
                    raise from_problem(answer["problem"])
                if "working" not in answer:
                    return answer
        return None
    except (BrokenPipeError, ConnectionResetError):
        return None
    except TimeoutError as error:
        raise UnavailableError(
            f"The writer has been silent on {path} for {TIMEOUT_S:g} s: its process is stopped, or its machine is "
            f"overloaded. When it continues, it may still carry out the request ({message.get('do')})."
        ) from error
    except OSError as error:
        raise UnavailableError(f"The writer does not answer on {path}: {error}") from error


def _read_line(connection: socket.socket, max_bytes: int = _MAX_LINE_BYTES) -> bytes:
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < max_bytes:
        received = connection.recv(1 << 16)
        if not received:
            break
        line += received
    return bytes(line)


# ------------------------------------------------------------------------------------------------------ jobs


class JobServer:
    """Runs jobs, each on its own thread, from `start` until it is closed."""

    def __init__(self, path: Path, handler: JobHandler) -> None:
        self._handler = handler
        self._path = path
        self._closing = threading.Event()
        # A killed worker may have left its socket.
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(path))
        self._socket.listen(64)
        self._thread = threading.Thread(target=self._accept, name="lastword-jobs", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Accept no more requests, and ask the running ones to end."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._thread.ident is not None:
            self._thread.join()
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), name="lastword-job", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(TIMEOUT_S)
                request = json.loads(_read_line(connection, MAX_REQUEST_BYTES))
                _send(connection, self._outcome(connection, request))
            except (OSError, ValueError) as error:
                logger.debug("a request on the worker's channel was not answered: %s", error)

    def _outcome(self, connection: socket.socket, request: dict[str, Any]) -> dict[str, Any]:
        def report(stage: str, *numbers: int | None) -> None:
            # The client may be gone. The job finds out by `gone`.
            with contextlib.suppress(OSError):
                _send(connection, {"progress": [stage, *numbers]})

        def gone() -> bool:
            return self._closing.is_set() or _is_closed(connection)

        try:
            return {"result": self._handler(request, report, gone)}
        except LastwordError as error:
            return {"problem": to_problem(error)}
        except Exception as error:
            logger.exception("the job %s failed with an unexpected error", request.get("do"))
            return {
                "problem": {
                    "error": "UnavailableError",
                    "message": f"the worker failed with an unexpected {type(error).__name__}: {error}",
                }
            }


def ask_job(
    path: Path,
    request: dict[str, Any],
    *,
    progress: ReportProgress | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    timeout_s: float | None = None,
) -> Any:
    """Return the result of a job, or raise its error. Raise UnavailableError if there is no worker or it ends early."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.settimeout(timeout_s or TIMEOUT_S)
            connection.connect(str(path))
            _send(connection, request)
        except OSError as error:
            raise UnavailableError(
                f"The worker is not running, or is just starting ({error.strerror or error}); try again."
            ) from error
        rest = b""
        waited_s = 0.0
        while True:
            if cancelled():
                raise UnavailableError("The request was cancelled; earlier commits stay.")
            if not select.select([connection], [], [], _POLL_S)[0]:
                waited_s += _POLL_S
                if timeout_s is not None and waited_s >= timeout_s:
                    raise UnavailableError(f"The worker has not answered within {timeout_s:g} s.")
                continue
            try:
                received = connection.recv(1 << 16)
            except OSError:
                received = b""
            if not received:
                raise UnavailableError(
                    "The worker ended while it was working on this; earlier commits stay. Try again."
                )
            *lines, rest = (rest + received).split(b"\n")
            for line in lines:
                answer = json.loads(line)
                if "result" in answer:
                    return answer["result"]
                if "problem" in answer:
                    raise from_problem(answer["problem"])
                if progress is not None:
                    progress(*answer["progress"])


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def _is_closed(connection: socket.socket) -> bool:
    """Return whether the other end has closed: it never sends anything after its request."""
    try:
        return bool(select.select([connection], [], [], 0)[0])
    except (OSError, ValueError):
        return True
