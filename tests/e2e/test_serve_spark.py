"""A server whose worker compacts and verifies on a real Spark."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
from tests.support.cli import Cli
from tests.support.server import serving
from tests.support.waiting import wait_until


def processes(pid: int | None) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def sealed_end(cli: Cli) -> int:
    return int(cli.json("topic", "describe", "users")["partitions"][0]["sealed_end"])


def test_compact_and_verify_on_the_server_s_spark(tmp_path: Path) -> None:
    settings = "spark.master: local[1]\nworker.nice: 0\nworker.initial.delay.ms: 3600000\n"
    with serving(tmp_path / "data", settings=settings) as server:
        cli = Cli(server.data)
        cli("topic", "create", "users", "--cleanup-policy", "compact")
        cli("produce", "users", stdin="".join(f"k{index % 7}:{index}\n" for index in range(200)).encode())
        report = cli.json("topic", "compact", "users")
        assert (report["engine"], report["total"]["records_after"]) == ("spark", 7)
        proof = cli.json("verify", "users")
        assert proof["holds"] is True
        assert proof["gone"] == {"beaten by another record of its key": 193}
        assert "There is no snapshot 5" in cli("verify", "users", "--before", "5", code=2).err

        # A Spark that no longer answers holds up neither sealing nor the end of the server.
        (java,) = [each for each in processes(server.child("worker").pid) if each.name() == "java"]
        java.suspend()
        try:
            cli("produce", "users", stdin=b"k0:200\n")
            compact = f"{server.url}/v1/topics/users/compact"
            events = {"accept": "text/event-stream"}
            with ThreadPoolExecutor(2) as pool:
                asked = pool.submit(httpx.post, compact, json={}, timeout=180)
                watched = pool.submit(httpx.post, compact, json={}, timeout=180, headers=events)
                wait_until(lambda: sealed_end(cli) == 201)
                cli("produce", "users", stdin=b"k0:201\n")
                # The second of the two may have sealed it by now.
                cli("topic", "seal", "users")
                assert sealed_end(cli) == 202
                assert not asked.done()
                assert server.stop() == 0
                assert asked.result(180).status_code == 503, asked.result().text
                for answer in (asked.result(), watched.result(180)):
                    assert "The server is stopping" in answer.text
        finally:
            java.resume()
        assert "a job did not end within 10 s and is aborted" in server.log
        assert "killing it" not in server.log
        # It ends with the process that it belonged to.
        java.wait(180)
    assert cli.values("users", "--state").count("201") == 1
