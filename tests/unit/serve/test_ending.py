"""A request to end is heard, wherever in the wait for it the signal arrives."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Raises a signal at the n-th line that `wait` executes, of its own or of a function that it calls; and one later on, in
# case that there are fewer lines.
INTERRUPTED = """
import os, signal, sys, threading
from lastword.serve.ending import StopRequest

stop = StopRequest()
signal.signal(signal.SIGTERM, stop.ask)
left = int(sys.argv[1])

def trace(frame, event, argument):
    global left
    if event == "line":
        left -= 1
        if left == 0:
            signal.raise_signal(signal.SIGTERM)
    return trace

later = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM))
later.daemon = True
later.start()
sys.settrace(trace)
stop.wait()
"""

# The handler of the C library runs in another thread, and the main thread sleeps on.
ELSEWHERE = """
import signal, threading, time
from lastword.serve.ending import StopRequest

stop = StopRequest()
signal.signal(signal.SIGTERM, stop.ask)

def interrupt():
    time.sleep(0.2)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    threading.Event().wait()

threading.Thread(target=interrupt, daemon=True).start()
stop.wait()
"""


@pytest.mark.parametrize("line", range(1, 6))
def test_a_signal_is_heard_wherever_it_arrives(line: int) -> None:
    subprocess.run([sys.executable, "-c", INTERRUPTED, str(line)], check=True, timeout=180)


def test_a_signal_is_heard_that_did_not_wake_the_main_thread() -> None:
    subprocess.run([sys.executable, "-c", ELSEWHERE], check=True, timeout=180)
