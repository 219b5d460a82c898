"""How background work gives way to what clients wait for: Unix's nice, for every thread and, where it counts, the session.

Linux weighs the processes of different sessions against each other by their session's own nice value, not by theirs
(autogroups, `/proc/PID/autogroup`). A process that was started in a session of its own is therefore as important as
all the others together, however nice it is, until its session is told, too.
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
    # The call is for one thread only.
    with suppress(FileNotFoundError):
        for thread in THREADS.iterdir():
            # It may have ended.
            with suppress(ProcessLookupError, PermissionError):
                os.setpriority(os.PRIO_PROCESS, int(thread.name), target)
    # Else others are in the session that did not ask for it, such as the shell.
    if os.getsid(0) == os.getpid():
        try:
            AUTOGROUP.write_text(str(target))
        except OSError as error:
            logger.debug("the session's priority can't be lowered: %s", error)
