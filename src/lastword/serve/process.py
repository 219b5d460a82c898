"""The entry of both processes that the supervisor starts: process.py broker|worker OPTIONS LEASH.

Their modules are loaded from here, without garbage collection: that is a sixth faster, and all of it stays anyway.
"""

from __future__ import annotations

import gc
import sys

from lastword.serve.child import run


def main() -> None:
    gc.disable()
    if sys.argv[1] == "broker":
        from lastword.serve.broker import serve
    else:
        from lastword.serve.worker import serve
    gc.enable()
    run(sys.argv[1], serve, *sys.argv[2:])


if __name__ == "__main__":
    main()
