"""The command line for tests: in this process for speed, and as the real command where that matters."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.support.waiting import wait_until

from lastword.cli.main import run
from lastword.serve import priority

COMMAND = str(Path(sys.executable).with_name("lastword"))
DEADLINE_S = 180


@dataclass(frozen=True)
class Result:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> dict[str, str]:
        return json.loads(self.err.splitlines()[-1])["error"]


class Cli:
    """Commands on one data folder."""

    def __init__(self, data: Path) -> None:
        self.data = data

    def __call__(self, *arguments: str, code: int | None = 0, stdin: bytes = b"") -> Result:
        """Run a command in this process, and check its exit code (None: any will do)."""
        out, err = io.StringIO(), io.StringIO()
        # A worker gives way to others; this process and all the tests after this one must not.
        with redirect_stdout(out), redirect_stderr(err), _stdin(stdin), patch.object(priority, "give_way"):
            found = run([*arguments, "--data", str(self.data)])
        result = Result(found, out.getvalue(), err.getvalue())
        assert code is None or found == code, result
        assert "Traceback" not in result.err
        return result

    def json(self, *arguments: str, code: int = 0, stdin: bytes = b"") -> Any:
        return self(*arguments, "--json", code=code, stdin=stdin).json

    def values(self, topic: str, *arguments: str) -> list[str | None]:
        """The values that `consume` prints."""
        return [each["value"] for each in self("consume", topic, *arguments, "--json").lines]

    def spawn(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start the real command."""
        options = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
        } | options
        return subprocess.Popen([COMMAND, *arguments], env=self.environment(), **options)

    def spawn_stopping(self, step: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start the command; at a named step it writes that name to its output and stands still for ever."""
        return subprocess.Popen(
            [sys.executable, "-c", _STOPPING, step, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment(),
        )

    def real(self, *arguments: str, stdin: bytes = b"", **environment: str) -> Result:
        """Run the real command to its end."""
        done = subprocess.run(
            [COMMAND, *arguments],
            input=stdin,
            capture_output=True,
            env=self.environment() | environment,
            timeout=DEADLINE_S,
            check=False,
        )
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())

    def environment(self) -> dict[str, str]:
        return {**os.environ, "LASTWORD_DATA": str(self.data), "TERM": "dumb"}


_STOPPING = """
import sys, threading
from lastword.folder import steps
from lastword.cli.main import main

step = sys.argv.pop(1)
sys.argv[0] = "lastword"

def stop(name):
    if name == step:
        print(name, flush=True)
        threading.Event().wait()

steps.install(stop)
main()
"""


@contextmanager
def _stdin(content: bytes) -> Iterator[None]:
    """Standard input that is a pipe with this content."""
    before = sys.stdin
    read_end, write_end = os.pipe()
    feeder = threading.Thread(target=_feed, args=(write_end, content))
    feeder.start()
    with os.fdopen(read_end) as piped:
        sys.stdin = piped
        try:
            yield
        finally:
            sys.stdin = before
    feeder.join()


def _feed(fd: int, content: bytes) -> None:
    with os.fdopen(fd, "wb") as pipe:
        try:
            pipe.write(content)
            pipe.flush()
        except BrokenPipeError:
            pass


class Terminal:
    """The real command on a terminal of its own."""

    def __init__(self, cli: Cli, *arguments: str, columns: int = 80) -> None:
        self._fd, far_end = pty.openpty()
        os.set_blocking(self._fd, False)
        self.shown = ""
        environment = cli.environment() | {"COLUMNS": str(columns)}
        self.process = subprocess.Popen(
            [COMMAND, *arguments], stdin=far_end, stdout=far_end, stderr=far_end, env=environment
        )
        os.close(far_end)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def expect(self, text: str) -> None:
        """Wait until the terminal shows a text."""
        wait_until(lambda: text in self._read(), lambda: f"{text!r} is not in {self.shown!r}")

    def end(self) -> int:
        """Wait for the end; the exit code."""
        wait_until(lambda: self._read() is not None and self.process.poll() is not None, lambda: self.shown)
        self._read()
        os.close(self._fd)
        return self.process.returncode

    def _read(self) -> str:
        try:
            while chunk := os.read(self._fd, 65536):
                self.shown += chunk.decode().replace("\r\n", "\n")
        except BlockingIOError:
            pass
        except OSError:
            # Linux says EIO when the other end is closed.
            pass
        return self.shown
