"""`lastword relocate`, and what every command says of a copy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.support.cli import Cli, Terminal
from tests.support.server import serving

from lastword.folder import running


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    cli = Cli(tmp_path / "data")
    cli("topic", "create", "users", "--cleanup-policy", "compact")
    cli("produce", "users", stdin=b"alice:Oslo\nbob:Rome\n")
    cli("topic", "seal", "users")
    cli("produce", "users", stdin=b"carol:Bern\n")
    return cli


def copy_of(cli: Cli, name: str = "copy") -> Cli:
    return Cli(Path(shutil.copytree(cli.data, cli.data.with_name(name))))


COMMANDS = [
    ("topic", "list"),
    ("topic", "delete", "users", "--yes"),
    ("topic", "describe", "users"),
    ("topic", "seal", "users"),
    ("consume", "users"),
    ("produce", "users"),
    ("compact",),
    ("topic", "compact", "users"),
    ("erase", "users", "--key", "alice", "--yes"),
    ("retention", "run"),
    ("wal", "show"),
    ("worker", "--once"),
    ("connect", "status"),
    ("connect", "pause", "pg"),
    ("connect", "reset", "pg", "--yes"),
    ("group", "list"),
    ("status",),
    ("serve", "--kafka", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
]


def test_no_command_touches_a_copy_or_its_original(cli: Cli) -> None:
    copy = copy_of(cli)
    for arguments in COMMANDS:
        refused = copy(*arguments, "--json", code=2, stdin=b"dave:Kyiv\n")
        assert refused.error["type"] == "ForeignFolderError", (arguments, refused)
        assert f"{copy.data} is a copy of {cli.data}" in refused.error["message"]
        assert f"`lastword relocate --data {copy.data}`" in refused.error["message"]
    assert cli.values("users") == ["Oslo", "Rome", "Bern"]


def test_a_copy_that_was_relocated_deletes_its_own_files_only(cli: Cli) -> None:
    copy = copy_of(cli)
    done = copy.json("relocate", "--yes")
    assert (done["standing"], done["original"], done["topics"], done["relocated"]) == (
        "copy",
        str(cli.data),
        ["users"],
        True,
    )
    assert copy.values("users") == ["Oslo", "Rome", "Bern"]

    copy("topic", "delete", "users", "--yes")

    assert copy.json("topic", "list") == []
    assert list((copy.data / "warehouse").rglob("*.parquet")) == []
    assert cli.values("users") == ["Oslo", "Rome", "Bern"]


def test_it_shows_what_it_will_do_and_asks(cli: Cli) -> None:
    copy = copy_of(cli)
    refused = copy("relocate", code=2)
    assert f"copy of            {cli.data}" in refused.out
    assert "topics to rewrite  users" in refused.out
    assert "confirm with --yes" in refused.err

    terminal = Terminal(copy, "relocate")
    terminal.expect("[y/N]")
    terminal.type("n\n")
    assert terminal.end() == 1
    copy("topic", "list", code=2)

    terminal = Terminal(copy, "relocate")
    terminal.expect("[y/N]")
    terminal.type("y\n")
    terminal.expect("the metadata of 1 topic was rewritten")
    assert terminal.end() == 0
    assert copy.values("users") == ["Oslo", "Rome", "Bern"]
    assert "there is nothing to relocate" in copy("relocate").out


def test_a_moved_folder_says_how_to_go_on(cli: Cli, tmp_path: Path) -> None:
    moved = Cli(cli.data.rename(tmp_path / "moved"))
    refused = moved("consume", "users", code=2)
    assert f"moved here from {cli.data}" in refused.err
    assert f"`lastword relocate --data {moved.data}`" in refused.err
    assert moved.json("relocate", "--yes")["standing"] == "moved"
    assert moved.values("users") == ["Oslo", "Rome", "Bern"]
    # Opened for writing it needs no command.
    back = Cli(moved.data.rename(tmp_path / "back"))
    back("produce", "users", stdin=b"dave:Kyiv\n")
    assert back.values("users") == ["Oslo", "Rome", "Bern", "Kyiv"]


def test_there_must_be_a_log(tmp_path: Path) -> None:
    assert "There is no Lastword data" in Cli(tmp_path / "none")("relocate", "--yes", code=2).err


def test_a_copy_of_a_folder_that_is_served(tmp_path: Path) -> None:
    """The copy has the file that names the server of the original, which is running on this machine."""
    cli = Cli(tmp_path / "data")
    with serving(cli.data) as server:
        cli("topic", "create", "users")
        cli("produce", "users", stdin=b"alice:Oslo\n")
        copy = copy_of(cli)
        assert running.load(cli.data) is not None
        assert running.load(copy.data) is None
        copy("topic", "delete", "users", "--yes", code=2)
        copy("relocate", "--yes")

        assert copy.values("users") == ["Oslo"]
        copy("produce", "users", stdin=b"bob:Rome\n")
        copy("topic", "seal", "users")
        assert copy.values("users") == ["Oslo", "Rome"]
        copy("topic", "delete", "users", "--yes")

        assert cli.values("users") == ["Oslo"]
        assert [each["name"] for each in cli.json("topic", "list")] == ["users"]
        assert server.process.poll() is None
