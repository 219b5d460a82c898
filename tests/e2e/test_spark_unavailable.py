"""Spark that can't be started: a compaction that was not done is an error everywhere, with the reason and the way out."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import Cli
from tests.support.server import serving
from tests.support.waiting import wait_until

import lastword
from lastword.errors import UnavailableError

INLINE = "lastword.compaction.inline:InlineCompactionServiceFactory"


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Two compacted topics with sealed records, of which nothing has been compacted."""
    made = Cli(tmp_path / "data")
    for name in ("orders", "users"):
        made("topic", "create", name, "--cleanup-policy", "compact")
        made("produce", name, stdin=b"k:1\nk:2\n")
        made("topic", "seal", name)
    return made


@pytest.fixture
def nobody() -> str:
    """An address of this machine where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture
def without_java(tmp_path: Path) -> dict[str, str]:
    """An environment with everything on its path but Java."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in ("/usr/local/bin", "/usr/bin", "/bin"):
        for tool in Path(folder).iterdir():
            if not tool.name.startswith("java") and not (tools / tool.name).is_symlink():
                (tools / tool.name).symlink_to(tool)
    return {"PATH": str(tools), "JAVA_HOME": ""}


@pytest.fixture
def without_grpcio(tmp_path: Path) -> dict[str, str]:
    """An environment whose Python finds no package of gRPC."""
    folder = tmp_path / "blocked"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(
        "import sys\n"
        "class Blocker:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('grpc', 'grpc_status'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Blocker())\n"
    )
    return {"PYTHONPATH": str(folder)}


def wait_durable(cli: Cli, **settings: str) -> None:
    (cli.data / "lastword.yaml").write_text("".join(f"{key}: {value}\n" for key, value in settings.items()))


def check_everywhere(cli: Cli, *wanted: str, **environment: str) -> None:
    """Each command that compacts ends with 1 and says why, for people and for programs."""
    for arguments in (["topic", "compact", "users"], ["compact", "--all"], ["worker", "--once"]):
        result = cli.real(*arguments, **environment, COLUMNS="1000")
        assert (result.code, "nothing to compact" in result.out) == (1, False), result
        for text in (*wanted, INLINE):
            assert text in result.out, result
    check_for_programs(cli, *wanted, **environment)


def check_for_programs(cli: Cli, *wanted: str, **environment: str) -> None:
    result = cli.real("topic", "compact", "users", "--json", **environment)
    assert result.code == 1
    report = result.json
    (failed,) = report["failed_topics"]
    assert (failed["topic"], report["partitions"], report["nothing_to_compact"]) == ("users", [], None)
    assert all(text in failed["problem"] for text in wanted)


def test_without_java(cli: Cli, without_java: dict[str, str]) -> None:
    check_everywhere(cli, "Spark can't be started", "Java 17 or newer", **without_java)


def test_with_a_master_that_nobody_is(cli: Cli, nobody: str) -> None:
    wait_durable(cli, **{"spark.master": f"spark://{nobody}"})
    check_for_programs(cli, f"nothing answers at spark.master=spark://{nobody}")


def test_with_a_spark_connect_server_that_nobody_is(cli: Cli, nobody: str) -> None:
    wait_durable(cli, **{"spark.remote": f"sc://{nobody}/;token=x"})
    check_for_programs(cli, f"nothing answers at spark.remote=sc://{nobody}")


def test_with_spark_connect_and_without_grpcio(cli: Cli, without_grpcio: dict[str, str]) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        wait_durable(cli, **{"spark.remote": f"sc://127.0.0.1:{listening.getsockname()[1]}"})
        check_for_programs(cli, 'pip install "pyspark[connect]"', **without_grpcio)


def test_the_report_names_every_topic_that_had_something_to_do(cli: Cli, nobody: str) -> None:
    # A master would not do: Spark that another test has started in this process is used then.
    config = {"spark.remote": f"sc://{nobody}"}
    with lastword.open(cli.data, config=config) as log:
        log.create_topic("empty", config={"cleanup.policy": "compact"})
        report = log.compact(asked_for=True)
        assert [(each.topic, each.partition) for each in report.failures] == [
            ("orders", None),
            ("users", None),
        ]
        assert report.partitions == ()
        with pytest.raises(UnavailableError, match="nothing answers"), log.maintenance():
            log.compaction.service("users").compact()
        # With nothing to do there is nothing that could fail.
        assert log.compact(["empty"], asked_for=True).failures == ()


def test_a_server_is_not_ready_and_its_topics_are_red(cli: Cli, nobody: str) -> None:
    settings = f"spark.master: spark://{nobody}\nworker.initial.delay.ms: 1\nworker.interval.ms: 100\n"
    with serving(cli.data, settings=settings) as server, server.client() as client:

        def failing(path: str) -> list[str]:
            """The problems, without the one that a busy machine may add: a worker that is slow to answer."""
            found = client.get(path).json()
            assert found["ready"] is (found["problems"] == [])
            return [each for each in found["problems"] if not each.startswith("the worker has not answered")]

        wait_until(lambda: failing("/readyz") != [])
        assert client.get("/readyz").status_code == 503
        (problem,) = failing("/readyz")
        assert problem.startswith(
            "compaction of orders, users fails: Spark can't be started: nothing answers"
        )
        assert failing("/v1/status") == [problem]
        status = client.get("/v1/status").json()
        assert {(each["topic"], each["partition"]) for each in status["worker"]["failing"]} == {
            ("orders", None),
            ("users", None),
        }
        for metric in (
            "lastword_log_cleaner_uncleanable_partitions 2.0",
            'lastword_log_cleaner_errors_total{topic="users"}',
        ):
            wait_until(lambda metric=metric: metric in client.get("/metrics").text, metric)
        (failing,) = client.get("/v1/topics/users").json()["failing_compactions"]
        assert INLINE in failing["message"]
        rows: dict[str, Any] = {}

        def is_red() -> bool:
            rows.update({each["name"]: each for each in client.get("/v1/views/overview").json()["topics"]})
            return bool(rows["users"]["problems"])

        wait_until(is_red, lambda: rows)
        assert rows["users"]["problems"][0].startswith("compaction has failed ")
        assert cli.real("status").code == 1
        assert "keeps failing" in cli.real("topic", "describe", "users").out
        result = cli.real("topic", "compact", "users")
        assert (result.code, "Not compacted" in result.out) == (1, True)


def test_it_is_tried_again_at_once_by_a_worker_that_can_start_it(cli: Cli, nobody: str) -> None:
    wait_durable(cli, **{"spark.remote": f"sc://{nobody}"})
    cli("worker", "--once", code=1)
    wait_durable(cli, **{"compaction.service.factory": INLINE})
    assert cli.json("worker", "--once")["failing"] == []
    assert cli.values("users") == ["2"]
