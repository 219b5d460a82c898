"""Compaction in this process, by the same code, for machines without Java and for small logs."""

from __future__ import annotations

from lastword.compaction.engine import InlineEngine
from lastword.compaction.service import EngineFactory, ServiceContext


class InlineCompactionServiceFactory(EngineFactory):
    """A factory that needs neither Spark nor Java: one partition after another, on two threads."""

    def make_engine(self, context: ServiceContext) -> InlineEngine:  # noqa: ARG002
        return InlineEngine()
