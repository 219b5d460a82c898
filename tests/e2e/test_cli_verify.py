"""`lastword verify`: which snapshots it takes, what it shows, and that it finds planted damage. On real Spark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.cli import Cli

import lastword
from lastword.log import Log
from lastword.maintenance.verify import Problem, VerifyReport

INLINE = "compaction.service.factory: lastword.compaction.inline:InlineCompactionServiceFactory\n"


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    made = Cli(tmp_path / "data")
    made.data.mkdir()
    (made.data / "lastword.yaml").write_text(
        INLINE + "spark.sql.shuffle.partitions: 1\nspark.master: local[1]\n"
    )
    made("topic", "create", "users", "--cleanup-policy", "compact")
    made("produce", "users", stdin=b"a:1\nb:2\na:3\nb:4\n")
    return made


def test_it_needs_a_compaction_to_look_at(cli: Cli) -> None:
    cli("topic", "create", "events")
    cli("produce", "events", stdin=b"a:1\na:2\n")
    cli("topic", "seal", "events")
    assert "Compact first, or name two snapshots" in cli("verify", "events", code=2).err
    assert "There is no snapshot 7" in cli("verify", "users", "--before", "7", code=2).err
    assert "there is no such topic" in cli("verify", "nope", code=2).err
    assert "--after" in cli("verify", "users", "--after", "x", code=2).err


def test_the_sealing_is_compared_with_the_wal(cli: Cli) -> None:
    cli("topic", "seal", "users")
    shown = cli("verify", "users").out
    assert "4 of them from the WAL" in shown
    assert "beaten by another record of its key        2" in shown
    assert "Nothing was lost." in shown


def a_report(cli: Cli, *problems: Problem, count: int | None = None) -> VerifyReport:
    with lastword.open(cli.data, read_only=True) as log:
        before, after = log.topic("users").history()[-2:]
    return VerifyReport(
        topic="users",
        before=before,
        after=after,
        records_before=1000,
        records_after=900,
        keys=7,
        gone={"expired tombstone": 40, "beaten by another record of its key": 60},
        problems=problems,
        problem_count=len(problems) if count is None else count,
    )


def test_what_is_shown_when_it_holds(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("topic", "compact", "users")
    report = a_report(cli)
    monkeypatch.setattr(Log, "verify", lambda *given, **options: report)
    out = cli("verify", "users").out
    assert re.search(r"before  snapshot \d+, seal of .*Z, 1,000 records\n", out)
    assert re.search(r"after   snapshot \d+, compact of .*Z, 900 records\n", out)
    assert (
        "beaten by another record of its key       60\nexpired tombstone                         40\n" in out
    )
    assert "all                                      100\n" in out
    assert out.endswith("\nNothing was lost.\n")
    data = cli.json("verify", "users")
    assert (data["holds"], data["keys"], data["problems"]) == (True, 7, [])
    assert data["before"]["snapshot_id"] == str(report.before.id)


def test_problems_are_shown_with_their_places_and_the_exit_code_is_1(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("topic", "compact", "users")
    report = a_report(
        cli,
        Problem(partition=0, offset=12, key=b"alice", what="it is gone, and it was the winner of its key"),
        Problem(partition=0, offset=13, key=b"\xff", what="it was not there before"),
        count=31,
    )
    monkeypatch.setattr(Log, "verify", lambda *given, **options: report)
    out = cli("verify", "users", code=1).out
    assert "31 problems:" in out
    assert "0      12  alice  it is gone, and it was the winner of its key" in out
    assert "0      13  \\xff   it was not there before" in out
    assert "Only the first 2 are shown." in out
    data = cli.json("verify", "users", code=1)
    assert (data["holds"], data["problem_count"]) == (False, 31)
    assert [each.get("key") or each["key_base64"] for each in data["problems"]] == ["alice", "/w=="]


def test_it_finds_a_winner_that_was_taken_away(cli: Cli) -> None:
    cli("topic", "compact", "users")
    before = cli.json("topic", "history", "users")["snapshots"][-1]["snapshot_id"]
    with lastword.open(cli.data) as log:
        table = log._catalog.load("users")
        base = table.snapshot()
        table.replace(base, table.plan(base), [], {}, operation="compact")
    process = cli.spawn("verify", "users", "--before", str(before), "--json")
    out, err = process.communicate(timeout=250)
    assert (process.returncode, err) == (1, b"")
    assert b'"problem_count": 2' in out
    assert b"it was the winner of its key" in out
