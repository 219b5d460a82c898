"""Work in a child process that is killed with SIGKILL when it reaches a step."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable

from lastword.folder import steps


def killed_at(step: str | None, work: Callable[[], object], *, times: int = 1) -> bool:
    """Do something in a child; True if it was killed, at the `times`-th time that it reached a step.

    The child begins as a copy of this process. So that it finds no lock held, nothing may be open here.
    """
    child = os.fork()
    if child == 0:
        left = times

        def hook(name: str) -> None:
            nonlocal left
            left -= name == step
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        status = 1
        try:
            steps.install(hook)
            work()
            status = 0
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.waitstatus_to_exitcode(status) == 0, "the child failed; its traceback is above"
    return False
