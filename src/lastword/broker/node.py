"""Shared state for the handlers: the log, its settings, the broker's address and ids, threads for blocking calls."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Final, ParamSpec, TypeVar
from uuid import UUID

from lastword.broker.broker_settings import BrokerSettings
from lastword.broker.errors import ErrorCode
from lastword.broker.wire import Peer
from lastword.clock import Clock, new_uuid
from lastword.config import BrokerConfig, check_new_topic_name, check_not_internal, is_internal
from lastword.errors import TopicExistsError, UnknownTopicError
from lastword.folder import disk
from lastword.folder.paths import CLUSTER_ID_FILE, WAL_FOLDER
from lastword.log import Log
from lastword.log.topic import Topic

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

NODE_ID: Final = 1
NO_NODE: Final = -1
NO_EPOCH: Final = -1
ALL_ADDRESSES: Final = ("0.0.0.0", "::")


class Node:
    """The only node of this cluster. Everything here is called on the event loop, and nothing blocks it."""

    def __init__(self, log: Log, *, host: str, port: int) -> None:
        self.log = log
        self.clock: Clock = log.clock
        self.settings = BrokerSettings(log.path, log.config)
        self.node_id = NODE_ID
        self.cluster_id = _cluster_id(log)
        self.host = host
        self.port = port
        self.unsent_bytes = 0
        """The answers of all connections that the clients have not read yet."""
        self.unopened: set[str] = set()
        """Topics that could not be opened at the start. To clients they don't exist."""
        self._short = ThreadPoolExecutor(4, thread_name_prefix="lastword-broker")
        self._slow = ThreadPoolExecutor(4, thread_name_prefix="lastword-broker-slow")
        self._refreshes = ThreadPoolExecutor(2, thread_name_prefix="lastword-broker-refresh")
        self._by_id: dict[UUID, Topic] = {}
        self._creating: dict[str, asyncio.Future[None]] = {}

    @property
    def config(self) -> BrokerConfig:
        """The current settings: those of the file, with the clients' changes."""
        return self.settings.config

    def place_for(self, peer: Peer) -> tuple[str, int]:
        """Return the address for a client to connect to. For a wildcard it is the address that the client reached."""
        host, port = self.settings.advertised() or (self.host, self.port)
        return peer.reached_at if host in ALL_ADDRESSES and peer.reached_at else host, port

    @property
    def listens_at(self) -> str:
        """The address that is advertised to clients, unless a client has changed it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def wal_folder(self) -> str:
        """The folder that is reported to clients. Sealed data is in the warehouse, which need not be on this machine."""
        return str(self.log.path / WAL_FOLDER)

    @property
    def is_short_of_memory(self) -> bool:
        """Whether answers should be small now, because clients leave too many bytes unread."""
        return self.unsent_bytes > self.config.queued_max_request_bytes

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a short blocking function on a thread."""
        return await asyncio.get_running_loop().run_in_executor(
            self._short, partial(function, *args, **kwargs)
        )

    async def call_slow(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that may take long (sealed data, the catalog) on a thread that no short call waits for."""
        return await asyncio.get_running_loop().run_in_executor(
            self._slow, partial(function, *args, **kwargs)
        )

    async def call_refresh(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Load a table's snapshot on a thread that no commit occupies: a commit itself waits for these loads."""
        return await asyncio.get_running_loop().run_in_executor(
            self._refreshes, partial(function, *args, **kwargs)
        )

    def topic(self, name: str) -> Topic:
        """Return a topic from memory. Raise UnknownTopicError if there is none of that name."""
        topic = self.log.opened_topics().get(name)
        if topic is None:
            raise UnknownTopicError(f"there is no topic {name!r}")
        return topic

    def topic_by_id(self, topic_id: UUID) -> Topic:
        """Return a topic by its id, from memory. Raise UnknownTopicError if there is none."""
        topic = self._by_id.get(topic_id)
        if topic is not None and self.log.opened_topics().get(topic.name) is topic:
            return topic
        self._by_id = {each.id: each for each in list(self.log.opened_topics().values())}
        topic = self._by_id.get(topic_id)
        if topic is None:
            raise UnknownTopicError(f"there is no topic with the id {topic_id}")
        return topic

    def has_topic(self, topic_id: UUID) -> bool:
        """Return whether a topic is in memory."""
        try:
            self.topic_by_id(topic_id)
        except UnknownTopicError:
            return False
        return True

    def topic_with(self, name: str, partition: int) -> Topic | None:
        """Return a topic from memory, or None if there is none of that name with this partition."""
        topic = self.log.opened_topics().get(name)
        return topic if topic is not None and 0 <= partition < topic.partitions else None

    def led(self, topic: Topic, partition: int) -> dict[str, int | list[int]]:
        """Return the fields on a partition's leader and replicas. A topic of another data folder has none here."""
        own = topic.partition(partition)
        is_here = own.is_open
        return {
            "error_code": int(ErrorCode.NONE if is_here else ErrorCode.LEADER_NOT_AVAILABLE),
            "partition_index": partition,
            "leader_id": self.node_id if is_here else NO_NODE,
            "leader_epoch": own.writer.epochs[-1][0] if is_here else NO_EPOCH,
            "replica_nodes": [self.node_id] if is_here else [],
            "isr_nodes": [self.node_id] if is_here else [],
            "offline_replicas": [],
        }

    def topic_names(self, *, include_internal: bool = False) -> list[str]:
        """Return the sorted names of the users' topics, and of the broker's own with `include_internal`."""
        names = sorted(self.log.opened_topics())
        return names if include_internal else [name for name in names if not is_internal(name)]

    def begin_creating(self, name: str) -> None:
        """Create a topic with the default settings, after the answer that it does not exist, as Kafka does.

        So a client that requests a deleted topic learns of its deletion, and a client that wants the topic retries.
        Raise InvalidTopicError if the topic can't exist at all.
        """
        check_not_internal(name, "created")
        check_new_topic_name(name, list(self.log.opened_topics()))
        if name not in self._creating:
            creating = asyncio.ensure_future(self.call_slow(self._create, name))
            self._creating[name] = creating
            creating.add_done_callback(partial(self._created, name))

    def _created(self, name: str, creating: asyncio.Future[None]) -> None:
        del self._creating[name]
        if not creating.cancelled() and (error := creating.exception()) is not None:
            logger.warning("topic %r can't be created for a client: %s", name, error)

    def close(self) -> None:
        self._short.shutdown(wait=True, cancel_futures=True)
        self._slow.shutdown(wait=True, cancel_futures=True)
        self._refreshes.shutdown(wait=True, cancel_futures=True)

    def _create(self, name: str) -> None:
        with suppress(TopicExistsError):
            self.log.create_topic(
                name, partitions=self.config.num_partitions, config=self.config.topic_default_config
            )


def _cluster_id(log: Log) -> str:
    path = log.path / CLUSTER_ID_FILE
    if path.exists():
        return path.read_text().strip()
    # In Kafka's form: 22 characters of base64.
    cluster_id = base64.urlsafe_b64encode(new_uuid().bytes).decode().rstrip("=")
    disk.replace_file(path, f"{cluster_id}\n".encode())
    return cluster_id
