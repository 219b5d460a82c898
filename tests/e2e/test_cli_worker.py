"""`lastword worker`: how it starts, what it does beside a writer, and how it stops."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import psutil
import pytest
from tests.support.cli import Cli
from tests.support.waiting import wait_until

import lastword
from lastword.log.worker import Worker
from lastword.maintenance.worker_state import load_status

SETTINGS = """\
compaction.service.factory: lastword.compaction.inline:InlineCompactionServiceFactory
worker.initial.delay.ms: 1
worker.interval.ms: 100
worker.nice: 7
seal.interval.ms: 100
tiering.lag.ms: 1
"""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    made = Cli(tmp_path / "data")
    made.data.mkdir()
    (made.data / "lastword.yaml").write_text(SETTINGS)
    # What was sealed in two parts is compacted to the end, too.
    ratio = ("--config", "min.cleanable.dirty.ratio=0")
    made("topic", "create", "users", "--cleanup-policy", "compact", *ratio)
    made("produce", "users", stdin="".join(f"k{index % 10}:{index}\n" for index in range(100)).encode())
    return made


def started(cli: Cli, *arguments: str) -> subprocess.Popen[bytes]:
    """A worker that has said that it runs."""
    worker = cli.spawn("worker", *arguments)
    assert worker.stdout is not None
    lines = []
    while not lines or b"stops it between two commits" not in lines[-1]:
        lines.append(worker.stdout.readline())
        assert lines[-1], worker.communicate()
    text = b"".join(lines).decode()
    assert str(cli.data) in text
    assert re.search(r"compact +compacts what is due +1 ms +100 ms\n", text)
    return worker


def compacted(cli: Cli) -> bool:
    (partition,) = cli.json("topic", "describe", "users")["partitions"]
    return partition["first_dirty"] == partition["log_end"] and partition["sealed_records"] == 10


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_works_beside_a_writer_until_a_signal_ends_it_with_0(cli: Cli, number: signal.Signals) -> None:
    with lastword.open(cli.data) as log:
        log.topic("users").append("k0", "new")
        worker = started(cli, "-v")
        try:
            wait_until(lambda: compacted(cli))
            assert os.getpriority(os.PRIO_PROCESS, worker.pid) == min(19, os.nice(0) + 7)
            described = cli.json("topic", "describe", "users")
            assert f"process {worker.pid} on " in described["worker"]
            assert f"worker          process {worker.pid} on " in cli("topic", "describe", "users").out
        finally:
            worker.send_signal(number)
            out, err = worker.communicate(timeout=180)
    assert (worker.returncode, out) == (0, b"Stopped.\n")
    assert b"info: compacted users partition 0 (min.cleanable.dirty.ratio, one stage)" in err
    assert b"Traceback" not in err
    assert cli.json("topic", "describe", "users")["worker"] is None


def test_a_signal_ends_it_also_while_spark_is_being_started(cli: Cli) -> None:
    cli("topic", "seal", "users")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        master = f"spark://127.0.0.1:{silent.getsockname()[1]}"
        (cli.data / "lastword.yaml").write_text(f"spark.master: {master}\nworker.initial.delay.ms: 1\n")
        worker = cli.spawn("worker")
        # The first is to look whether anybody is there, the others are Spark's.
        silent.settimeout(120)
        connections = [silent.accept() for _ in range(2)]
        children = psutil.Process(worker.pid).children(recursive=True)
        assert any("java" in each.name() for each in children)
        worker.terminate()
        out, err = worker.communicate(timeout=180)
        assert (worker.returncode, b"Traceback" in err) == (0, False), (out, err)
        psutil.wait_procs(children, timeout=180)
        assert [
            each for each in children if each.is_running() and each.status() != psutil.STATUS_ZOMBIE
        ] == []
        for connection, _ in connections:
            connection.close()
    assert cli.json("topic", "describe", "users")["partitions"][0]["first_dirty"] == 0


def test_a_second_one_is_told_who_the_first_one_is(cli: Cli) -> None:
    first = started(cli)
    try:
        for arguments in ([], ["--once"]):
            second = cli.real("worker", *arguments)
            assert (second.code, second.out) == (3, "")
            assert f"process {first.pid} on " in second.err
            assert "is its worker" in second.err
    finally:
        first.terminate()
        first.communicate(timeout=180)


def test_a_program_gets_what_it_started_as_json(cli: Cli) -> None:
    worker = cli.spawn("worker", "--json")
    wait_until(lambda: load_status(cli.data) is not None)
    worker.terminate()
    out, err = worker.communicate(timeout=180)
    found = json.loads(out)
    assert (worker.returncode, err) == (0, b"")
    assert (found["data_folder"], found["pid"]) == (str(cli.data), worker.pid)
    assert found["jobs"]["compact"] == {"first_ms": 1, "every_ms": 100}


def test_once_runs_every_job_and_ends(cli: Cli) -> None:
    result = cli.real("worker", "--once")
    assert (result.code, result.err) == (0, "")
    for job in ("seal", "compact", "retention", "expire", "collect", "delete"):
        assert f"\n{job}" in result.out
    assert compacted(cli)
    status = cli.real("worker", "--once", "--json").json
    assert (status["failing"], status["jobs"]["compact"]["last_error"]) == ([], None)


def test_once_that_is_stopped_does_not_claim_to_have_run_everything(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed = Worker._seal

    def stop_after_sealing(self: Worker) -> None:
        sealed(self)
        self.stop()

    monkeypatch.setattr(Worker, "_seal", stop_after_sealing)
    result = cli("worker", "--once", code=1)
    assert "Stopped before these had run: compact, retention, " in result.out


def test_what_keeps_failing_is_told_and_shown_by_describe(cli: Cli) -> None:
    cli("topic", "seal", "users")
    (segment,) = cli.data.glob("warehouse/**/*.parquet")
    segment.write_bytes(b"\0" * segment.stat().st_size)
    result = cli.real("worker", "--once")
    assert (result.code, result.err) == (1, "")
    assert "done, except for what is listed below" in result.out and "Not compacted" in result.out
    shown = cli("topic", "describe", "users")
    described = shown.out
    assert "Compaction keeps failing" in described
    assert shown.err.startswith("warning: garbage can't be estimated: The segment file")
    (failing,) = cli.json("topic", "describe", "users")["failing_compactions"]
    assert (failing["topic"], failing["partition"], failing["failures"]) == ("users", 0, 1)
    assert failing["message"] in described


def test_it_makes_no_data_folder(tmp_path: Path) -> None:
    result = Cli(tmp_path / "nowhere").real("worker", "--once")
    assert result.code == 2
    assert "There is no Lastword data" in result.err
