"""The data source on a standalone Spark cluster: a master and two workers, each in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

import lastword

STARTED = re.compile(r"Starting Spark master at (spark://\S+)")

JOB = """
import sys
import lastword.spark
from pyspark.sql import SparkSession

master, folder, output = sys.argv[1:]
spark = (
    SparkSession.builder.master(master)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.executor.memory", "512m")
    .config("spark.executor.cores", "1")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
lastword.spark.register(spark)

def topic(reader, name):
    return reader.format("lastword").option("path", folder).option("topic", name).option("split.bytes", 4096)

copy = topic(spark.readStream, "in").option("max.records.per.trigger", 400).load().select("key", "value").writeStream
query = copy.format("lastword").option("path", folder).option("topic", "out")
query.option("checkpointLocation", output).trigger(availableNow=True).start().awaitTermination()
state = topic(spark.read, "out").option("view", "state").load()
hosts = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
print("RESULT", topic(spark.read, "out").load().count(), state.count(), hosts)
"""


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a cluster with two workers."""
    home = Path(pyspark.__file__).parent
    environment = os.environ | {
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
    }
    running: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> Path:
        log = tmp_path / f"{name}-{len(running)}.log"
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *arguments]
        with log.open("wb") as output:
            running.append(subprocess.Popen(command, stdout=output, stderr=output, env=environment))
        return log

    try:
        log = start("master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        until = time.monotonic() + 120
        while (found := STARTED.search(log.read_text())) is None:
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.2)
        for _ in range(2):
            start("worker.Worker", "--cores", "1", "--memory", "1g", "--webui-port", "0", found[1])
        yield found[1]
    finally:
        for each in running:
            each.kill()
        for each in running:
            each.wait()


@pytest.mark.soak
def test_streaming_and_state_on_two_workers(master: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with lastword.open(folder) as log:
        topic = log.create_topic("in", partitions=2)
        log.create_topic("out", partitions=3, config={"cleanup.policy": "compact"})
        for number in range(1000):
            topic.append(f"k{number % 150}", str(number))
            if number % 300 == 299:
                topic.seal()
        # The log stays open here: what Spark writes goes through this process.
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(JOB), master, str(folder), str(tmp_path / "checkpoint")],
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
            env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        )
        assert "RESULT 1000 150 2" in done.stdout, done.stdout + done.stderr
        assert sorted(int(record.value or b"-1") for record in log.topic("out").read()) == list(range(1000))
