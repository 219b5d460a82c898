"""Logs that this process has open for reading: Spark's Python processes live on, and opening takes a while."""

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
    """The log in a data folder, for reading. A folder that was removed and made anew is another one."""
    path = Path(where.path)
    try:
        inode = path.stat().st_ino
    except OSError as error:
        raise InvalidError(
            f"option 'path' is {where.path!r}: {error.strerror}. It is the data folder; where executors are on other "
            f"machines, they need it under the same name to read what is not sealed yet."
        ) from None
    with _lock:
        key = (str(path), where.config, inode)
        if key not in _logs:
            _logs[key] = lastword.open(path, config=where.config, read_only=True)
        return _logs[key]
