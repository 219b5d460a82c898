"""A real S3 server on this machine (moto, over HTTP, in a process of its own)."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from uuid import uuid4

import pyarrow.fs as pafs


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Server:
    port: int
    bucket: str = "lastword"

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def properties(self) -> dict[str, str]:
        """As pyiceberg wants them."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": "test",
            "s3.secret-access-key": "test",
            "s3.region": "us-east-1",
        }

    def file_system(self) -> pafs.S3FileSystem:
        return pafs.S3FileSystem(
            endpoint_override=self.endpoint,
            access_key="test",
            secret_key="test",
            region="us-east-1",
            allow_bucket_creation=True,
        )

    def new_bucket(self) -> S3Server:
        """The same server, with another bucket, which is empty."""
        other = replace(self, bucket=f"lastword-{uuid4().hex}")
        other.file_system().create_dir(other.bucket)
        return other


@contextmanager
def s3_server(bucket: str = "lastword") -> Iterator[S3Server]:
    """Run a server with one empty bucket."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for_port(process, port)
        server = S3Server(port=port, bucket=bucket)
        server.file_system().create_dir(bucket)
        yield server
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait_for_port(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        if process.poll() is not None:
            raise RuntimeError(f"moto's server ended with {process.returncode}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
