"""Named steps of the work that must survive a crash between any two of them.

`reached(name)` follows each step that changes something on disk. It does nothing unless a crash test installs a hook
that kills the process there.
"""

from __future__ import annotations

from collections.abc import Callable

_hook: Callable[[str], None] | None = None


def reached(name: str) -> None:
    if _hook is not None:
        _hook(name)


def install(hook: Callable[[str], None] | None) -> None:
    """Call `hook` with the name of each step from now on. None removes the hook."""
    global _hook
    _hook = hook
