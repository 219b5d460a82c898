from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.testing.history.scene import Scene

from lastword.testing.history.__main__ import main


def write(path: Path, *, legal: bool) -> str:
    scene = Scene()
    scene.produce("alice=v1")
    scene.fetch({0: "alice=v1"} if legal else {})
    scene.recorder.history().write(path)
    return str(path)


def test_a_legal_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([write(tmp_path / "h.jsonl", legal=True)]) == 0
    assert "nothing checked" in capsys.readouterr().out


def test_stories_of_an_illegal_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([write(tmp_path / "h.jsonl", legal=False)]) == 1
    assert "alice=v1 is missing at offset 0 of users/0" in capsys.readouterr().out


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([write(tmp_path / "h.jsonl", legal=False), "--json", "--rule", "durable"]) == 1
    report = json.loads(capsys.readouterr().out)
    (anomaly,) = report["anomalies"]
    assert (anomaly["rule"], anomaly["offset"], anomaly["key"]) == ("durable", 0, "alice")
    assert anomaly["events"][0]["operation"]["op"] == "produce"


def test_a_file_that_is_no_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "h.jsonl").write_text("{}\n")
    assert main([str(tmp_path / "h.jsonl")]) == 2
    assert "h.jsonl, line 1" in capsys.readouterr().err
