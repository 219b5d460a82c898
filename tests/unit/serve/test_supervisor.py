"""A process that takes long to start is waited for, and that is said; one that keeps ending is paused for longer."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from tests.support.waiting import wait_until

from lastword.clock import SystemClock
from lastword.errors import UnavailableError
from lastword.serve import supervisor
from lastword.serve.child import ServeOptions
from lastword.serve.supervisor import Supervisor, _Child, next_pause_s

SLOW = """\
import socket, sys, time
from pathlib import Path
while not Path({flag!r}).exists():
    time.sleep(0.01)
{then}
"""
READY = 'socket.socket(fileno=int(sys.argv[3])).sendall(b\'{"ready": {"slow": 1}}\\n\')\ntime.sleep(60)'


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
    child = _Child("broker", "slow_child")
    starting = asyncio.ensure_future(made._start(child))

    def said() -> bool:
        return caplog.text.count("has been starting for") >= 2

    try:
        await asyncio.to_thread(wait_until, said)
        assert not starting.done()
        flag.touch()
        return await starting
    finally:
        assert child.process is not None
        if child.process.returncode is None:
            child.process.kill()
            await child.process.wait()
        if child.leash is not None:
            child.leash.close()


@pytest.mark.parametrize("then", [READY, "sys.exit(7)"])
def test_a_slow_start_is_waited_for(
    tmp_path: Path, options: ServeOptions, caplog: pytest.LogCaptureFixture, then: str
) -> None:
    flag = tmp_path / "go-on"
    (tmp_path / "slow_child.py").write_text(SLOW.format(flag=str(flag), then=then))
    caplog.set_level(logging.WARNING)
    if then is READY:
        assert asyncio.run(start(options, flag, caplog)) == {"slow": 1}
    else:
        with pytest.raises(UnavailableError, match="exit code 7"):
            asyncio.run(start(options, flag, caplog))


def test_the_pause_doubles_until_a_process_has_served_for_longer_than_it_was_paused() -> None:
    pauses = [0.0]
    for ran_s in (0.0, 0.0, 0.4, 2.0, 0.0, 0.0, 5.0, 16.0, 0.5):
        pauses.append(next_pause_s(pauses[-1], ran_s))
    assert pauses[1:] == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 0.5, 1.0]
