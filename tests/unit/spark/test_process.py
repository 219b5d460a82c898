"""What executors load and keep."""

from __future__ import annotations

import gc
import subprocess
import sys

from lastword.spark.process import prepare_process


def test_processes_that_spark_did_not_fork_are_left_alone() -> None:
    before = gc.get_freeze_count()
    prepare_process()
    assert gc.get_freeze_count() == before


def test_a_process_that_spark_forked_keeps_what_it_has_loaded() -> None:
    program = (
        "import gc, sys, types\n"
        "sys.modules['__main__'].__spec__ = types.SimpleNamespace(name='pyspark.daemon')\n"
        "from lastword.spark.process import prepare_process\n"
        "prepare_process()\n"
        "first = gc.get_freeze_count()\n"
        "more = [[] for _ in range(1000)]\n"
        "prepare_process()\n"
        "print(first > 1_000, gc.get_freeze_count() == first)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"


def test_tasks_that_read_sealed_segments_load_neither_the_compiled_loops_nor_the_log() -> None:
    program = (
        "import sys\n"
        "import lastword.spark.source, lastword.spark.batch, lastword.spark.tasks\n"
        "print([each for each in ('numba', 'lastword.log', 'lastword.spark.plan') if each in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
