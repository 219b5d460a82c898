"""The process that runs simulations. It is started by its path, so that it replaces threads and time before other imports."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    sys.path[:] = [each for each in sys.path if Path(each or ".").resolve() != Path(__file__).parent]
    import importlib.util

    spec = importlib.util.spec_from_file_location(
        "lastword_simulation_fibers", Path(__file__).with_name("fibers.py")
    )
    assert spec is not None and spec.loader is not None
    fibers = importlib.util.module_from_spec(spec)
    # The package imports the same module under its full name, and must get this one.
    sys.modules["lastword.testing.simulation.fibers"] = fibers
    spec.loader.exec_module(fibers)
    fibers.install()
    from lastword.testing.simulation import command

    sys.exit(command.main(sys.argv[1:]))


if __name__ == "__main__":
    assert os.environ.get("PYTHONHASHSEED") == "0", "the order of sets must be the same in each run"
    main()
