"""`lastword topic compact` and `lastword compact`: what they do, show and refuse; once on real Spark."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.support.cli import Cli, Terminal

import lastword
from lastword.cli import options
from lastword.operations import maintaining

INLINE = "compaction.service.factory: lastword.compaction.inline:InlineCompactionServiceFactory\n"
SEALED_WHOLE = ("--cleanup-policy", "compact", "--config", "compaction.at.seal=false")
"""Nothing is compacted while it is sealed."""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """A compacted topic of one partition: ten keys, ten records each, nothing sealed."""
    made = Cli(tmp_path / "data")
    made.data.mkdir()
    (made.data / "lastword.yaml").write_text(INLINE)
    made("topic", "create", "users", *SEALED_WHOLE)
    fill(made, "users", 100)
    return made


def fill(cli: Cli, topic: str, records: int) -> None:
    cli("produce", topic, stdin="".join(f"k{index % 10}:{index}\n" for index in range(records)).encode())


def files(cli: Cli) -> list[Path]:
    return sorted(path for path in cli.data.rglob("*") if "leases" not in path.parts)


# ---------------------------------------------------------------------------------------- topic compact


def test_it_seals_compacts_and_shows_what_that_did(cli: Cli) -> None:
    out = cli("topic", "compact", "users").out
    assert out.startswith("Sealed 100 records first.\nCompacted 1 partition in ")
    assert "records           size                     tombstones" in out
    assert "0      100     10" in out
    assert "one stage         1       1      1" in out
    assert "Because of min.cleanable.dirty.ratio: partition 0." in out
    assert cli.values("users") == [str(index) for index in range(90, 100)]


def test_json_has_every_number_by_partition_and_in_sum(cli: Cli) -> None:
    cli("topic", "create", "two", "--partitions", "2", *SEALED_WHOLE)
    fill(cli, "two", 100)
    cli("produce", "two", "--null-value", "NULL", stdin=b"k1:NULL\n")
    report = cli.json("topic", "compact", "two")
    assert (report["topic"], report["engine"], report["nothing_to_compact"]) == ("two", "inline", None)
    assert report["sealed"]["records"] == 101
    assert [each["partition"] for each in report["partitions"]] == [0, 1]
    for name, total in report["total"].items():
        assert total == sum(each[name] for each in report["partitions"]), name
    assert report["total"]["records_before"] == 101
    assert report["total"]["records_after"] == 10
    assert report["total"]["tombstones_kept"] == 1
    for each in report["partitions"]:
        assert each["reclaimed_bytes"] == each["bytes_before"] - each["bytes_after"]
        assert each["way"] == "one stage"
        assert each["problem"] is None


def test_only_the_partitions_that_are_named(cli: Cli) -> None:
    cli("topic", "create", "two", "--partitions", "2", "--cleanup-policy", "compact")
    fill(cli, "two", 100)
    report = cli.json("topic", "compact", "two", "--partition", "1")
    assert [each["partition"] for each in report["partitions"]] == [1]
    assert [each["first_dirty"] > 0 for each in cli.json("topic", "describe", "two")["partitions"]] == [
        False,
        True,
    ]
    assert "no partition 2" in cli("topic", "compact", "two", "--partition", "2", code=2).err
    assert "no partition 2" in cli("topic", "compact", "two", "--partition", "2", "--dry-run", code=2).err


def test_without_sealing_the_wal_is_left_alone(cli: Cli) -> None:
    result = cli("topic", "compact", "users", "--no-seal")
    assert result.out == "There is nothing to compact: nothing is sealed.\n"
    assert len(cli.values("users")) == 100


def test_a_second_run_has_nothing_to_do_unless_it_is_forced(cli: Cli) -> None:
    cli("topic", "compact", "users")
    assert "nothing that may be compacted is dirty" in cli("topic", "compact", "users").out
    assert cli.json("topic", "compact", "users")["partitions"] == []
    (forced,) = cli.json("topic", "compact", "users", "--force")["partitions"]
    assert (forced["reason"], forced["segments_compacted"]) == ("asked for", 0)


def test_why_there_is_nothing_to_compact(cli: Cli) -> None:
    cli("topic", "create", "clicks")
    fill(cli, "clicks", 10)
    assert "cleanup.policy=delete: the topic is not compacted" in cli("topic", "compact", "clicks").out
    cli("topic", "alter", "users", "--config", "min.compaction.lag.ms=3600000")
    out = cli("topic", "compact", "users").out
    assert "everything is held back: it has records younger than min.compaction.lag.ms=3600000" in out
    assert "there is no such topic" in cli("topic", "compact", "nope", code=2).err


def test_a_dry_run_shows_the_plan_and_changes_nothing(cli: Cli) -> None:
    cli("topic", "seal", "users")
    fill(cli, "users", 5)
    before = files(cli)
    out = cli("topic", "compact", "users", "--dry-run").out
    assert "A run would compact 1 partition" in out
    assert "0  min.cleanable.dirty.ratio   1.00      1      100" in out
    assert "5 records in the WAL would be sealed first" in out
    report = cli.json("topic", "compact", "users", "--dry-run")
    (plan,) = report["partitions"]
    assert (plan["records"], plan["estimate"]["garbage_records"]) == (100, 90)
    assert report["unsealed_records"] == 5
    assert files(cli) == before
    assert len(cli.values("users")) == 105


def test_a_partition_that_fails_ends_it_with_1_and_the_reason_once(cli: Cli) -> None:
    cli("topic", "seal", "users")
    (segment,) = cli.data.glob("warehouse/**/*.parquet")
    segment.write_bytes(b"\0" * segment.stat().st_size)
    result = cli("topic", "compact", "users", code=1)
    assert "Not compacted" in result.out
    assert result.err == ""
    report = cli.json("topic", "compact", "users", code=1)
    assert report["partitions"][0]["problem"]


def test_a_wal_that_can_not_be_sealed_is_told_and_the_rest_is_compacted(cli: Cli) -> None:
    cli("topic", "create", "two", "--partitions", "2", "--cleanup-policy", "compact")
    fill(cli, "two", 100)
    (file,) = cli.data.glob("wal/default/two/*/1/wal.*.log")
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    result = cli("topic", "compact", "two", code=1)
    assert "Not sealed, so not compacted" in result.out
    assert "checksum is wrong" in result.out
    assert "Compacted 1 partition" in result.out


# ------------------------------------------------------------------------------------- beside an application


def test_it_works_beside_the_process_that_writes(cli: Cli) -> None:
    with lastword.open(cli.data) as log:
        assert cli.json("topic", "compact", "users")["total"]["records_after"] == 10
        log.topic("users").append("k0", "new")
        assert cli.json("topic", "seal", "users")["records"] == 1
        assert cli.json("compact", "--all")["total"]["records_after"] == 10
        cli("retention", "run")
        log.topic("users").append("k1", "newer")
    assert cli.values("users")[-2:] == ["new", "newer"]


def test_an_application_may_start_while_a_command_works(cli: Cli) -> None:
    with options.Session(data=cli.data).maintain(), lastword.open(cli.data) as log:
        log.topic("users").append("k0", "new")
    assert cli.values("users")[-1] == "new"


def test_other_maintenance_is_waited_for_and_then_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintaining, "MAINTENANCE_WAIT_MS", 200)
    with lastword.open(cli.data) as log, log.maintenance():
        for arguments in (["topic", "compact", "users"], ["topic", "seal", "users"], ["compact"]):
            assert "is its maintenance" in cli(*arguments, code=3).err


# ---------------------------------------------------------------------------------------------- compact


def test_all_topics_are_one_job(cli: Cli) -> None:
    cli("topic", "create", "other", *SEALED_WHOLE)
    fill(cli, "other", 20)
    for name in ("users", "other"):
        cli("topic", "seal", name)
    planned = cli.json("compact", "--dry-run")
    assert {each["topic"] for each in planned["partitions"]} == {"users", "other"}
    assert "users  0  min.cleanable.dirty.ratio" in cli("compact", "--dry-run").out
    out = cli("compact").out
    assert "Compacted 2 partitions" in out
    assert "other  0       20     10" in out
    assert "Because of min.cleanable.dirty.ratio: other 0, users 0." in out


def test_due_is_less_than_all(cli: Cli) -> None:
    cli("topic", "compact", "users")
    cli("topic", "alter", "users", "--config", "min.cleanable.dirty.ratio=1")
    fill(cli, "users", 10)
    cli("topic", "seal", "users")
    for arguments in (["compact"], ["compact", "--due"], ["compact", "--dry-run"]):
        assert cli(*arguments).out == (
            "There is nothing to compact: nothing is due; "
            "`lastword compact --all` compacts everything that is dirty.\n"
        )
    assert [each["reason"] for each in cli.json("compact", "--all")["partitions"]] == ["asked for"]
    assert "no sealed record is dirty" in cli("compact", "--all").out
    assert "give one of them" in cli("compact", "--all", "--due", code=2).err


# ------------------------------------------------------------------------------------------ on a terminal


class ColourCli(Cli):
    def environment(self) -> dict[str, str]:
        return super().environment() | {"TERM": "xterm"}


def test_a_terminal_sees_a_progress_bar(cli: Cli) -> None:
    terminal = Terminal(ColourCli(cli.data), "topic", "compact", "users")
    assert terminal.end() == 0
    assert "Compacting users" in terminal.shown
    assert "100/100 records" in terminal.shown


@pytest.mark.parametrize("arguments", [("--dry-run",), ()])
def test_its_tables_fit_80_columns(cli: Cli, arguments: tuple[str, ...]) -> None:
    cli("topic", "seal", "users")
    terminal = Terminal(cli, "topic", "compact", "users", *arguments)
    assert terminal.end() == 0
    assert "min.cleanable.dirty.ratio" in terminal.shown
    assert [line for line in terminal.shown.splitlines() if len(line) > 80] == []


# ---------------------------------------------------------------------------------------------- on Spark


def test_compact_and_verify_on_spark_without_a_word_of_it_on_the_terminal(cli: Cli) -> None:
    (cli.data / "lastword.yaml").write_text("spark.sql.shuffle.partitions: 1\nspark.master: local[1]\n")
    compacted = cli.spawn("topic", "compact", "users", "--json")
    out, err = compacted.communicate(timeout=250)
    assert (compacted.returncode, err) == (0, b"")
    report = json.loads(out)
    assert (report["engine"], report["total"]["records_after"]) == ("spark", 10)
    verified = cli.spawn("verify", "users")
    out, err = verified.communicate(timeout=250)
    assert (verified.returncode, err) == (0, b"")
    text = out.decode()
    assert "beaten by another record of its key       90" in text
    assert text.endswith("Nothing was lost.\n")
    assert (cli.data / "logs" / "spark.log").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_at_once_and_quietly(cli: Cli, number: signal.Signals, code: int) -> None:
    (cli.data / "lastword.yaml").write_text("spark.master: local[1]\n")
    compacting = cli.spawn_stopping("compact.before_commit", "topic", "compact", "users")
    assert compacting.stdout is not None
    assert compacting.stdout.readline() == b"compact.before_commit\n"
    compacting.send_signal(number)
    out, err = compacting.communicate(timeout=180)
    assert (compacting.returncode, out, err) == (code, b"", b"")
    assert len(cli.values("users")) == 100
