"""Reopens partitions whose disk failed or was full, and opens topics that could not be opened at the start.

A failed partition refuses everything until it is reopened (wal/writer.py), and its active file can't be sealed
until then. Only the broker can reopen it, so it retries, with a growing pause between failures. The same applies to a
topic whose table could not be read when the broker started, or whose deletion is uncertain.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from lastword.broker.node import Node
from lastword.errors import LastwordError, UnknownTopicError
from lastword.log.topic import Topic

logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 2.0
LONGEST_PAUSE_S: Final = 60.0


async def reopen_failed(node: Node) -> None:
    """Reopen partitions and topics until cancelled."""
    pause_s = FIRST_PAUSE_S
    while True:
        await asyncio.sleep(pause_s)
        failed = [
            (topic, partition.number)
            for topic in list(node.log.opened_topics().values())
            for partition in topic.open_partitions()
            if partition.failed is not None
        ]
        # One after the other: the data that is kept of each is copied.
        reopened = [await _is_reopened(node, topic, partition) for topic, partition in failed]
        reopened += [await _is_opened(node, name) for name in sorted(node.unopened | node.log.undecided())]
        pause_s = FIRST_PAUSE_S if all(reopened) else min(pause_s * 2, LONGEST_PAUSE_S)


async def _is_opened(node: Node, name: str) -> bool:
    try:
        await node.call_slow(node.log.topic, name)
        logger.info("topic %s has been opened", name)
    except UnknownTopicError:
        logger.debug("topic %s has been deleted", name)
    except (LastwordError, OSError) as error:
        logger.warning("topic %s can't be opened yet: %s", name, error)
        return False
    except Exception:
        logger.exception("topic %s can't be opened", name)
        return False
    node.unopened.discard(name)
    return True


async def _is_reopened(node: Node, topic: Topic, partition: int) -> bool:
    try:
        await node.call_slow(_reopen, topic, partition)
    except (LastwordError, OSError) as error:
        logger.warning("%s-%d can't be reopened yet: %s", topic.name, partition, error)
        return False
    except Exception:
        # It must not affect the other partitions, or the next attempt.
        logger.exception("%s-%d can't be reopened", topic.name, partition)
        return False
    logger.info("%s-%d has been reopened and accepts appends", topic.name, partition)
    return True


def _reopen(topic: Topic, partition: int) -> None:
    # Another appender may have reopened it meanwhile.
    if topic.partition(partition).failed is not None:
        topic.reopen_partition(partition)
