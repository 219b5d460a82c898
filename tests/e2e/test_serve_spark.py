"""A server whose worker compacts and verifies on a real Spark."""

from __future__ import annotations

from pathlib import Path

from tests.support.cli import Cli
from tests.support.server import serving


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
