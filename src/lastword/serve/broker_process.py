"""The broker's process. Its steps: check the sources' file, bind the admin API's address, open the log for writing,
start the broker, the sources and the admin API, report that it is ready. On SIGTERM, or when the supervisor is gone:
stop the broker (requests in progress are answered) and the sources, then the admin API, and close the log.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from importlib.metadata import version
from pathlib import Path

from lastword import loading
from lastword.admin import app as admin_app
from lastword.admin.context import AdminContext, WorkerClient
from lastword.admin.groups import CoordinatedGroups
from lastword.admin.jobs import Jobs
from lastword.admin.scenes import Stories
from lastword.admin.server import AdminServer, read_token
from lastword.broker.server import Broker
from lastword.log import Log
from lastword.log import open as open_log
from lastword.serve.child import Leash, ServeOptions
from lastword.serve.sources import Sources

logger = logging.getLogger("lastword.serve.broker")


def serve(options: ServeOptions, leash: Leash) -> None:
    sources = Sources(options)
    sources.check()
    token = None if options.token_file is None else read_token(Path(options.token_file))
    admin = AdminServer(options.admin_host, options.admin_port, token=token)
    try:
        # A folder that has become empty has lost its disk. Creating a new log there would hide that.
        with open_log(options.data, config=options.config, create=not options.restarted) as log:
            sources.open(log)
            try:
                asyncio.run(_serve(options, leash, log, admin, sources))
            finally:
                sources.stop()
    finally:
        admin.close()


async def _serve(options: ServeOptions, leash: Leash, log: Log, admin: AdminServer, sources: Sources) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set)

    def lost() -> None:
        loop.call_soon_threadsafe(stop.set)

    leash.watch(lost)
    broker = Broker(
        log,
        host=options.kafka_host,
        port=options.kafka_port,
        advertised_host=options.advertised_host,
        advertised_port=options.advertised_port,
    )
    await broker.start()
    sources.start()
    groups = CoordinatedGroups(broker.group_service)
    jobs = Jobs()
    stories = Stories()

    admin.start(
        admin_app.build(
            AdminContext(log, WorkerClient(Path(options.channel))),
            jobs,
            version=version("lastword"),
            broker=lambda: (broker, loop),
            groups=lambda: groups,
            stories=stories,
            sources_problem=lambda: sources.problem,
        )
    )
    # A garbage collection would delay every client.
    loading.freeze()
    leash.ready(kafka=list(broker.address), admin=list(admin.address))
    await stop.wait()
    logger.info("stopping")
    await asyncio.gather(broker.stop(), asyncio.to_thread(sources.stop))
    logger.debug("the broker and the sources have stopped")
    jobs.close()
    await asyncio.to_thread(admin.close)
    await asyncio.to_thread(stories.close)
    logger.debug("the admin API has stopped")
