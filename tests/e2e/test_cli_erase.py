"""`lastword erase`: how keys are given, what it asks, what it reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.cli import Cli, Terminal

import lastword
from lastword.log import Log
from lastword.maintenance.erase import EraseReport


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    made = Cli(tmp_path / "data")
    made("topic", "create", "users", "--cleanup-policy", "compact")
    made("produce", "users", stdin=b"alice:Oslo\nbob:Rome\n")
    made("topic", "seal", "users")
    made("produce", "users", stdin=b"alice:Bergen\ncarol:Bern\n")
    return made


def keys(cli: Cli) -> list[str | None]:
    return [each.get("key") for each in cli("consume", "users", "--json").lines]


def test_every_record_of_the_key_is_gone_from_every_file(cli: Cli) -> None:
    out = cli("erase", "users", "--key", "alice", "--yes").out
    assert out.startswith("Erased 2 records of 1 key from users.\n")
    assert "files rewritten    2\n" in out
    assert out.endswith("No byte of them is left.\n")
    assert keys(cli) == ["bob", "carol"]
    ours = [path for path in cli.data.rglob("*") if path.is_file() and path.suffix in (".parquet", ".log")]
    assert ours
    assert [path for path in ours if b"alice" in path.read_bytes()] == []


def test_keys_come_as_text_as_base64_and_from_a_file(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_bytes(b"bob\n\nnobody\nbob\n")
    report = cli.json(
        "erase", "users", "--key", "alice", "--key-base64", "Y2Fyb2w=", "--keys-file", str(file), "--yes"
    )
    assert (report["keys"], report["records_erased"], report["left"]) == (4, 4, [])
    assert report["erased"] is True
    assert keys(cli) == []


def test_a_key_that_nobody_has(cli: Cli) -> None:
    out = cli("erase", "users", "--key", "nobody", "--yes").out
    assert out.startswith("No sealed record of users was found for 1 key.\n")
    assert len(keys(cli)) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --key, --key-base64 or --keys-file"),
        (("--key-base64", "%"), "is not base64"),
        (("--keys-file", "/nowhere/keys"), "Can't read /nowhere/keys: No such file or directory"),
        (("--key", "alice"), "confirm with --yes"),
    ],
)
def test_what_does_not_go(cli: Cli, arguments: tuple[str, ...], message: str) -> None:
    assert message in cli("erase", "users", *arguments, code=2).err
    assert len(keys(cli)) == 4


def test_an_unknown_topic_is_told_before_anything_is_asked(cli: Cli) -> None:
    assert "there is no such topic" in cli("erase", "nope", "--key", "alice", code=2).err


def test_it_asks_on_a_terminal(cli: Cli) -> None:
    terminal = Terminal(cli, "erase", "users", "--key", "alice")
    terminal.expect("Permanently erase every record of 1 key from users")
    terminal.type("n\n")
    assert terminal.end() == 1
    assert "Nothing was erased." in terminal.shown
    assert len(keys(cli)) == 4
    terminal = Terminal(cli, "erase", "users", "--key", "alice")
    terminal.expect("[y/N]")
    terminal.type("y\n")
    assert terminal.end() == 0
    assert keys(cli) == ["bob", "carol"]


def test_it_works_beside_the_process_that_writes(cli: Cli) -> None:
    with lastword.open(cli.data) as log:
        log.topic("users").append("alice", "Paris")
        assert cli.json("erase", "users", "--key", "alice", "--yes")["records_erased"] == 3
        log.topic("users").append("dave", "Rome")
    assert keys(cli) == ["bob", "carol", "dave"]


def test_what_is_left_is_told_and_the_exit_code_is_1(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    report = EraseReport(
        topic="users",
        keys=1,
        records_erased=1,
        files_rewritten=1,
        files_removed=1,
        snapshots_expired=2,
        wal_files_removed=0,
        left=("/wal/7.log: it could not be removed",),
    )
    monkeypatch.setattr(Log, "erase", lambda *given, **options: report)
    out = cli("erase", "users", "--key", "alice", "--yes", code=1).out
    assert "Left\n/wal/7.log: it could not be removed\n" in out
    assert "The erasure is not complete." in out
    data = cli.json("erase", "users", "--key", "alice", "--yes", code=1)
    assert (data["erased"], data["left"]) == (False, ["/wal/7.log: it could not be removed"])
