"""Tests of whether a process is still running."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.waiting import wait_until

from lastword.folder.processes import is_running

MAIN_THREAD_ENDS_FIRST = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_runs_until_its_last_thread_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", MAIN_THREAD_ENDS_FIRST])
    try:
        stat = Path(f"/proc/{process.pid}/stat")
        wait_until(lambda: ") Z " in stat.read_text())
        # A thread may still be in a write, with the process's locks held.
        assert is_running(process.pid)
        process.kill()
        wait_until(lambda: not is_running(process.pid))
    finally:
        process.kill()
        process.wait()
    assert not is_running(process.pid)
