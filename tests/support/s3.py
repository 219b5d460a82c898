"""A real S3 server on this machine (moto, over HTTP, in a process of its own)."""

from __future__ import annotations

import socket
import subprocess
import sys
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


SERVER = """
import sys
from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server
app = create_backend_app("s3")
server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler, fd=int(sys.argv[1]))
server.serve_forever()
"""
"""S3 alone. Moto's own command asks with every request which of AWS's services it is for, and that takes long."""


@contextmanager
def s3_server(bucket: str = "lastword") -> Iterator[S3Server]:
    """Run a server with one empty bucket."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(listening.fileno())],
            pass_fds=[listening.fileno()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        server = S3Server(port=listening.getsockname()[1], bucket=bucket)
    try:
        server.file_system().create_dir(bucket)
        yield server
    finally:
        process.terminate()
        process.wait(timeout=180)
