"""The sources that run in the broker's process, if a file names any. Each has a thread. None runs on the Kafka loop.

1. `check` checks the file, before anything listens;
2. `open` takes the sources' locks, before the broker listens;
3. `start` starts the sources;
4. `stop` ends each source after its current chunk, before the log is closed.

At the server's first start, any error in 1 or 2 ends the server. A broker that is restarted after a crash serves its
clients first: if the file can't be read by then, or another process runs a source, that is logged and retried.
Killed at any point, each source resumes where its records in the log end.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Final

from lastword.clock import SystemClock
from lastword.connect import ConnectConfig, Connectors
from lastword.connect.destination import NoDestination
from lastword.errors import LastwordError
from lastword.log import Log
from lastword.serve.child import ServeOptions

logger = logging.getLogger(__name__)

STOP_S: Final = 10.0
"""How long sources may take to end. Then the log is closed while they run, which is as safe as a kill."""
AGAIN_S: Final = 5.0


class Sources:
    """The sources of one run of the broker's process. Without a file there are none."""

    def __init__(self, options: ServeOptions) -> None:
        self._file = None if options.connect_file is None else Path(options.connect_file)
        self._data = Path(options.data)
        self._restarted = options.restarted
        self._log: Log | None = None
        self._connectors: Connectors | None = None
        self._stop = threading.Event()
        self._again: threading.Thread | None = None
        self.problem: str | None = None
        """Why the sources are not running, though they should."""

    def check(self) -> None:
        """Raise InvalidConfigError if the file is wrong."""
        if self._file is not None and not self._restarted:
            Connectors(NoDestination(self._data, SystemClock()), ConnectConfig.load(self._file))

    def open(self, log: Log) -> None:
        """Take the sources' locks. Raise LockedError, which names the process, if another one runs a source."""
        if self._file is None:
            return
        self._log = log
        if self._restarted:
            self._try()
        else:
            self._load()

    def start(self) -> None:
        if self._file is None:
            return
        if self._connectors is not None:
            self._connectors.start()
        else:
            self._again = threading.Thread(
                target=self._start_later, name="lastword-connect-again", daemon=True
            )
            self._again.start()

    def stop(self) -> None:
        """Stop the sources. A second call does nothing."""
        self._stop.set()
        if self._again is not None:
            self._again.join()
        connectors, self._connectors = self._connectors, None
        if connectors is None:
            return
        if late := connectors.stop(STOP_S):
            logger.warning("sources that have not stopped within %d s: %s", STOP_S, ", ".join(late))

    def _load(self) -> None:
        assert self._file is not None and self._log is not None
        connectors = Connectors(self._log, ConnectConfig.load(self._file))
        connectors.lock()
        self._connectors = connectors
        self.problem = None

    def _try(self) -> bool:
        try:
            self._load()
        except LastwordError as error:
            if self.problem != str(error):
                logger.error("the sources are not running: %s; retrying every %d s", error, AGAIN_S)
            self.problem = str(error)
            return False
        return True

    def _start_later(self) -> None:
        while not self._stop.wait(AGAIN_S):
            if self._try():
                assert self._connectors is not None
                self._connectors.start()
                return
