"""A process that takes long to start is waited for, and that is said; one that keeps ending is paused for longer."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest
from tests.support.waiting import wait_until

from lastword.clock import SystemClock
from lastword.errors import UnavailableError
from lastword.serve import supervisor
from lastword.serve.child import ServeOptions
from lastword.serve.forked import Nursery
from lastword.serve.supervisor import Supervisor, _Child, next_pause_s

SLOW = """\
import socket, sys, time
from pathlib import Path
from lastword.serve.template import Template

def serve(options, leash):
    while not Path({flag!r}).exists():
        time.sleep(0.01)
    {then}

Template(socket.socket(fileno=int(sys.argv[1])), {{"broker": serve}}).run()
"""
READY = "leash.ready(slow=1); time.sleep(60)"


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServeOptions:
    monkeypatch.setattr(supervisor, "START_S", 0.05)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return ServeOptions(
        data=str(tmp_path / "data"),
        config=None,
        kafka_host="127.0.0.1",
        kafka_port=0,
        advertised_host=None,
        advertised_port=None,
        admin_host="127.0.0.1",
        admin_port=0,
        token_file=None,
        channel="",
    )


async def start(options: ServeOptions, flag: Path, caplog: pytest.LogCaptureFixture) -> object:
    """Start the child, and let it go on after two lines of the log."""
    made = Supervisor(options, SystemClock(), ready=lambda _started: None)
    made._nursery = Nursery("slow_template")
    child = _Child("broker")
    starting = asyncio.ensure_future(made._start(child))

    def said() -> bool:
        return caplog.text.count("has been starting for") >= 2

    try:
        await asyncio.to_thread(wait_until, said)
        assert not starting.done()
        flag.touch()
        return await starting
    finally:
        assert child.process is not None and child.leash is not None
        child.process.send_signal(signal.SIGKILL)
        await child.process.wait()
        child.leash.close()
        await made._nursery.close()


@pytest.mark.parametrize("then", [READY, "sys.exit(7)"])
def test_a_slow_start_is_waited_for(
    tmp_path: Path, options: ServeOptions, caplog: pytest.LogCaptureFixture, then: str
) -> None:
    flag = tmp_path / "go-on"
    (tmp_path / "slow_template.py").write_text(SLOW.format(flag=str(flag), then=then))
    caplog.set_level(logging.WARNING)
    if then is READY:
        assert asyncio.run(start(options, flag, caplog)) == {"slow": 1}
    else:
        with pytest.raises(UnavailableError, match="exit code 7"):
            asyncio.run(start(options, flag, caplog))


def test_what_keeps_the_template_from_loading_is_an_error(tmp_path: Path, options: ServeOptions) -> None:
    (tmp_path / "broken_template.py").write_text("import no_such_module")

    async def start() -> None:
        made = Supervisor(options, SystemClock(), ready=lambda _started: None)
        made._nursery = Nursery("broken_template")
        try:
            await made._start(_Child("broker"))
        finally:
            await made._nursery.close()

    with pytest.raises(UnavailableError, match="its template process ended: exit code 1"):
        asyncio.run(start())


def test_a_stop_while_the_template_loads_is_not_waited_for(tmp_path: Path, options: ServeOptions) -> None:
    (tmp_path / "slow_template.py").write_text("import time\ntime.sleep(600)")

    async def start() -> None:
        made = Supervisor(options, SystemClock(), ready=lambda _started: None)
        made._nursery = Nursery("slow_template")
        starting = asyncio.ensure_future(made._run())
        await asyncio.to_thread(wait_until, lambda: made._nursery._template is not None)
        made._signalled(signal.SIGTERM)
        assert await starting == 0

    asyncio.run(start())


SLOW_THIRD = """\
import os, time
from lastword.serve import template

forks, real = 0, os.fork

def fork():
    global forks
    forks += 1
    if forks > 2:
        time.sleep({pause_s})
    return real()

def serve(options, leash):
    leash.ready()
    time.sleep(600)

os.fork = fork
template._load = lambda: dict.fromkeys(["broker", "worker"], serve)
template.main()
"""


@pytest.mark.parametrize("pause_s", [0.2, 600])
def test_a_stop_while_a_process_is_started_again(
    tmp_path: Path, options: ServeOptions, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A template that sleeps tells of no end.
    monkeypatch.setattr(supervisor, "STOP_S", 1.0)
    monkeypatch.setattr(supervisor, "KILLED_S", 1.0)
    (tmp_path / "slow_template.py").write_text(SLOW_THIRD.format(pause_s=pause_s))

    async def start() -> int:
        made = Supervisor(options, SystemClock(), ready=lambda _started: None)
        made._take_addresses = lambda _addresses: None  # type: ignore[method-assign]
        made._announce = lambda: None  # type: ignore[method-assign]
        made._nursery = Nursery("slow_template")
        serving = asyncio.ensure_future(made._run())
        await asyncio.to_thread(wait_until, lambda: made._worker.state.pid is not None)
        assert made._broker.process is not None
        made._broker.process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: made._nursery._answer is not None)
        made._signalled(signal.SIGTERM)
        return await asyncio.wait_for(serving, 60)

    assert asyncio.run(start()) == 0


def test_a_stop_for_all_processes_leaves_the_order_to_the_supervisor(
    tmp_path: Path, options: ServeOptions
) -> None:
    """As a service manager sends it that knows nothing of an order."""
    (tmp_path / "quick_template.py").write_text(
        "import signal, time\n"
        "from lastword.serve import template\n"
        "def serve(options, leash):\n"
        "    leash.ready()\n"
        "    time.sleep(600)\n"
        "template._load = lambda: {'broker': serve}\n"
        "template.main()\n"
    )

    async def start() -> int:
        made = Supervisor(options, SystemClock(), ready=lambda _started: None)
        made._nursery = Nursery("quick_template")
        child = _Child("broker")
        assert await made._start(child) == {}
        assert child.process is not None and child.leash is not None
        assert made._nursery._template is not None
        for pid in (made._nursery._template.pid, child.process.pid):
            os.kill(pid, signal.SIGTERM)
        code = await child.process.wait()
        assert made._nursery._template.returncode is None
        child.leash.close()
        await made._nursery.close()
        return code

    # By its own signal, not because the template was gone.
    assert asyncio.run(start()) == -signal.SIGTERM


def test_the_pause_doubles_until_a_process_has_served_for_longer_than_it_was_paused() -> None:
    pauses = [0.0]
    for ran_s in (0.0, 0.0, 0.4, 2.0, 0.0, 0.0, 5.0, 16.0, 0.5):
        pauses.append(next_pause_s(pauses[-1], ran_s))
    assert pauses[1:] == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 0.5, 1.0]
