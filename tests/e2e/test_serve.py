"""`lastword serve`: how it starts, what it survives, how it stops, and what it says when it can't start."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
from tests.support.cli import Cli
from tests.support.server import SETTINGS, Server, serving
from tests.support.waiting import wait_until

import lastword


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("served") / "data") as started:
        yield started


def processes(server: Server) -> list[psutil.Process]:
    parent = psutil.Process(server.process.pid)
    return [parent, *parent.children(recursive=True)]


def test_it_is_ready_when_it_says_so(server: Server) -> None:
    host, _, port = server.kafka.rpartition(":")
    socket.create_connection((host, int(port)), timeout=180).close()
    with server.client() as client:
        assert client.get("/readyz").json() == {"ready": True, "problems": []}
        assert client.get("/healthz").json() == {"alive": True}
    assert server.started["pid"] == server.process.pid
    assert set(server.started["processes"]) == {"broker", "worker"}


def test_the_worker_gives_way_to_the_broker_with_all_its_threads(server: Server) -> None:
    nice = {name: psutil.Process(server.child(name).pid).nice() for name in ("broker", "worker")}
    assert nice["worker"] == min(19, nice["broker"] + 10)
    threads = Path(f"/proc/{server.child('worker').pid}/task")
    assert {psutil.Process(int(each.name)).nice() for each in threads.iterdir()} == {nice["worker"]}
    # Where sessions are weighed against each other, the processes' own values count for nothing.
    session = Path(f"/proc/{server.child('worker').pid}/autogroup")
    if session.exists():
        assert session.read_text().split()[-1] == str(nice["worker"])


def test_a_worker_that_is_killed_is_started_again_and_counted(server: Server) -> None:
    cli = Cli(server.data)
    before = server.child("worker").restarts
    server.kill_child("worker")
    assert server.child("worker").restarts == before + 1
    with server.client() as client:
        wait_until(lambda: client.get("/readyz").status_code == 200, lambda: server.log)
        name = 'lastword_process_restarts_total{process="worker"}'
        assert f"{name} {before + 1}.0" in client.get("/metrics").text
    assert "the worker ended by itself (killed by SIGKILL)" in server.log
    shown = cli("status").out
    assert "killed by SIGKILL" in shown
    assert shown.endswith("Ready.\n")


def test_whoever_waits_for_a_worker_that_is_killed_is_told(server: Server) -> None:
    cli = Cli(server.data)
    cli("topic", "create", "waiting")
    cli("produce", "waiting", stdin=b"a:1\n")
    worker = psutil.Process(server.child("worker").pid)
    worker.suspend()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(httpx.post, f"{server.url}/v1/topics/waiting/seal", json={}, timeout=180)
        server.kill_child("worker")
        answer = asked.result(180)
    assert answer.status_code == 503
    assert "The worker" in answer.json()["detail"]
    assert cli.json("topic", "seal", "waiting")["records"] == 1


def test_a_broker_that_is_killed_is_started_again_with_what_was_acknowledged(server: Server) -> None:
    cli = Cli(server.data)
    cli("topic", "create", "kept")
    cli("produce", "kept", stdin=b"a:1\nb:2\n")
    kafka = server.kafka
    server.kill_child("broker")
    # Commands wait for it.
    assert cli.values("kept") == ["1", "2"]
    cli("produce", "kept", stdin=b"c:3\n")
    assert cli.values("kept") == ["1", "2", "3"]
    host, _, port = kafka.rpartition(":")
    socket.create_connection((host, int(port)), timeout=180).close()
    assert "lastword_append_records_total" in httpx.get(f"{server.url}/metrics").text


def test_when_the_template_is_killed_both_processes_are_replaced(server: Server) -> None:
    cli = Cli(server.data)
    cli("topic", "create", "forked")
    cli("produce", "forked", stdin=b"a:1\n")
    before = {name: server.child(name).pid for name in ("broker", "worker")}
    (template,) = psutil.Process(server.process.pid).children()
    assert {each.pid for each in template.children()} == set(before.values())
    template.kill()
    wait_until(
        lambda: all(server.child(name).pid not in (pid, None) for name, pid in before.items()),
        lambda: server.log,
    )
    assert "is gone; killing the process" in server.log
    cli("produce", "forked", stdin=b"b:2\n")
    assert cli.values("forked") == ["1", "2"]
    with server.client() as client:
        wait_until(lambda: client.get("/readyz").status_code == 200, lambda: server.log)


def test_readyz_says_what_is_missing_while_the_worker_is_away(server: Server) -> None:
    worker = psutil.Process(server.child("worker").pid)
    worker.suspend()
    try:
        answer = httpx.get(f"{server.url}/readyz", timeout=180)
        assert answer.status_code == 503
        assert answer.json()["problems"][0] == "the worker has not answered within 2 s"
        text = httpx.get(f"{server.url}/metrics", timeout=180).text
        assert 'lastword_process_up{process="worker"} 0.0' in text
        assert "lastword_kafka_connections 0.0" in text
    finally:
        worker.resume()
    wait_until(lambda: httpx.get(f"{server.url}/readyz", timeout=180).status_code == 200, lambda: server.log)


def test_a_second_server_on_the_folder_is_told_of_the_first(server: Server) -> None:
    refused = Cli(server.data).real("serve", "--kafka", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    assert refused.code == 3
    assert f"process {server.process.pid} on" in refused.err
    assert server.kafka in refused.err


@pytest.mark.parametrize("option", ["--kafka", "--admin"])
def test_a_port_that_is_taken_is_named(server: Server, tmp_path: Path, option: str) -> None:
    addresses = {"--kafka": "127.0.0.1:0", "--admin": "127.0.0.1:0", option: server.kafka}
    refused = Cli(tmp_path / "other").real("serve", *(word for pair in addresses.items() for word in pair))
    assert refused.code == 3
    assert f"at {server.kafka}: Address already in use" in refused.err
    assert "Traceback" not in refused.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_order(tmp_path: Path, number: signal.Signals) -> None:
    server = Server(tmp_path / "data")
    everyone = processes(server)
    Cli(server.data)("topic", "create", "users")
    assert server.stop(number) == 0
    assert not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in everyone)
    assert not (server.data / "run" / "server.json").exists()
    # Closed in order: nothing has to be recovered.
    with lastword.open(server.data) as log:
        assert log.topic("users").describe().partitions[0].leader_epoch == 0


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    broker = psutil.Process(server.child("broker").pid)
    # So that it can't stop in order.
    broker.suspend()
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "a second signal kills at once" in server.log)
    assert server.stop(signal.SIGINT) == 128 + signal.SIGINT
    assert not broker.is_running()


def test_its_processes_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    server = Server(tmp_path / "data")
    children = processes(server)[1:]
    assert len(children) == 3
    os.kill(server.process.pid, signal.SIGKILL)
    _gone, alive = psutil.wait_procs(children, timeout=180)
    assert not alive
    server.wait()
    # What it left behind is in nobody's way.
    cli = Cli(server.data)
    cli("topic", "create", "users")
    assert cli.json("topic", "list")[0]["name"] == "users"
    assert "no server is running" in cli("status", code=1).out


def test_settings_that_are_wrong_are_told_before_anything_starts(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "data")
    cli.data.mkdir()
    (cli.data / "lastword.yaml").write_text("kafka.listen: 9092\n")
    refused = cli.real("serve")
    assert refused.code == 2
    assert "lastword.yaml:1" in refused.err
    assert "kafka.listen" in refused.err
    refused = cli.real("serve", "--config", str(tmp_path / "nix.yaml"))
    assert (refused.code, "nix.yaml" in refused.err) == (2, True)
    (cli.data / "lastword.yaml").unlink()
    refused = cli.real("serve", "--admin", "nowhere")
    assert refused.code == 2
    assert "--admin is 'nowhere'; allowed: HOST:PORT" in refused.err


def test_beyond_this_machine_the_admin_api_wants_a_token(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "data")
    refused = cli.real("serve", "--kafka", "127.0.0.1:0", "--admin", "0.0.0.0:0")
    assert refused.code == 2
    assert "admin.token.file" in refused.err
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123\n")
    settings = f"{SETTINGS}admin.token.file: {token}\n"
    with serving(cli.data, settings=settings, admin="0.0.0.0:0") as server:
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{url}/healthz").status_code == 200
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "Basic 0123456789abcdef0123"},
        ):
            assert httpx.get(f"{url}/v1/topics", headers=headers).status_code == 401
        right = {"Authorization": "Bearer 0123456789abcdef0123", "Host": "lastword.example.com"}
        assert httpx.get(f"{url}/v1/topics", headers=right).json() == []
        # The command line finds it by itself.
        cli("topic", "create", "users")
        token.unlink()
        assert "can't be read" in cli("topic", "list", code=3).err


def test_people_are_told_what_runs_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Files where it is started are not taken for modules.
    for name in ("grp", "uuid", "queue"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a file of somebody else ran')")
    monkeypatch.chdir(tmp_path)
    cli = Cli(tmp_path / "data")
    started = cli.spawn("serve", "--kafka", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    assert started.stdout is not None
    text = ""
    while "Ready" not in text:
        line = started.stdout.readline().decode()
        assert line, started.communicate()
        text += line
    assert f"data folder  {cli.data}" in text
    assert "none (all defaults)" in text
    assert "/docs" in text
    started.send_signal(signal.SIGTERM)
    out, _ = started.communicate(timeout=180)
    assert started.returncode == 0
    assert out.decode().endswith("Stopped.\n")


def test_it_does_not_start_beside_another_worker(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "data")
    cli("topic", "create", "users")
    worker = cli.spawn("worker")
    assert worker.stdout is not None
    try:
        while b"stops it between two commits" not in worker.stdout.readline():
            assert worker.poll() is None
        refused = cli.real("serve", "--kafka", "127.0.0.1:0", "--admin", "127.0.0.1:0")
        assert refused.code == 3
        assert f"process {worker.pid} on" in refused.err
    finally:
        worker.terminate()
        worker.communicate(timeout=180)


@pytest.mark.parametrize("is_new", [False, True])
def test_while_it_starts_status_says_so_and_for_what_it_waits(tmp_path: Path, is_new: bool) -> None:
    cli = Cli(tmp_path / "data")
    if is_new:
        cli.data.mkdir()
    else:
        cli("topic", "create", "users")
    # The broker waits for whoever writes it.
    token = tmp_path / "token"
    os.mkfifo(token, 0o600)
    (cli.data / "lastword.yaml").write_text(f"{SETTINGS}admin.token.file: {token}\n")
    starting = cli.data / "run" / "starting.json"
    arguments = ("serve", "--kafka", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    server = cli.spawn(*arguments)
    try:
        wait_until(starting.exists)
        shown = cli("status", code=1).out
        assert "A server has been starting for " in shown
        assert "Not ready: the server is starting" in shown
        assert "it waits for the broker, which recovers the write-ahead logs" in shown
        assert "no server is running" not in shown
        found = cli.json("status", code=1)
        assert (found["server"], found["ready"], found["starting"]["pid"]) == (None, False, server.pid)
        second = cli.real(*arguments)
        assert (second.code, f"process {server.pid} on " in second.err) == (3, True)
        assert starting.exists()
        token.write_text("a secret of many characters\n")
        wait_until((cli.data / "run" / "server.json").exists)
        wait_until(lambda: not starting.exists())
    finally:
        server.terminate()
        server.communicate(timeout=180)
    assert cli.json("status", code=1)["starting"] is None


def test_a_folder_in_which_no_log_can_be_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    refused = Cli(tmp_path).real("serve", "--kafka", "127.0.0.1:0", "--admin", "127.0.0.1:0")
    assert refused.code == 2
    assert "letter.txt is there" in refused.err
    assert [each.name for each in tmp_path.iterdir()] == ["letter.txt"]


def test_one_that_could_not_start_leaves_no_new_folder(server: Server, tmp_path: Path) -> None:
    cli = Cli(tmp_path / "new")
    assert cli.real("serve", "--kafka", "127.0.0.1:0", "--admin", server.started["admin"]).code == 3
    assert not cli.data.exists()


def test_a_folder_that_has_lost_its_disk_is_not_begun_anew(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        Cli(server.data)("topic", "create", "users")
        (tmp_path / "data").rename(tmp_path / "disk")
        (tmp_path / "data").mkdir()
        pid = json.loads((tmp_path / "disk" / "run" / "server.json").read_text())["children"]["broker"]["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: "could not start: There is no Lastword data in" in server.log, lambda: server.log)
        assert not (tmp_path / "data" / "FORMAT").exists()


def test_one_that_could_not_start_leaves_no_word_of_it(tmp_path: Path) -> None:
    cli = Cli(tmp_path / "data")
    cli("topic", "create", "users")
    with lastword.open(cli.data):
        assert cli.real("serve", "--kafka", "127.0.0.1:0", "--admin", "127.0.0.1:0").code == 3
    assert list((cli.data / "run").iterdir()) == []


HANGING = """
import pathlib, threading
from lastword.compaction.inline import InlineCompactionServiceFactory

