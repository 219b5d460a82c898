"""All benchmarks, one after the other, with their raw results in bench/results/: python -m bench [--quick]"""

from __future__ import annotations

import subprocess
import sys

from bench.support import console


def main() -> int:
    for name in ("batch", "log", "compaction", "broker", "connect", "spark_source", "dashboard", "history"):
        console.rule(name)
        command = [
            sys.executable,
            "-m",
            f"bench.{name}",
            "--json",
            f"bench/results/{name}.json",
            *sys.argv[1:],
        ]
        if subprocess.run(command, check=False).returncode:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
