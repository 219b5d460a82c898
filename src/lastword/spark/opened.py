"""Logs that this process has open for reading: Spark's Python processes live on, and opening a log takes a while."""

from __future__ import annotations

import threading
from pathlib import Path

import lastword
from lastword.errors import InvalidError
from lastword.log import Log
from lastword.spark.options import Where

_logs: dict[tuple[str, str | None, int], Log] = {}
_lock = threading.Lock()


def opened(where: Where) -> Log:
    """Return the log in a data folder, for reading. A folder that was removed and recreated is another one."""
    path = Path(where.path)
    try:
        inode = path.stat().st_ino
    except OSError as error:
        raise InvalidError(
            f"option 'path' is {where.path!r}: {error.strerror}. It is the data folder; executors on other machines "
            f"need it at the same path to read records that are not sealed yet."
        ) from None
    with _lock:
        key = (str(path), where.config, inode)
        if key not in _logs:
            _logs[key] = lastword.open(path, config=where.config, read_only=True)
        return _logs[key]
