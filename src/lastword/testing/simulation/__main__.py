"""Start the process that runs simulations. It replaces threads and time before it loads anything else."""

import os
import sys
from pathlib import Path

bootstrap = str(Path(__file__).with_name("bootstrap.py"))
os.execve(sys.executable, [sys.executable, bootstrap, *sys.argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
