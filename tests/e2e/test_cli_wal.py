"""`lastword wal`: what is shown, and the way out of damage."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.cli import Cli, Terminal


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    made = Cli(tmp_path / "data")
    made("topic", "create", "t")
    return made


def wal_files(cli: Cli) -> list[Path]:
    return sorted(cli.data.glob("wal/default/t/*/0/wal.*.log"))


def damage_second_batch(cli: Cli) -> Path:
    """Three batches of a record each; the second one is damaged, as a disk would do it."""
    sizes = []
    for line in (b"a:1\n", b"b:2\n", b"c:3\n"):
        cli("produce", "t", stdin=line)
        sizes.append(wal_files(cli)[-1].stat().st_size)
    file = wal_files(cli)[-1]
    data = bytearray(file.read_bytes())
    data[sizes[1] - 1] ^= 0xFF
    file.write_bytes(data)
    return file


def test_show_tells_files_apart(cli: Cli) -> None:
    cli("produce", "t", stdin=b"a:1\nb:2\n")
    cli("topic", "seal", "t")
    cli("produce", "t", stdin=b"c:3\n")
    (shown,) = cli.json("wal", "show")
    (partition,) = shown["partitions"]
    assert (partition["sealed_end"], partition["log_end"]) == (2, 3)
    assert [
        (each["seq"], each["first_offset"], each["end_offset"], each["state"]) for each in partition["files"]
    ] == [(1, 0, 2, "sealed"), (2, 2, 3, "active")]
    assert all(each["size_bytes"] > 0 and each["age_ms"] >= 0 for each in partition["files"])
    out = cli("wal", "show", "t").out
    assert "t: 2 WAL files" in out
    assert "0 to 1" in out
    assert "sealed" in out
    assert "active" in out


def test_show_of_an_empty_log_and_of_an_unknown_topic(cli: Cli) -> None:
    cli("topic", "delete", "t", "--yes")
    assert "There are no topics" in cli("wal", "show").out
    assert "no such topic" in cli("wal", "show", "t", code=2).err


def test_a_wal_without_damage(cli: Cli) -> None:
    cli("produce", "t", stdin=b"a:1\n")
    assert cli("wal", "repair", "t").out == "The WAL of t is not damaged.\n"
    assert cli.json("wal", "repair", "t", "--skip")["damage"] == []


def test_damage_is_shown_with_path_bytes_and_offsets(cli: Cli) -> None:
    file = damage_second_batch(cli)
    before = file.read_bytes()
    (found,) = cli.json("wal", "repair", "t", code=1)["damage"]
    assert (found["path"], found["first_offset"], found["end_offset"]) == (str(file), 1, 2)
    assert 0 < found["position"] < found["end_position"] < len(before)
    out = cli("wal", "repair", "t", code=1).out
    for expected in (str(file), "offsets    1\n", "checksum is wrong", "lastword wal repair t --skip"):
        assert expected in out
    assert file.read_bytes() == before


def test_skip_leaves_the_damage_behind_and_the_rest_can_be_read_and_sealed(cli: Cli) -> None:
    damage_second_batch(cli)
    assert cli("consume", "t", code=4).out != ""
    assert "--yes" in cli("wal", "repair", "t", "--skip", code=2).err
    out = cli("wal", "repair", "t", "--skip", "--yes").out
    assert "Skipped 1 damaged range." in out
    assert cli.values("t") == ["1", "3"]
    assert "The WAL of t is not damaged." in cli("wal", "repair", "t").out
    shown = cli("wal", "show").out
    assert "Kept aside" in shown
    assert ".damaged" in shown
    assert cli.json("topic", "seal", "t")["records"] == 2
    assert cli.values("t") == ["1", "3"]


def test_skip_asks_on_a_terminal(cli: Cli) -> None:
    damage_second_batch(cli)
    terminal = Terminal(cli, "wal", "repair", "t", "--skip")
    terminal.expect("Permanently skip 1 damaged range with 1 offset of t? [y/N]")
    terminal.type("\n")
    assert terminal.end() == 1
    assert "Nothing was changed." in terminal.shown
    cli("wal", "repair", "t", code=1)


def test_a_file_that_is_gone_is_shown_and_repaired(cli: Cli) -> None:
    cli("produce", "t", stdin=b"a:1\n")
    (file,) = wal_files(cli)
    damaged = damage_second_batch(cli)
    assert damaged == file
    cli("topic", "seal", "t", code=1)
    cli("produce", "t", stdin=b"d:4\n")
    file.unlink()
    (shown,) = cli.json("wal", "show")
    assert [each["state"] for each in shown["partitions"][0]["files"]] == ["gone", "active"]
    assert "is missing" in cli("wal", "repair", "t", code=1).out
    cli("wal", "repair", "t", "--skip", "--yes")
    assert cli.values("t") == ["4"]
