"""The compaction of a log, which is made on first use: it loads compiled code that other uses of a log don't need."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lastword.compaction import SHIPPED_FACTORIES
from lastword.log.context import LogContext

if TYPE_CHECKING:
    from lastword.compaction.compacting import Compaction
    from lastword.compaction.round import Round
    from lastword.compaction.service import TopicCompactionService
    from lastword.compaction.target import Target
    from lastword.log.topic import Topic
    from lastword.segments.table import SegmentTable


class LateCompaction:
    """The compaction of a log's topics, and the service that the settings name."""

    def __init__(
        self, context: LogContext, topic: Callable[[str], Topic], table: Callable[[str], SegmentTable]
    ) -> None:
        self._context = context
        self._topic = topic
        self._table = table
        self._made: Compaction | None = None
        self._lock = threading.Lock()

    def get(self) -> Compaction:
        """Return the compaction, made on the first call."""
        if self._made is not None:
            return self._made
        with self._lock:
            if self._made is None:
                from lastword.compaction.compacting import Compaction

                self._made = Compaction(
                    self._target,
                    self._table,
                    config=self._context.config,
                    data_folder=self._context.data_folder,
                    clock=self._context.clock,
                    leases=self._context.leases,
                )
            return self._made

    def check_factory(self) -> None:
        """Raise InvalidConfigError if the settings name a user's factory that can't be loaded."""
        if not self._is_shipped:
            self.get().check_factory()

    def kept_elsewhere(self, topic: str) -> TopicCompactionService | None:
        """Return the service that keeps a topic's compacted records outside of its table, or None."""
        return None if self._is_shipped else self.get().service(topic)

    def run_rounds(self, rounds: Sequence[Round]) -> Iterator[Sequence[tuple[Round, object]]]:
        """Compact rounds while they are sealed, as `Compaction.run_rounds` does."""
        return self.get().run_rounds(rounds)

    def forget(self, topic: str) -> None:
        """Forget a topic that was deleted or now belongs to another folder."""
        if self._made is not None:
            self._made.forget(topic)

    def close(self) -> None:
        if self._made is not None:
            self._made.close()

    @property
    def _is_shipped(self) -> bool:
        return self._context.config.compaction_service_factory in SHIPPED_FACTORIES

    def _target(self, name: str) -> Target:
        target = self._topic(name).target(self._table(name))
        return replace(target, refresh=lambda: self._target(name))
