"""The one-time setup of each of Spark's Python processes, which live on from task to task."""

from __future__ import annotations

import sys
from typing import Final

from lastword import loading

_FORKED_BY: Final = "pyspark.daemon"

_settled = False


def prepare_process() -> None:
    """Exclude everything loaded so far from garbage collection, in a process that Spark has forked for tasks.

    Spark collects garbage after every task and every plan: 50 ms or more each time, longer than a small task takes.
    """
    global _settled
    if _settled or _main_module() != _FORKED_BY:
        return
    _settled = True
    loading.freeze()


def _main_module() -> str | None:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return None if spec is None else spec.name
