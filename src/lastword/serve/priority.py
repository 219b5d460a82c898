"""Gives background work a lower priority than client requests: Unix's nice, for every thread and for the session.

Linux weighs processes of different sessions against each other by the nice value of their session, not by their own
(autogroups, `/proc/PID/autogroup`). So a process in its own session gets as much time as all other sessions' processes
together, however nice it is, until the session's nice value is set, too.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

AUTOGROUP: Final = Path("/proc/self/autogroup")
THREADS: Final = Path("/proc/self/task")


def give_way(nice: int) -> None:
    """Lower the priority of this process, with its threads, and of the processes that it starts from now on."""
    if nice == 0:
        return
    target = os.nice(nice)
    # The call affects one thread only.
    with suppress(FileNotFoundError):
        for thread in THREADS.iterdir():
            # The thread may have ended.
            with suppress(ProcessLookupError, PermissionError):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), target)
    # Only for our own session. Another one has processes that did not ask for it, such as the shell.
    if os.getsid(0) == os.getpid():
        try:
            AUTOGROUP.write_text(str(target))
        except OSError as error:
            logger.debug("can't lower the session's priority: %s", error)
