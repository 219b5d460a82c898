"""The process that the broker's and the worker's are forked from: template.py CONTROL-FD.

It loads the modules of both, once, and then forks a process whenever the supervisor asks for one. So a server starts
in half the time, a killed process is back at once, and both share the memory of the modules. It opens no file and
starts no thread, so that a fork copies nothing that is in use. (OpenBLAS and jemalloc start threads when they are
loaded, and make sure themselves that a fork is safe.)

On the control socket: `{"start": NAME, "options": {...}}` with the process's end of the leash, answered by
`{"forked": PID}` or `{"refused": WHY}`; `{"ended": PID, "code": CODE}` when a process has ended. When the socket is
closed, the supervisor is gone, and the template ends. The processes notice it on their leashes.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Never

from lastword.serve.child import Leash, ServeOptions, run

Serve = Callable[[ServeOptions, Leash], None]

MAX_REQUEST = 1 << 20
STOPS = (signal.SIGTERM, signal.SIGINT)


def main() -> None:
    # A service manager may send them to all processes at once. The supervisor decides the order in which they end.
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    Template(control, _load()).run()
    # The interpreter's own shutdown takes time and has nothing to do here.
    os._exit(0)


def _load() -> dict[str, Serve]:
    """Load the modules without garbage collection, which is a sixth faster. The forked processes don't collect them."""
    gc.disable()
    from lastword import loading

    loading.load_arrow_without_pandas()
    from lastword import batch
    from lastword.serve import broker_process, worker_process

    batch.warm_up()
    gc.freeze()
    gc.enable()
    return {"broker": broker_process.serve, "worker": worker_process.serve}


class Template:
    """The template: forks processes, and reports their ends."""

    def __init__(self, control: socket.socket, serves: dict[str, Serve]) -> None:
        self._control = control
        self._serves = serves
        self._running: set[int] = set()

    def run(self) -> None:
        """Run until the supervisor is gone."""
        ended, wake = socket.socketpair()
        with ended, wake, selectors.DefaultSelector() as selector:
            for each in (ended, wake):
                each.setblocking(False)
            # The handler does nothing. Its purpose is that the signal writes to the pair.
            signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
            signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
            selector.register(ended, selectors.EVENT_READ)
            selector.register(self._control, selectors.EVENT_READ)
            try:
                self._serve(selector, ended, wake)
            finally:
                signal.set_wakeup_fd(-1)

    def _serve(self, selector: selectors.BaseSelector, ended: socket.socket, wake: socket.socket) -> None:
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if ended in ready:
                ended.recv(4096)
                self._tell_ended()
            if self._control in ready:
                request, leash = self._receive()
                if leash is None:
                    return
                self._fork(request, leash, close=[ended, wake, self._control])

    def _receive(self) -> tuple[dict[str, Any], int | None]:
        """Receive a request and its leash. The leash is None if the supervisor is gone."""
        received, leash = b"", None
        while not received.endswith(b"\n"):
            try:
                part, fds, _, _ = socket.recv_fds(self._control, MAX_REQUEST, 1)
            except OSError:
                return {}, None
            if not part:
                return {}, None
            received += part
            leash = fds[0] if fds else leash
        return json.loads(received), leash

    def _fork(self, request: dict[str, Any], leash: int, *, close: list[socket.socket]) -> None:
        # A stop signal that arrives before the new process handles signals stays pending until then.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        try:
            with warnings.catch_warnings():
                # It is about the threads named above.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                self._live(request, leash, close)
        except OSError as error:
            self._say({"refused": error.strerror or str(error)})
            return
        finally:
            os.close(leash)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        self._running.add(pid)
        self._say({"forked": pid})

    def _live(self, request: dict[str, Any], leash: int, close: list[socket.socket]) -> Never:
        """Run the forked process. It never returns to the template's code."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, *STOPS):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
            os.set_inheritable(leash, False)
            for each in close:
                each.close()
            # Ctrl-C on the terminal is for the supervisor, and a session can have its own priority (priority.py).
            os.setsid()
            name = request["start"]
            end = Leash(leash)
            with suppress(OSError):
                # `top` and `ps -e` show this name.
                Path("/proc/self/comm").write_text(f"lastword-{name}")
            if not end.is_loose:
                code = run(name, self._serves[name], ServeOptions(**request["options"]), end)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            # Everything is closed. The interpreter's own shutdown takes seconds for libraries with nothing left to do.
            os._exit(code)

    def _tell_ended(self) -> None:
        for pid in tuple(self._running):
            gone, status = os.waitpid(pid, os.WNOHANG)
            if gone:
                self._running.remove(pid)
                self._say({"ended": pid, "code": os.waitstatus_to_exitcode(status)})

    def _say(self, message: dict[str, Any]) -> None:
        try:
            self._control.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            # The supervisor is gone. The next read from the socket finds out.
            return


if __name__ == "__main__":
    main()
