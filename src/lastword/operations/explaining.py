"""Why records stay or go."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastword.record_json import Json

if TYPE_CHECKING:
    from lastword.explain import Run
    from lastword.log import Log


def explain(
    log: Log,
    name: str,
    *,
    partition: int | None = None,
    key: bytes | None = None,
    from_offset: int = 0,
    limit: int | None = 100,
    run: Run = "asked for",
    seal: bool = True,
) -> Json:
    """Explain where records are, and whether, why and until when they stay or go in a compaction that starts now."""
    from lastword.explain.data import explanation_data

    return explanation_data(
        log.topic(name).explain(
            partition=partition, key=key, from_offset=from_offset, limit=limit, run=run, seal=seal
        )
    )
