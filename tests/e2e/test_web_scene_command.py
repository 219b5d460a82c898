"""`lastword scene`: a server to throw away."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import httpx
from tests.support.cli import COMMAND, DEADLINE_S


def test_the_command_serves_the_scene_and_leaves_nothing_behind(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [COMMAND, "scene", "--no-open", "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path), "HOME": str(tmp_path)},
        cwd=tmp_path,
    )
    try:
        assert process.stdout is not None
        text = b""
        while not text.endswith(b"\n}\n"):
            line = process.stdout.readline()
            assert line, "it ended before it was ready"
            text += line
        said = json.loads(text)
        assert httpx.get(said["scene"]).status_code == 200
        admin = f"http://{said['admin']}"
        picture = httpx.get(f"{admin}/v1/topics/{said['topic']}/scene").json()["picture"]
        assert {each["key"]: each["value"] for each in picture["state"]} == {"alice": "Paris", "bob": "Milan"}
        run = httpx.post(f"{admin}/v1/topics/{said['topic']}/scene/run", json={}, timeout=DEADLINE_S).json()[
            "run"
        ]
        assert run["committed"] is not None
        assert httpx.post(f"{admin}/v1/scene/stories", json={}, timeout=DEADLINE_S).status_code == 201
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(DEADLINE_S)
        assert process.stdout is not None
        process.stdout.close()
    assert code == 0
    assert list(tmp_path.glob("lastword-*")) == []
