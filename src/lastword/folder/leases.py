"""Leases: how jobs and replays keep the collector away from the files that they use.

A job (sealing, compaction) writes files that nothing references until it commits. A replay reads files of a snapshot
that may expire. Each holds a lease, a small file with an expiry time that a thread renews. Expiry and collection
honour every live lease. When a process dies, its leases expire by themselves. A job that was stopped for longer than
its lease lasts finds it lapsed, and must not commit.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from lastword.clock import Clock, new_uuid
from lastword.errors import LeaseLapsedError, StorageError
from lastword.folder import state_file
from lastword.folder.paths import LEASES_FOLDER

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The use of a topic's files until a time. A job has no snapshot: the lease's id is in the names of its files."""

    id: str
    topic_id: str
    job: str
    snapshot_id: int | None
    expires_ms: int


def live_leases(data_folder: Path, now_ms: int) -> list[Lease]:
    """Return the leases that have not expired."""
    return [lease for lease, _ in _load_all(data_folder) if lease.expires_ms > now_ms]


def sweep(data_folder: Path, before_ms: int) -> None:
    """Remove leases that expired before a time."""
    lapsed = {path: lease.expires_ms for lease, path in _load_all(data_folder)}
    for path in (data_folder / LEASES_FOLDER).glob("*"):
        with suppress(FileNotFoundError):
            # A lease that is half-written, or damaged by a power failure, does not say when it expires.
            ended_ms = lapsed.get(path, path.stat().st_mtime_ns // 1_000_000)
            if ended_ms < before_ms:
                path.unlink()


def _load_all(data_folder: Path) -> list[tuple[Lease, Path]]:
    found = []
    folder = data_folder / LEASES_FOLDER
    for path in folder.glob("*.json") if folder.exists() else ():
        if (lease := state_file.load_if_whole(path, lambda saved: Lease(**saved))) is not None:
            found.append((lease, path))
    return found


class HeldLease:
    """A lease of this process, renewed until it is released."""

    def __init__(self, keeper: LeaseKeeper, lease: Lease) -> None:
        self._keeper = keeper
        self._lease = lease

    @property
    def id(self) -> str:
        return self._lease.id

    def check(self) -> None:
        """Raise LeaseLapsedError if the lease has expired, because the collector may have removed the files."""
        if self._keeper.clock.now_ms() >= self._lease.expires_ms:
            raise LeaseLapsedError(
                f"The {self._lease.job} job {self._lease.id} was stopped for longer than its lease lasts, "
                f"so its files may be gone. Nothing was committed; it can be run again."
            )

    def renew(self) -> None:
        now_ms = self._keeper.clock.now_ms()
        if self._lease.snapshot_id is None and now_ms >= self._lease.expires_ms:
            # A lapsed lease of a job stays lapsed, or `check` would miss it.
            return
        renewed = replace(self._lease, expires_ms=now_ms + self._keeper.ttl_ms)
        # The file comes first: a lease that could not be written is not renewed.
        self._keeper.write(renewed)
        self._lease = renewed

    def release(self) -> None:
        self._keeper.forget(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


class LeaseKeeper:
    """The leases of this process, and the thread that renews them."""

    def __init__(self, data_folder: Path, clock: Clock, ttl_ms: int) -> None:
        self.clock = clock
        self.ttl_ms = ttl_ms
        self._folder = data_folder / LEASES_FOLDER
        self._held: list[HeldLease] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, *, topic_id: str, job: str, snapshot_id: int | None = None) -> HeldLease:
        lease = Lease(
            id=new_uuid().hex[:16],
            topic_id=topic_id,
            job=job,
            snapshot_id=snapshot_id,
            expires_ms=self.clock.now_ms() + self.ttl_ms,
        )
        held = HeldLease(self, lease)
        with self._lock:
            try:
                self.write(lease)
            except OSError as error:
                raise StorageError(
                    f"Can't take a lease in {self._folder}: {error.strerror or error}."
                ) from error
            self._held.append(held)
            if self._thread is None:
                self._thread = threading.Thread(target=self._renew, name="lastword-leases", daemon=True)
                self._thread.start()
        return held

    def forget(self, held: HeldLease) -> None:
        with self._lock:
            if held in self._held:
                self._held.remove(held)
                (self._folder / f"{held.id}.json").unlink(missing_ok=True)

    def write(self, lease: Lease) -> None:
        # Not synced: no lease needs to survive a crash of the machine, because no job does.
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{lease.id}.json"
        state_file.save(path, asdict(lease), synced=False)

    def _renew(self) -> None:
        while not self._stop.wait(self.ttl_ms / 3000):
            with self._lock:
                for held in self._held:
                    try:
                        held.renew()
                    except OSError as error:
                        # It will lapse. Then its job stops at `check`, or its replay looks at the table again.
                        logger.warning("could not renew lease %s: %s", held.id, error)

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for held in list(self._held):
            held.release()
