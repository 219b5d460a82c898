"""Runs a function of a test in a process of its own: what is counted there (files, threads, memory) is its own doing."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def alone(function: Callable[..., None], *arguments: str) -> None:
    """Call a function of a module, with texts, in a new process; its failure is this one's."""
    # pytest gives modules other names.
    source = Path(inspect.getfile(function)).relative_to(REPOSITORY).with_suffix("")
    call = f"import sys, {'.'.join(source.parts)} as own; own.{function.__name__}(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", call, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
