"""InitProducerId: ids for idempotent producers, each given once.

Ids are taken from a block that was reserved in a file before any of them was given. Killed at any point: the next
start begins a new block, and the rest of the old one is never used.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, Final

from kafka.protocol.producer import InitProducerIdResponse

from lastword import disk
from lastword.broker.errors import ErrorCode
from lastword.broker.node import Node
from lastword.broker.wire import Handler, Peer, Request
from lastword.errors import StorageError

INIT_PRODUCER_ID: Final = 22
FILE_NAME: Final = "producer.ids"
BLOCK: Final = 1000


class ProducerIds:
    """Gives ids, to several threads at a time."""

    def __init__(self, folder: Path) -> None:
        self._lock = threading.Lock()
        self._path = folder / FILE_NAME
        self._next = self._end = 0

    def next(self) -> int:
        """An id that nobody has had. StorageError if a new block can't be reserved."""
        with self._lock:
            if self._next == self._end:
                try:
                    first = self._reserved()
                    disk.replace_file(self._path, json.dumps({"version": 1, "next": first + BLOCK}).encode())
                except (OSError, ValueError, KeyError, TypeError) as error:
                    raise StorageError(f"Can't reserve producer ids in {self._path}: {error}.") from error
                self._next, self._end = first, first + BLOCK
            found, self._next = self._next, self._next + 1
            return found

    def _reserved(self) -> int:
        try:
            return int(json.loads(self._path.read_bytes())["next"])
        except FileNotFoundError:
            return 0


class ProducersHandler:
    """Gives ids to producers. Transactions are refused with an error that clients don't try again on."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._ids = ProducerIds(node.log.path)

    def handlers(self) -> dict[int, Handler]:
        return {INIT_PRODUCER_ID: self._init_producer_id}

    async def _init_producer_id(self, request: Request, _peer: Peer) -> Any:
        if request.message.transactional_id is not None:
            return _answer(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1, -1)
        try:
            return _answer(ErrorCode.NONE, await self._node.call(self._ids.next), 0)
        except StorageError:
            return _answer(ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1)


def _answer(code: ErrorCode, producer_id: int, epoch: int) -> Any:
    return InitProducerIdResponse(
        throttle_time_ms=0, error_code=int(code), producer_id=producer_id, producer_epoch=epoch
    )
