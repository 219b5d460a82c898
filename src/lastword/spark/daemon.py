"""The process from which Spark forks its Python workers, with the modules that their tasks need already loaded.

Spark's own daemon has loaded nothing: each worker would spend its first second on imports, and keep its own copy of
them in memory.
"""

from __future__ import annotations

import runpy

from lastword import loading
from lastword.compaction import pool, rewrite, spark, survivors  # noqa: F401
from lastword.spark import tasks  # noqa: F401

if __name__ == "__main__":
    loading.freeze()
    # It reads the name of the worker's module from the arguments.
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)
