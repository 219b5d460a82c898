"""The erasures of a log: each is noted first, so that it can be resumed if it is interrupted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from lastword.errors import LastwordError
from lastword.folder import intents
from lastword.folder.intents import Intent
from lastword.log import staging
from lastword.log.context import LogContext
from lastword.log.topics import Topics
from lastword.maintenance.lanes import Lane

if TYPE_CHECKING:
    from lastword.maintenance.erase import EraseReport

logger = logging.getLogger(__name__)


class Erasures:
    """Carries out erasures. Until they end, nothing else may maintain the topic, and other topics are only sealed."""

    def __init__(
        self, topics: Topics, maintenance: Callable[..., AbstractContextManager[None]], context: LogContext
    ) -> None:
        self._topics = topics
        self._maintenance = maintenance
        self._context = context
        self._data_folder = context.data_folder

    def begin(
        self, topic: str, keys: tuple[bytes, ...], progress: Callable[[int, int], None] | None
    ) -> EraseReport:
        """Note an erasure, and carry it out."""
        found = self._topics.get(topic)
        if found.foreign is not None:
            raise found.foreign
        with self._maintenance(*Lane, topic=topic):
            # Records that are appended from now on are new and stay.
            ends = tuple(extent.log_end for _, extent in sorted(found.extents().items()))
            wanted = intents.Wanted(keys=keys, ends=ends)
            asked = intents.Intent(topic=topic, topic_id=found.id.hex, wanted=(wanted,))
            return self._erase(intents.add_intent(self._data_folder, asked), progress)

    def finish(self) -> list[str]:
        """Resume erasures that were interrupted or incomplete. Return the unfinished ones, with the reasons."""
        for path in intents.unfinished_intents(self._data_folder):
            with self._maintenance(Lane.CLEAN):
                path.unlink(missing_ok=True)
        left: list[str] = []
        for path in intents.list_intents(self._data_folder):
            try:
                intent = intents.load_intent(path)
            except LastwordError as error:
                left.append(_waits(path, error))
                continue
            if intent is None:
                continue
            with self._maintenance(*Lane, topic=intent.topic):
                try:
                    left += self._finish_erasure(path)
                except LastwordError as error:
                    left.append(_waits(path, error))
        return left

    def _finish_erasure(self, path: Path) -> list[str]:
        intent = intents.load_intent(path)
        if intent is None:
            return []
        if not self._topics.has(intent.topic, intent.topic_id):
            intents.forget_intent(self._data_folder, intent.topic_id)
            return []
        report = self._erase(intent, None)
        if report.left:
            logger.warning(
                "erasure of keys from %s is not finished: %s", report.topic, "; ".join(report.left)
            )
        else:
            logger.info("finished an erasure of %d keys from %s", report.keys, report.topic)
        return [f"{report.topic}: {each}" for each in report.left]

    def _erase(self, intent: Intent, progress: Callable[[int, int], None] | None) -> EraseReport:
        from lastword.maintenance import erase

        topic = self._topics.get(intent.topic)
        staging.sweep(self._data_folder, self._context.config, self._context.clock.now_ms())
        eraser = erase.Eraser(
            intent,
            self._topics.load(intent.topic),
            topic.removable_wals,
            data_folder=self._data_folder,
            leases=self._context.leases,
            clock=self._context.clock,
        )
        return eraser.run(topic.seal, progress)


def _waits(path: Path, error: LastwordError) -> str:
    """Log that an erasure waits until its problem has been fixed. Others don't."""
    logger.error("the erasure in %s can't continue: %s", path, error)
    return str(error)
