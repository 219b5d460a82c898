"""`lastword topic`, as a person and as a program use it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest
from tests.support.cli import Cli, Terminal


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "data")


@pytest.fixture
def users(cli: Cli) -> Cli:
    cli("topic", "create", "users", "--partitions", "3", "--cleanup-policy", "compact")
    cli("produce", "users", stdin=b"alice:Oslo\nbob:Rome\ncarol:Bern\nalice:Paris\n")
    return cli


# ------------------------------------------------------------------------------------- create and alter


def test_both_ways_to_give_the_policy(cli: Cli) -> None:
    cli("topic", "create", "user-profiles", "--partitions", "12", "--config", "cleanup.policy=compact")
    cli("topic", "create", "my-table", "--cleanup-policy", "compact")
    listed = cli.json("topic", "list")
    assert [(each["name"], each["partitions"], each["cleanup_policy"]) for each in listed] == [
        ("my-table", 1, "compact"),
        ("user-profiles", 12, "compact"),
    ]


def test_create_says_what_it_created(cli: Cli) -> None:
    assert (
        cli("topic", "create", "clicks").out == "Created topic clicks: 1 partition, cleanup.policy delete.\n"
    )


def test_config_is_a_file_without_equals_and_a_setting_with_one(cli: Cli, tmp_path: Path) -> None:
    settings = tmp_path / "broker.yaml"
    settings.write_text("retention.ms: 5000\n")
    cli("topic", "create", "t", "--config", "segment.ms=7000", "--config", str(settings))
    cli("topic", "alter", "t", "--config", str(settings), "--config", "segment.bytes=1000000")
    shown = {
        each["key"]: each for each in cli.json("config", "show", "--topic", "t", "--config", str(settings))
    }
    assert (shown["segment.ms"]["value"], shown["segment.ms"]["source"]) == ("7000", "topic")
    assert (shown["retention.ms"]["value"], shown["retention.ms"]["source"]) == ("5000", "broker")
    assert shown["segment.bytes"]["value"] == "1000000"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--config", "retention.ms"), "A setting is given as --config KEY=VALUE"),
        (("--config", "retention.ms=7d"), "retention.ms is '7d'; allowed: a whole number"),
        (("--config", "retention.msec=7"), "did you mean 'retention.ms'"),
        (("--config", "retention.ms=1", "--config", "retention.ms=2"), "'retention.ms' is given twice"),
        (
            ("--cleanup-policy", "compact", "--config", "cleanup.policy=delete"),
            "'cleanup.policy' is given twice",
        ),
        (("--cleanup-policy", "shred"), "cleanup.policy is 'shred'; allowed"),
        (("--partitions", "0"), "1 to 10000 are allowed"),
        (("--partitions", "many"), "--partitions"),
    ],
)
def test_a_wrong_create_says_what_is_allowed_and_creates_nothing(
    cli: Cli, arguments: tuple[str, ...], message: str
) -> None:
    cli("topic", "create", "there")
    assert message in cli("topic", "create", "t", *arguments, code=2).err
    assert [each["name"] for each in cli.json("topic", "list")] == ["there"]


def test_only_create_makes_the_data_folder(cli: Cli) -> None:
    for arguments in (
        ["topic", "list"],
        ["produce", "t"],
        ["consume", "t"],
        ["retention", "run"],
        ["wal", "show"],
    ):
        assert "`lastword topic create` starts a log there" in cli(*arguments, code=2).err
        assert not cli.data.exists()
    cli("topic", "create", "t")
    assert cli.data.exists()


def test_alter_shows_what_changed(users: Cli) -> None:
    changed = users.json("topic", "alter", "users", "--config", "segment.ms=9000")["changed"]
    assert changed == {
        "segment.ms": {
            "before": {"value": "604800000", "source": "default"},
            "after": {"value": "9000", "source": "topic"},
        }
    }
    assert (
        "9000 (topic)  604800000 (default)"
        in users("topic", "alter", "users", "--delete-config", "segment.ms").out
    )
    assert (
        "can't unset 'segment.ms', which is not set for it"
        in users("topic", "alter", "users", "--delete-config", "segment.ms", code=2).err
    )


def test_alter_needs_something_to_do(users: Cli) -> None:
    assert "nothing to change" in users("topic", "alter", "users", code=2).err
    both = users(
        "topic", "alter", "users", "--config", "segment.ms=1", "--delete-config", "segment.ms", code=2
    )
    assert "both set and deleted" in both.err


def test_more_partitions_on_a_compacted_topic_come_with_a_warning(users: Cli) -> None:
    result = users("topic", "alter", "users", "--partitions", "5")
    assert result.err.startswith("warning: users is compacted")
    assert "partitions  3       5" in result.out
    assert "can't be taken away" in users("topic", "alter", "users", "--partitions", "2", code=2).err


# ------------------------------------------------------------------------------------ list and describe


def test_an_empty_log_has_no_topics(cli: Cli) -> None:
    cli("topic", "create", "t")
    cli("topic", "delete", "t", "--yes")
    assert "There are no topics" in cli("topic", "list").out
    assert cli.json("topic", "list") == []


def test_list_shows_the_settings_of_each_topic(cli: Cli) -> None:
    cli("topic", "create", "clicks", "--config", "retention.ms=5000", "--config", "segment.ms=100")
    out = cli("topic", "list").out
    assert "clicks           1  delete          retention.ms=5000, segment.ms=100" in out


def test_describe_shows_positions_storage_settings_and_readers(users: Cli) -> None:
    users("topic", "seal", "users")
    users("produce", "users", stdin=b"dave:Rome\n")
    users("consume", "users", "--reader", "export", "--max", "1")
    described = users.json("topic", "describe", "users")
    assert described["cleanup_policy"] == "compact"
    # Without alice:Oslo, which is superseded in the same seal.
    assert sum(each["sealed_records"] for each in described["partitions"]) == 3
    assert sum(each["unsealed_records"] for each in described["partitions"]) == 1
    assert all(each["log_end"] >= each["sealed_end"] for each in described["partitions"])
    # It has read alice:Paris.
    assert described["readers"]["export"]["behind"] == 3
    assert described["location"].startswith("file://")
    assert Path(described["wal_folder"]).is_dir()
    text = users("topic", "describe", "users").out
    for expected in (
        "log start  first dirty  sealed end  log end",
        "sealed in",
        "WAL in",
        "cleanup.policy  compact  topic",
        "dirty",
        "export               3",
    ):
        assert expected in text
    assert "Problems" not in text


def test_describe_shows_what_is_due_and_what_the_last_compaction_did(cli: Cli) -> None:
    cli.data.mkdir()
    (cli.data / "lastword.yaml").write_text(
        "compaction.service.factory: lastword.compaction.inline:InlineCompactionServiceFactory\n"
    )
    cli("topic", "create", "users", "--cleanup-policy", "compact", "--config", "compaction.at.seal=false")
    cli("produce", "users", stdin="".join(f"k{index % 10}:{index}\n" for index in range(100)).encode())
    cli("topic", "seal", "users")
    (due,) = cli.json("topic", "describe", "users")["partitions"]
    assert (due["due"], due["dirty_ratio"], due["last_run"]) == ("min.cleanable.dirty.ratio", 1.0, None)
    assert due["estimate"]["garbage_records"] == 90
    text = cli("topic", "describe", "users").out
    assert "0   1.00       90" in text
    assert "-  due\n" in text
    assert "Due because of min.cleanable.dirty.ratio: partition 0." in text
    assert "worker          none is running" in text
    cli("topic", "compact", "users")
    (done,) = cli.json("topic", "describe", "users")["partitions"]
    assert (done["due"], done["dirty_ratio"], done["first_dirty"]) == (None, 0.0, 100)
    assert set(done["last_run"]) == {"time_ms", "duration_ms", "reclaimed_bytes"}
    text = cli("topic", "describe", "users").out
    assert "s ago" in text
    assert "Due" not in text


def test_a_dead_process_is_not_taken_for_a_worker(users: Cli) -> None:
    lock = users.data / "locks" / "worker.lock"
    lock.parent.mkdir(exist_ok=True)
    gone = subprocess.Popen(["true"])
    gone.wait()
    said = {"pid": gone.pid, "host": socket.gethostname(), "command": "lastword worker"}
    lock.write_text(json.dumps(said))
    assert users.json("topic", "describe", "users")["worker"] is None
    lock.write_text(json.dumps({**said, "pid": os.getpid()}))
    assert f"process {os.getpid()} on " in users.json("topic", "describe", "users")["worker"]


# ---------------------------------------------------------------------------------------------- history


def test_history_lists_snapshots_with_what_each_did(users: Cli) -> None:
    users("topic", "seal", "users")
    users("topic", "alter", "users", "--config", "segment.ms=9000")
    users("topic", "delete-records", "users", "--partition", "0", "--before", "-1")
    found = users.json("topic", "history", "users")["snapshots"]
    operations = [each["operation"] for each in found]
    assert operations[:2] == ["create", "seal"]
    assert operations[-1] == "delete-records"
    assert [each["parent_id"] for each in found[1:]] == [each["snapshot_id"] for each in found[:-1]]
    # Without alice:Oslo, which is superseded in the same seal.
    assert found[1]["details"]["records"] == "3"
    assert sum(each["sealed_end"] for each in found[1]["partitions"]) == 4
    out = users("topic", "history", "users").out
    assert "records: 3" in out
    assert "log start of partition 0: " in out
    assert "there is no such topic" in users("topic", "history", "nope", code=2).err


def test_history_fits_80_columns(users: Cli) -> None:
    users("topic", "seal", "users")
    terminal = Terminal(users, "topic", "history", "users", columns=80)
    assert terminal.end() == 0
    assert [line for line in terminal.shown.splitlines() if len(line) > 80] == []


def test_describe_fits_80_columns(users: Cli) -> None:
    terminal = Terminal(users, "topic", "describe", "users", columns=80)
    assert terminal.end() == 0
    paths = ("sealed in", "WAL in")
    long = [line for line in terminal.shown.splitlines() if len(line) > 80 and not line.startswith(paths)]
    assert long == []
    assert "…" not in terminal.shown


def test_a_table_in_a_pipe_is_not_cut(cli: Cli) -> None:
    name = "a" * 200
    cli("topic", "create", name)
    assert f"{name}           1  delete" in cli("topic", "list").out


def test_text_is_not_taken_for_markup(cli: Cli, tmp_path: Path) -> None:
    settings = tmp_path / "[red]x.yaml"
    settings.write_text("retention.ms: 5000\n")
    assert "[red]x.yaml:1" in cli("config", "show", "--config", str(settings)).out


# ------------------------------------------------------------------------- delete, seal, delete-records


def test_delete_asks_on_a_terminal(users: Cli) -> None:
    terminal = Terminal(users, "topic", "delete", "users")
    terminal.expect("Permanently delete topic users (3 partitions) with everything in it? [y/N]")
    terminal.type("n\n")
    assert terminal.end() == 1
    assert "Nothing was deleted." in terminal.shown
    terminal = Terminal(users, "topic", "delete", "users")
    terminal.expect("[y/N]")
    terminal.type("y\n")
    assert terminal.end() == 0
    assert users.json("topic", "list") == []


def test_delete_without_a_terminal_needs_yes(users: Cli) -> None:
    assert "--yes" in users("topic", "delete", "users", code=2).err
    assert users("topic", "delete", "users", "--yes").out == "Deleted topic users.\n"
    assert "no topic 'users'" in users("topic", "delete", "users", "--yes", code=2).err


def test_seal_shows_what_was_sealed(users: Cli) -> None:
    out = users("topic", "seal", "users").out
    assert out.startswith("Sealed 4 records of users in ")
    assert ", 1 of them superseded and left out:\n" in out
    assert "partition  offsets  records" in out
    assert "is already sealed" in users("topic", "seal", "users").out
    report = users.json("topic", "seal", "users")
    assert (report["segments"], report["problems"]) == ([], [])


def test_seal_of_a_damaged_partition_ends_with_1_and_the_reason_once(cli: Cli) -> None:
    cli("topic", "create", "t")
    cli("produce", "t", stdin=b"a:1\n")
    (file,) = cli.data.glob("wal/default/t/*/0/wal.*.log")
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    result = cli("topic", "seal", "t", code=1)
    assert "Nothing of t was sealed." in result.out
    assert result.out.count("checksum is wrong") == 1
    assert result.err == ""


def test_delete_records_moves_the_log_start(cli: Cli) -> None:
    cli("topic", "create", "t")
    cli("produce", "t", stdin=b"a:1\nb:2\nc:3\n")
    result = cli("topic", "delete-records", "t", "--partition", "0", "--before", "2")
    assert result.out == "Deleted offsets 0 to 1 of t partition 0.\n"
    assert cli.values("t") == ["3"]
    assert cli.json("topic", "delete-records", "t", "--partition", "0", "--before", "-1")["log_start"] == 3
    assert "nothing to delete" in cli("topic", "delete-records", "t", "--partition", "0", "--before", "3").out
    assert "0 to 3" in cli("topic", "delete-records", "t", "--partition", "0", "--before", "4", code=2).err
    assert (
        "no partition 1"
        in cli("topic", "delete-records", "t", "--partition", "1", "--before", "0", code=2).err
    )


# -------------------------------------------------------------------------------------- a damaged table


@pytest.fixture
def unreadable(users: Cli) -> Cli:
    """The metadata file of the table of `users` is damaged; `clicks` is whole."""
    users("topic", "create", "clicks")
    users("topic", "seal", "users")
    users("produce", "users", stdin=b"dave:Kyiv\n")
    location = Path(users.json("topic", "describe", "users")["location"].removeprefix("file://"))
    newest = max((location / "metadata").glob("*.metadata.json"))
    newest.write_bytes(newest.read_bytes()[:50])
    return users


def test_a_topic_that_can_not_be_read_is_listed_and_described(unreadable: Cli) -> None:
    listed = {each["name"]: each for each in unreadable.json("topic", "list")}
    assert (listed["clicks"]["state"], listed["users"]["state"]) == ("ready", "unreadable")
    assert "is damaged: Invalid JSON: " in listed["users"]["problem"]
    assert "\n" not in listed["users"]["problem"] and "pydantic" not in listed["users"]["problem"]
    shown = unreadable("topic", "list").out
    assert "unreadable" in shown and "clicks" in shown
    described = unreadable.json("topic", "describe", "users", code=1)
    assert (described["state"], described["id"]) == ("unreadable", listed["users"]["id"])
    assert "lastword topic repair users" in unreadable("topic", "describe", "users", code=1).out
    assert "is damaged" in unreadable("wal", "show").out
    unreadable("produce", "clicks", stdin=b"k:1\n")
    unreadable("topic", "seal", "clicks")


def test_it_is_repaired(unreadable: Cli) -> None:
    plan = unreadable.json("topic", "repair", "users", code=1)
    assert (plan["repaired"], plan["lost"]) == (False, [])
    assert [each["operation"] for each in plan["states"]] == ["create"]
    assert "No record is lost" in unreadable("topic", "repair", "users", code=1).out
    assert "has gone back to" in unreadable("topic", "repair", "users", "--yes").out
    assert sorted(filter(None, unreadable.values("users"))) == ["Bern", "Kyiv", "Oslo", "Paris", "Rome"]
    # Without alice:Oslo, which is superseded in the same seal.
    assert unreadable.json("topic", "seal", "users")["records"] == 4
    assert "nothing to repair" in unreadable("topic", "repair", "users", code=2).err


def test_it_is_deleted(unreadable: Cli) -> None:
    assert unreadable("topic", "delete", "users", "--yes").out == "Deleted topic users.\n"
    assert [each["name"] for each in unreadable.json("topic", "list")] == ["clicks"]
