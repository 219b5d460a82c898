"""`wal.state`: how far the active file may be read, and how far it is known to be on disk.

It has a fixed 64 bytes, overwritten in place after each sync and never itself synced on that path. A killed process
leaves it exact, because the page cache outlives the process. A power failure may leave an older one, which only claims
less. It lives in one allocated block, so that even a full disk can't refuse the mark that a write or a sync has failed.
Readers in other processes read it to see how far they may go.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from crc32c import crc32c

from lastword.folder import disk
from lastword.folder.paths import WAL_STATE_FILE

_FORMAT = struct.Struct(">4sB3xQqqqq")
_MAGIC = b"LWS1"
_CRC = struct.Struct(">I")
_SIZE_BYTES = 64


class Phase(IntEnum):
    """OPEN: being written, or its writer died. CLEAN: closed cleanly. FAILED: a write or sync failed."""

    OPEN = 0
    CLEAN = 1
    FAILED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class WalState:
    """The visible and durable ends: the first offset that is not visible, not durable. Positions are in file `seq`."""

    phase: Phase
    seq: int
    visible_offset: int
    visible_position: int
    durable_offset: int
    durable_position: int

    def to_bytes(self) -> bytes:
        body = _FORMAT.pack(
            _MAGIC,
            self.phase,
            self.seq,
            self.visible_offset,
            self.visible_position,
            self.durable_offset,
            self.durable_position,
        )
        return (body + _CRC.pack(crc32c(body))).ljust(_SIZE_BYTES, b"\0")


def parse(data: bytes) -> WalState | None:
    """Parse a state; None if the bytes are not a whole one: it was just being written, or the disk damaged it."""
    body = data[: _FORMAT.size]
    if len(data) < _SIZE_BYTES or _CRC.unpack_from(data, _FORMAT.size)[0] != crc32c(body):
        return None
    magic, phase, seq, *rest = _FORMAT.unpack(body)
    if magic != _MAGIC:
        return None
    return WalState(
        phase=Phase(phase),
        seq=seq,
        visible_offset=rest[0],
        visible_position=rest[1],
        durable_offset=rest[2],
        durable_position=rest[3],
    )


def load(folder: Path) -> WalState | None:
    """Load the state in a folder; None if there is none that can be trusted."""
    for _ in range(3):
        try:
            data = (folder / WAL_STATE_FILE).read_bytes()
        except FileNotFoundError:
            return None
        if state := parse(data):
            return state
    return None


class StateFile:
    """The open state file of a writer."""

    def __init__(self, folder: Path) -> None:
        path = folder / WAL_STATE_FILE
        is_new = not path.exists()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if is_new:
            try:
                os.pwrite(self._fd, bytes(_SIZE_BYTES), 0)
                disk.fsync(self._fd)
                disk.sync_folder(folder)
            except OSError:
                os.close(self._fd)
                raise

    def write(self, state: WalState, *, sync: bool = False) -> None:
        os.pwrite(self._fd, state.to_bytes(), 0)
        if sync:
            disk.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)
