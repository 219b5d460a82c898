"""The broker: listens for Kafka clients and wires up the handlers.

Start: load the compiled loops, open every topic, start the handlers, listen. Stop: accept no more requests, answer
those in progress, close the connections, stop the handlers. The log itself belongs to the caller.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Sequence
from typing import Final, Protocol

from lastword import batch, metrics
from lastword.broker.appends import Appends
from lastword.broker.binding import bound
from lastword.broker.cluster import ClusterHandlers
from lastword.broker.configs import ConfigHandlers
from lastword.broker.connection import STALL_S, Connection, Context, peer_of
from lastword.broker.fetch import FetchHandler
from lastword.broker.groups.handlers import GroupHandlers
from lastword.broker.groups.service import GroupService
from lastword.broker.memory import Memory
from lastword.broker.metadata import MetadataHandler
from lastword.broker.node import Node
from lastword.broker.offsets import OffsetsHandler
from lastword.broker.partitions import Views
from lastword.broker.produce import ProduceHandler
from lastword.broker.producers import ProducersHandler
from lastword.broker.reopener import reopen_failed
from lastword.broker.replicas import ReplicaHandlers
from lastword.broker.sealed import SealedData
from lastword.broker.topics import TopicHandlers
from lastword.broker.versions import VersionsHandler
from lastword.broker.wire import APIS, PRODUCE, Handler
from lastword.errors import LastwordError, UnknownTopicError
from lastword.log import Log

logger = logging.getLogger(__name__)

BACKLOG: Final = 1024
STOP_S: Final = 10.0
"""How long a stop waits for requests in progress."""

ACCEPT_PAUSE_S: Final = 1.0
"""The pause after a connection that could not be accepted."""

SWITCH_S: Final = 0.0005
"""A thread that has synced the WAL must not wait long for the loop to release the interpreter."""


class HandlerGroup(Protocol):
    """Handlers that belong together, and their background work."""

    def handlers(self) -> dict[int, Handler]: ...

    async def start(self) -> None: ...

    async def stop(self) -> None:
        """Answer the waiting requests: no more are accepted."""

    async def close(self) -> None:
        """Finish: everything is answered, and the log is about to be closed."""


class Broker:
    """A Kafka endpoint over an open log. Start and stop it on one event loop.

    It listens at `host` and `port`; port 0 picks a free one. The same address is advertised to clients, unless
    `advertised_host` and `advertised_port` are given.
    """

    def __init__(
        self,
        log: Log,
        *,
        host: str = "127.0.0.1",
        port: int = 9092,
        advertised_host: str | None = None,
        advertised_port: int | None = None,
    ) -> None:
        self._log = log
        self._host = host
        self._port = port
        self._advertised = (advertised_host, advertised_port)
        self._listener: socket.socket | None = None
        self._connections: dict[Connection, None] = {}
        self._groups: Sequence[HandlerGroup] = ()
        self._sweeper: asyncio.Task[None] | None = None
        self._reopener: asyncio.Task[None] | None = None
        self._all_closed = asyncio.Event()
        self.node: Node
        self.group_service: GroupService

    @property
    def address(self) -> tuple[str, int]:
        """The address that it listens at."""
        assert self._listener is not None
        host, port = self._listener.getsockname()[:2]
        return host, port

    def group_problems(self) -> list[str]:
        """Return the problems with reading consumer groups, and how to resolve them."""
        return self.group_service.problems()

    @property
    def memory(self) -> Memory:
        """The memory of requests, and its limit."""
        return self._context.memory

    async def start(self) -> None:
        """Start and listen. Raise UnavailableError if the address is in use."""
        loop = asyncio.get_running_loop()
        listener = bound(self._host, self._port, "Kafka clients")
        listener.setblocking(False)
        try:
            host, port = listener.getsockname()[:2]
            self.node = Node(self._log, host=self._advertised[0] or host, port=self._advertised[1] or port)
            self.node.unopened = await self.node.call_slow(_prepare, self._log)
            await self._start_handlers(loop)
        except BaseException:
            listener.close()
            raise
        sys.setswitchinterval(SWITCH_S)
        self._listener = listener
        listener.listen(BACKLOG)
        loop.add_reader(listener.fileno(), self._accept)
        self._sweeper = loop.create_task(self._sweep())
        self._reopener = loop.create_task(reopen_failed(self.node))
        logger.info("serving Kafka clients at %s:%d", host, port)

    async def stop(self) -> None:
        """Answer the requests in progress, then close everything."""
        if self._listener is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._listener.fileno())
        self._listener.close()
        self._listener = None
        assert self._sweeper is not None and self._reopener is not None
        self._sweeper.cancel()
        self._reopener.cancel()
        for group in self._groups:
            await group.stop()
        self._fetches.stop()
        for connection in list(self._connections):
            connection.finish()
        if self._connections:
            try:
                await asyncio.wait_for(self._all_closed.wait(), STOP_S)
            except TimeoutError:
                logger.warning("%d connections did not read their answers in time", len(self._connections))
        for connection in list(self._connections):
            connection.close()
        for group in self._groups:
            await group.close()
        await asyncio.get_running_loop().run_in_executor(None, self._appends.close)
        self._log.announcements.stop_listening(self._views.committing)
        await self._views.close()
        self._sealed.close()
        self.node.close()

    async def _start_handlers(self, loop: asyncio.AbstractEventLoop) -> None:
        node, config = self.node, self._log.config
        handlers: dict[int, Handler] = {}
        handlers |= MetadataHandler(node).handlers()
        handlers |= ProducersHandler(node).handlers()
        self._appends = Appends(node.clock, loop)
        self._sealed = SealedData(config.fetch_cache_bytes)
        self._views = views = Views(node, self._sealed)
        handlers |= OffsetsHandler(node, views).handlers()
        self._fetches = FetchHandler(node, views, self._sealed)
        fast_handlers = {
            **ProduceHandler(node, views, self._appends).fast_handlers(),
            **self._fetches.fast_handlers(),
        }
        groups = GroupHandlers(node)
        self.group_service = groups.service
        self._groups = (*self._groups, groups)
        for each in (
            groups,
            TopicHandlers(node),
            ConfigHandlers(node),
            ClusterHandlers(node),
            ReplicaHandlers(node),
        ):
            handlers |= each.handlers()
        handlers |= VersionsHandler({*handlers, *fast_handlers}).handlers()
        unknown = set(handlers) - set(APIS)
        assert not unknown, f"handlers of APIs without versions: {unknown}"
        self._context = Context(
            loop=loop,
            handlers=handlers,
            fast_handlers=fast_handlers,
            raw=frozenset({PRODUCE}),
            memory=Memory(config.queued_max_request_bytes),
            max_request_bytes=config.socket_request_max_bytes,
            closed=self._closed,
            node=node,
        )
        for group in self._groups:
            await group.start()
        self._log.announcements.listen(views.committing)

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(BACKLOG):
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Too many open files, most likely. The client still waits, so the loop would call this again at once.
                logger.error(
                    "can't accept another connection, retrying in %g s: %s",
                    ACCEPT_PAUSE_S,
                    error.strerror or error,
                )
                loop = asyncio.get_running_loop()
                loop.remove_reader(self._listener.fileno())
                loop.call_later(ACCEPT_PAUSE_S, self._accept_again)
                return
            if len(self._connections) >= self.node.config.max_connections:
                logger.warning("refused a connection from %s: max.connections is reached", address[0])
                sock.close()
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = peer_of(address, sock.getsockname())
            self._connections[Connection(sock, peer, self._context)] = None
            metrics.KAFKA_CONNECTIONS.set(len(self._connections))

    def _accept_again(self) -> None:
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener.fileno(), self._accept)

    def _closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        metrics.KAFKA_CONNECTIONS.set(len(self._connections))
        if not self._connections and self._listener is None:
            self._all_closed.set()

    async def _sweep(self) -> None:
        """Close connections that are idle, or stalled within a request or an answer."""
        while True:
            idle_s = self.node.config.connections_max_idle_ms / 1000
            await asyncio.sleep(min(idle_s, STALL_S) / 4)
            now_s = asyncio.get_running_loop().time()
            for connection in list(self._connections):
                silent_s = now_s - connection.last_active_s
                if (connection.is_idle and silent_s > idle_s) or (
                    connection.is_stalled and silent_s > STALL_S
                ):
                    connection.close()


def _prepare(log: Log) -> set[str]:
    """Open every topic. Return those that could not be opened."""
    batch.warm_up()
    unopened: set[str] = set()
    # By name alone: a topic that can't be read must not keep the others from being served.
    for name in log.catalog_names():
        try:
            log.topic(name)
        except UnknownTopicError:
            logger.debug("topic %s is being deleted", name)
        except LastwordError as error:
            logger.error("topic %s can't be opened: %s", name, error)
            unopened.add(name)
    return unopened
