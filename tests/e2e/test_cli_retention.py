"""`lastword retention run`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.cli import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Two sealed topics: everything of `old` may go, nothing of `kept`."""
    made = Cli(tmp_path / "data")
    made.data.mkdir()
    (made.data / "lastword.yaml").write_text(
        "snapshot.retention.ms: 0\ncollect.grace.ms: 0\nlocal.retention.ms: 0\n"
    )
    made("topic", "create", "old", "--config", "retention.ms=1000")
    made("topic", "create", "kept", "--config", "local.retention.ms=60000")
    for name in ("old", "kept"):
        made("produce", name, "--jsonl", stdin=b'{"key": "a", "value": "1", "timestamp": 1600000000000}\n')
        made(
            "topic", "alter", name, "--config", "cleanup.policy=" + ("delete" if name == "old" else "compact")
        )
        made("topic", "seal", name)
    return made


def test_a_dry_run_shows_what_would_go_and_changes_nothing(cli: Cli) -> None:
    before = sorted(path for path in cli.data.rglob("*") if "leases" not in path.parts)
    out = cli("retention", "run", "--dry-run").out
    assert "segment   old            0        0" in out
    assert "retention.ms" in out
    assert "WAL file  old" in out
    assert "kept" not in out
    assert sorted(path for path in cli.data.rglob("*") if "leases" not in path.parts) == before
    assert cli.values("old") == ["1"]


def test_a_run_does_what_the_dry_run_said(cli: Cli) -> None:
    planned = cli.json("retention", "run", "--dry-run")
    done = cli.json("retention", "run")
    assert [each["rule"] for each in done["segments"]] == ["retention.ms"]
    assert [each["rule"] for each in done["wal_files"]] == ["local.retention.ms"]
    assert [each["path"] for each in done["segments"]] == [each["path"] for each in planned["segments"]]
    assert [each["path"] for each in done["wal_files"]] == [each["path"] for each in planned["wal_files"]]
    assert not Path(done["wal_files"][0]["path"]).exists()
    assert done["log_starts"] == [{"topic": "old", "partition": 0, "log_start": 1}]
    assert done["problems"] == []
    assert cli.values("old") == []
    assert cli.values("kept") == ["1"]


def test_in_the_end_there_is_nothing_to_remove(cli: Cli) -> None:
    assert "Removed in total:" in cli("retention", "run").out
    cli("retention", "run")
    assert cli("retention", "run").out == "There is nothing to remove.\n"


def test_only_the_topics_that_are_named(cli: Cli) -> None:
    assert cli.json("retention", "run", "--topic", "kept")["segments"] == []
    assert cli.values("old") == ["1"]
    assert "no topic 'nope'" in cli("retention", "run", "--topic", "nope", code=2).err


def test_verbose_logs_each_deletion(cli: Cli) -> None:
    err = cli("retention", "run", "-v").err
    assert "info: old partition 0: removed the segment with offsets 0 to 0" in err
    assert "info: deleted " in err
