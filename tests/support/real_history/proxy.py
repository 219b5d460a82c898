"""A proxy between the server and S3: a process that makes requests slow, fails them, and drops answers.

Each line on its standard input is a JSON object that says what goes wrong from then on:

    {"fail": 0.5, "drop": 0.2, "slow_s": 0.3}

With probability `fail` a request is answered with 503, or its connection is closed, and nothing is done. With
probability `drop` it is carried out, and its connection is closed without an answer. `slow_s` is the longest pause
before a request is carried out. For each line, one with the number of requests of each kind so far is printed. The
process ends with its standard input.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tests.support.s3 import S3Server

MAX_HEAD_BYTES = 1 << 20
_BODILESS = (b"HEAD",)


class Proxy:
    """The process, seen from the test."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self._process = process
        self.port = port
        self.counts: dict[str, int] = {}

    def trouble(self, *, fail: float = 0.0, drop: float = 0.0, slow_s: float = 0.0) -> None:
        """Say what goes wrong from now on."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"fail": fail, "drop": drop, "slow_s": slow_s}) + "\n")
        self._process.stdin.flush()
        self.counts = json.loads(self._process.stdout.readline())


@contextmanager
def proxy_before(server: S3Server, seed: int) -> Iterator[tuple[Proxy, S3Server]]:
    """Run a proxy. Yield it, and the server as it is reached through it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.real_history.proxy", str(server.port), str(seed)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        port = int(process.stdout.readline())
        yield Proxy(process, port), replace(server, port=port)
    finally:
        process.stdin.close()
        process.wait(180)
        process.stdout.close()


# ------------------------------------------------------------------------------------------- in the process


class _Forwarder:
    """Carries requests to the server, one at a time on each connection."""

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._chance = random.Random(seed)
        self._fail = self._drop = self._slow_s = 0.0
        self.counts: Counter[str] = Counter()

    def listen_to(self, line: bytes) -> None:
        said = json.loads(line)
        self._fail, self._drop, self._slow_s = said["fail"], said["drop"], said["slow_s"]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._forward(reader, writer):
                pass
        except (OSError, EOFError, asyncio.CancelledError):
            # One of both sides went away in the middle of a request, or the test is over.
            self.counts["broken"] += 1
        finally:
            writer.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Carry out a request. Return whether the connection stays open."""
        head = await _read_head(reader)
        if not head:
            return False
        if b"expect: 100-continue" in head.lower():
            head = b"\r\n".join(
                each for each in head.split(b"\r\n") if not each.lower().startswith(b"expect:")
            )
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await _read_body(reader, head)
        self.counts["requests"] += 1
        chance = self._chance.random()
        if self._slow_s:
            self.counts["slow"] += 1
            await asyncio.sleep(self._chance.random() * self._slow_s)
        if chance < self._fail:
            self.counts["failed"] += 1
            if self._chance.random() < 0.5:
                return False
            writer.write(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            return True
        answer = await self._ask(head, body)
        if chance < self._fail + self._drop:
            self.counts["dropped"] += 1
            return False
        writer.write(answer)
        await writer.drain()
        return True

    async def _ask(self, head: bytes, body: bytes) -> bytes:
        """Return the server's answer, on a connection of its own."""
        lines = [each for each in head.split(b"\r\n") if not each.lower().startswith(b"connection:")]
        head = b"\r\n".join([lines[0], b"Connection: close", *lines[1:]])
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=MAX_HEAD_BYTES)
        try:
            writer.write(head + body)
            await writer.drain()
            answer = await _read_head(reader)
            if not answer:
                raise ConnectionResetError("the server closed the connection")
            if not head.startswith(_BODILESS):
                # The server closes the connection after its answer.
                payload = await reader.read()
                return (
                    _kept_open(answer, None if b"content-length:" in answer.lower() else len(payload))
                    + payload
                )
            return _kept_open(answer, None)
        finally:
            writer.close()


def _kept_open(head: bytes, length: int | None) -> bytes:
    """Return the head of an answer for a connection that stays open."""
    lines = [each for each in head.split(b"\r\n") if not each.lower().startswith(b"connection:")]
    lines[0] = b"HTTP/1.1" + lines[0].removeprefix(b"HTTP/1.1").removeprefix(b"HTTP/1.0")
    if length is not None and b"transfer-encoding:" not in head.lower():
        lines.insert(1, b"Content-Length: %d" % length)
    return b"\r\n".join(lines)


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    """Read up to the empty line. Return nothing if the connection ends before the first byte."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return b""


async def _read_body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    fields = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])
    }
    if fields.get(b"transfer-encoding", b"").lower() != b"chunked":
        return await reader.readexactly(int(fields.get(b"content-length", b"0")))
    body = b""
    while True:
        line = await reader.readuntil(b"\r\n")
        body += line
        if size := int(line.split(b";")[0], 16):
            body += await reader.readexactly(size + 2)
            continue
        while line != b"\r\n":
            line = await reader.readuntil(b"\r\n")
            body += line
        return body


async def _main(port: int, seed: int) -> None:
    forwarder = _Forwarder(port, seed)
    server = await asyncio.start_server(forwarder.serve, "127.0.0.1", 0, limit=MAX_HEAD_BYTES, backlog=128)
    print(server.sockets[0].getsockname()[1], flush=True)
    said = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(said), sys.stdin.buffer
    )
    while line := await said.readline():
        forwarder.listen_to(line)
        print(json.dumps(forwarder.counts), flush=True)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2])))
