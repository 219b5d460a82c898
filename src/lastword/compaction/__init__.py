"""Compaction: what is dirty (plan.py), and which record of a key wins (strategy.py)."""

SHIPPED_FACTORIES = (
    "lastword.compaction.spark:SparkCompactionServiceFactory",
    "lastword.compaction.inline:InlineCompactionServiceFactory",
)
"""Factories that are known to load. Whatever else `compaction.service.factory` names is looked at when a log opens."""