class Engine:
    name = "hanging"
    parallel = 1
    def run(self, jobs):
        pathlib.Path({begun!r}).touch()
        threading.Event().wait()
    def close(self):
        pass

class Factory(InlineCompactionServiceFactory):
    def make_engine(self, context):
        return Engine()
"""


def test_it_stops_in_time_also_in_the_middle_of_a_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = tmp_path / "begun"
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "hanging.py").write_text(HANGING.format(begun=str(begun)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "code"))
    monkeypatch.syspath_prepend(tmp_path / "code")
    cli = Cli(tmp_path / "data")
    cli("topic", "create", "users", "--cleanup-policy", "compact", "--config", "compaction.at.seal=false")
    cli("produce", "users", stdin=b"k:1\nk:2\n")
    cli("topic", "seal", "users")
    settings = (
        "compaction.service.factory: hanging:Factory\nworker.initial.delay.ms: 1\nseal.interval.ms: 100\n"
    )
    with serving(cli.data, settings=f"{settings}tiering.lag.ms: 1\n") as server:
        wait_until(begun.exists)
        # It holds up nothing but other compactions.
        cli("produce", "users", stdin=b"k:3\n")
        wait_until(lambda: cli.json("topic", "describe", "users")["partitions"][0]["sealed_end"] == 3)
        assert cli.json("topic", "seal", "users")["problems"] == []
        assert server.stop() == 0
        # The supervisor would have killed it after 30 s.
        assert "a job did not end within 10 s and is aborted" in server.log
        assert "killing it" not in server.log
    assert cli.values("users") == ["1", "2", "3"]
