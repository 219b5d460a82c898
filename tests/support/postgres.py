"""A real PostgreSQL of the tests' own: a cluster in a folder, on a Unix socket, for logical replication."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg2
import pytest
from tests.support.waiting import wait_until

DEADLINE_S = 180
SETTINGS = """
wal_level = logical
listen_addresses = ''
max_wal_senders = 40
max_replication_slots = 40
shared_buffers = 32MB
fsync = off
full_page_writes = off
wal_sender_timeout = 10s
logging_collector = off
"""

_TEMPLATE: list[tempfile.TemporaryDirectory[str]] = []


def programs() -> Path | None:
    """Where the server's programs are."""
    found = shutil.which("initdb")
    if found:
        return Path(found).resolve().parent
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return places[-1].parent if places else None


class Cluster:
    """A server. Not fsynced, which matters to a machine that loses power and not to a process that is killed."""

    def __init__(self, folder: Path) -> None:
        found = programs()
        if found is None:
            pytest.skip("PostgreSQL's server is not installed (scripts/ensure-postgres installs it)")
        self.programs = found
        self.folder = folder
        self._as = ["runuser", "-u", "postgres", "--"] if os.getuid() == 0 else []
        if self._as:
            shutil.chown(folder, "postgres", "postgres")
        self._make_data()
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(f"{SETTINGS}unix_socket_directories = '{folder}'\n")
        self.start()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def dsn(self) -> str:
        return f"host={self.folder} dbname=postgres user=postgres"

    def new_database(self) -> str:
        """The SQLAlchemy URI of a database of its own, which is empty."""
        name = f"catalog_{uuid4().hex}"
        self.run(f"CREATE DATABASE {name}")
        return f"postgresql+psycopg2://postgres@/{name}?host={self.folder}"

    def _make_data(self) -> None:
        """A copy of the first one's, which takes a tenth of the time that making one takes."""
        if not _TEMPLATE:
            folder = tempfile.TemporaryDirectory(prefix="lastword-pg-template-", ignore_cleanup_errors=True)
            _TEMPLATE.append(folder)
            template = Path(folder.name)
            template.chmod(0o755)
            if self._as:
                shutil.chown(template, "postgres", "postgres")
            self._run(
                "initdb", "-D", f"{template}/data", "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8"
            )
        self._run("/bin/cp", "-a", f"{_TEMPLATE[0].name}/data", str(self.data))

    def start(self) -> None:
        self._run("pg_ctl", "-D", str(self.data), "-l", str(self.folder / "log"), "-w", "-t", "60", "start")

    def stop(self, mode: str = "fast") -> None:
        self._run("pg_ctl", "-D", str(self.data), "-m", mode, "-w", "stop")

    def kill(self) -> None:
        """End it as a crash would: no checkpoint, nothing is said to clients."""
        pid = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(pid, signal.SIGKILL)
        # Its children end by themselves when they find it gone; until then no other can be started.
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                self.start()
                return
            except subprocess.CalledProcessError:
                assert time.monotonic() < deadline, (self.folder / "log").read_text()[-2000:]
                time.sleep(0.05)

    def connect(self) -> Any:
        connection = psycopg2.connect(self.dsn)
        connection.autocommit = True
        return connection

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Each statement in a transaction of its own; the rows of the last."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                for each in statements:
                    cursor.execute(each)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def drop_slot(self, name: str) -> None:
        """Drop a replication slot, once its last user's process has ended: that is a moment after its connection."""
        active = f"SELECT 1 FROM pg_replication_slots WHERE slot_name = '{name}' AND active"
        wait_until(lambda: not self.run(active))
        self.run(f"SELECT pg_drop_replication_slot('{name}')")

    def _run(self, program: str, *arguments: str) -> None:
        subprocess.run(
            [*self._as, str(self.programs / program), *arguments],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            timeout=DEADLINE_S * 2,
        )


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    # Short: a socket's path may have about 100 characters.
    folder = Path(tempfile.mkdtemp(prefix="lastword-pg-"))
    folder.chmod(0o755)
    cluster = None
    try:
        cluster = Cluster(folder)
        yield cluster
    finally:
        if cluster is not None:
            cluster.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)
