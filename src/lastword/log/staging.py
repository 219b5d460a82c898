"""Abandoned staged records. They are swept once no task can still be writing them."""

from __future__ import annotations

from pathlib import Path

from lastword.config import BrokerConfig
from lastword.folder.leases import live_leases
from lastword.log.topics import warned
from lastword.wal import staged

STAGE_JOB = "stage"
"""The job of leases that tasks hold while they stage records."""
STAGED_GRACE_MS = 86_400_000
"""Staged records are kept at least this long for their append, which happens after all tasks of a write have ended."""


def sweep(data_folder: Path, config: BrokerConfig, now_ms: int) -> None:
    """Remove staged records that are older than any write that may still append them."""
    busy = {each.topic_id for each in live_leases(data_folder, now_ms) if each.job == STAGE_JOB}
    grace_ms = max(config.collect_grace_ms, STAGED_GRACE_MS)
    with warned("staged records could not be swept; this will be retried"):
        staged.sweep(data_folder, before_ms=now_ms - grace_ms, busy=busy)
