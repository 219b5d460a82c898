"""`lastword consume`: where it begins and ends, what it prints, and how it stops."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest
from tests.support.cli import COMMAND, Cli, Terminal

import lastword


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    made = Cli(tmp_path / "data")
    made("topic", "create", "t")
    return made


def fill(cli: Cli, count: int) -> None:
    lines = (
        json.dumps({"key": f"k{index % 3}", "value": str(index), "timestamp": 1000 * index})
        for index in range(count)
    )
    cli("produce", "t", "--jsonl", stdin="\n".join(lines).encode())


# -------------------------------------------------------------------------------------- where it begins


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "0 1 2 3 4"),
        (("--from", "earliest"), "0 1 2 3 4"),
        (("--from", "latest"), ""),
        (("--from", "3"), "3 4"),
        (("--from", "5"), ""),
        (("--from-time", "2000"), "2 3 4"),
        (("--from-time", "1970-01-01T00:00:03"), "3 4"),
        (("--from-time", "1970-01-01T01:00:03+01:00"), "3 4"),
        (("--from-time", "2100-01-01"), ""),
        (("--from", "1", "--max", "2"), "1 2"),
        (("--partition", "0", "--max", "99"), "0 1 2 3 4"),
    ],
)
def test_where_it_begins(cli: Cli, options: tuple[str, ...], expected: str) -> None:
    fill(cli, 5)
    assert cli.values("t", *options) == expected.split()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--from", "6"), "Offset 6 of partition 0 is out of range"),
        (("--from", "-1"), "allowed: earliest, latest, or an offset"),
        (("--from", "first"), "allowed: earliest, latest, or an offset"),
        (("--from-time", "yesterday"), "is not a time; allowed"),
        (("--from", "1", "--from-time", "1"), "give one of them"),
        (("--partition", "1"), "no partition 1"),
        (("--max", "0"), "--max"),
        (("--reader", "r", "--partition", "0"), "can't be used with --reader"),
        (("--reader", "a/b"), "is not a name for a reader"),
        (("--state", "--follow"), "only --max and --as-of can be used with it"),
        (("--as-of", "2", "--follow"), "--as-of shows the past"),
        (("--as-of", "2", "--reader", "r"), "--as-of shows the past"),
        (("--as-of", "2", "--from", "1"), "--as-of shows the past"),
        (("--as-of", "2", "--from-time", "1"), "--as-of shows the past"),
        (("--as-of", "2", "--compacted"), "--as-of shows the past"),
        (("--as-of", "yesterday"), "allowed: an offset such as 1000, a time such as"),
        (("--as-of", "-1"), "allowed: an offset such as 1000, a time such as"),
        (("--as-of", "snapshot:x"), "a snapshot is a number"),
        (("--as-of", "snapshot:7"), "There is no snapshot 7"),
        (("--as-of", "5"), "Offset 5 of partition 0 is out of range"),
        (("--compacted", "--follow"), "can't be used with it"),
        (("--compacted", "--reader", "r"), "can't be used with it"),
        (("--compacted", "--state"), "only --max and --as-of can be used with it"),
    ],
)
def test_what_does_not_go(cli: Cli, options: tuple[str, ...], message: str) -> None:
    fill(cli, 5)
    assert message in cli("consume", "t", *options, code=2).err


def test_an_offset_needs_a_partition_where_there_are_several(cli: Cli) -> None:
    cli("topic", "create", "many", "--partitions", "3")
    assert "say which with --partition" in cli("consume", "many", "--from", "0", code=2).err
    cli("consume", "many", "--from", "0", "--partition", "2")


def test_every_partition_is_read(cli: Cli) -> None:
    cli("topic", "create", "many", "--partitions", "3")
    cli("produce", "many", stdin="".join(f"k{index}:{index}\n" for index in range(50)).encode())
    assert sorted(cli.values("many"), key=lambda value: int(value or "")) == [
        str(index) for index in range(50)
    ]
    for partition in range(3):
        found = cli("consume", "many", "--partition", str(partition), "--json").lines
        assert {each["partition"] for each in found} == {partition}


def test_sealed_and_unsealed_are_one_sequence(cli: Cli) -> None:
    fill(cli, 3)
    cli("topic", "seal", "t")
    fill(cli, 2)
    assert [each["offset"] for each in cli("consume", "t", "--json").lines] == [0, 1, 2, 3, 4]


# --------------------------------------------------------------------------------------- what it prints


def test_what_people_see(cli: Cli) -> None:
    lines = [
        {"key": "alice", "value": "Oslo", "timestamp": 0},
        {"key": "alice", "value": None, "timestamp": 1},
        {"value": None, "timestamp": 2},
        {"key": "", "value": "", "timestamp": -1},
        {"key": "<null>", "value": "<tombstone>", "timestamp": 3},
        {"key_base64": "/w==", "value": "two\nlines\x1b[31m", "timestamp": 4, "headers": {"lsn": "42"}},
    ]
    cli("produce", "t", "--jsonl", stdin="\n".join(map(json.dumps, lines)).encode())
    assert cli("consume", "t").out.splitlines() == [
        "0         0  1970-01-01T00:00:00.000Z  alice         Oslo",
        "0         1  1970-01-01T00:00:00.001Z  alice         <tombstone>",
        "0         2  1970-01-01T00:00:00.002Z  <null>        <null>",
        "0         3  <no timestamp>            <empty>       <empty>",
        "0         4  1970-01-01T00:00:00.003Z  \\x3cnull>     \\x3ctombstone>",
        "0         5  1970-01-01T00:00:00.004Z  \\xff          two\\nlines\\x1b[31m  [lsn=42]",
    ]


def test_json_is_one_object_a_line(cli: Cli) -> None:
    cli("produce", "t", "--jsonl", stdin=b'{"key": "k", "value": "a\\nb", "timestamp": 5}')
    assert cli("consume", "t", "--json").lines == [
        {
            "partition": 0,
            "offset": 0,
            "timestamp": 5,
            "timestamp_type": "CreateTime",
            "key": "k",
            "value": "a\nb",
            "headers": [],
        }
    ]


def test_a_terminal_gets_names_above_the_columns(cli: Cli) -> None:
    fill(cli, 1)
    terminal = Terminal(cli, "consume", "t")
    assert terminal.end() == 0
    assert "p    offset  time (UTC)                key           value" in terminal.shown


def test_the_state_is_the_newest_of_each_key(cli: Cli) -> None:
    cli("produce", "t", "--null-value", "NULL", stdin=b"a:1\nb:2\na:3\nb:NULL\nc:4\n")
    assert cli.values("t", "--state") == ["3", "4"]
    assert cli.values("t", "--state", "--max", "1") == ["3"]
    assert len(cli("consume", "t", "--state").out.splitlines()) == 2


# ------------------------------------------------------------------------------- the past, and compacted


@pytest.fixture
def compacted(tmp_path: Path) -> Cli:
    """Offsets 0 to 3 sealed and compacted to 2 and 3; offset 4 only in the WAL."""
    made = Cli(tmp_path / "compacted")
    made.data.mkdir()
    (made.data / "lastword.yaml").write_text(
        "compaction.service.factory: lastword.compaction.inline:InlineCompactionServiceFactory\n"
    )
    made("topic", "create", "t", "--cleanup-policy", "compact", "--config", "compaction.at.seal=false")
    lines = [{"key": "ab"[index % 2], "value": str(index), "timestamp": 1000 * index} for index in range(5)]
    text = [json.dumps(each) for each in lines]
    made("produce", "t", "--jsonl", stdin="\n".join(text[:4]).encode())
    made("topic", "compact", "t")
    made("produce", "t", "--jsonl", stdin=text[4].encode())
    return made


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), "2 3 4"),
        (("--as-of", "1"), "0 1"),
        (("--as-of", "1", "--state"), "0 1"),
        (("--as-of", "2", "--state"), "1 2"),
        (("--as-of", "1970-01-01T00:00:02Z", "--state"), "1 2"),
        (("--as-of", "2", "--max", "2"), "0 1"),
        (("--as-of", "1", "--partition", "0"), "0 1"),
        (("--as-of", "2100-01-01"), "2 3 4"),
        (("--compacted",), "2 3 4"),
        (("--compacted", "--from", "3"), "3 4"),
        (("--compacted", "--max", "1"), "2"),
    ],
)
def test_the_past_and_what_is_compacted(compacted: Cli, options: tuple[str, ...], expected: str) -> None:
    assert compacted.values("t", *options) == expected.split()


def test_a_snapshot_of_the_history_can_be_read(compacted: Cli) -> None:
    snapshots = {each["operation"]: each for each in compacted.json("topic", "history", "t")["snapshots"]}
    for operation, expected in (("seal", "0 1 2 3"), ("compact", "2 3")):
        found = compacted.values("t", "--as-of", f"snapshot:{snapshots[operation]['snapshot_id']}")
        assert found == expected.split()


def test_an_offset_of_the_past_needs_a_partition_where_there_are_several(cli: Cli) -> None:
    cli("topic", "create", "many", "--partitions", "3")
    cli("produce", "many", "--partition", "2", stdin=b"a:1\nb:2\n")
    assert "give a time or a snapshot" in cli("consume", "many", "--as-of", "0", code=2).err
    assert "give a time or a snapshot" in cli("consume", "many", "--state", "--as-of", "0", code=2).err
    assert cli.values("many", "--as-of", "0", "--partition", "2") == ["1"]


def test_a_named_reader_goes_on_where_it_was(cli: Cli) -> None:
    fill(cli, 5)
    assert cli.values("t", "--reader", "export", "--max", "2") == ["0", "1"]
    assert cli.values("t", "--reader", "export") == ["2", "3", "4"]
    assert cli.values("t", "--reader", "export") == []
    assert cli.values("t", "--reader", "other", "--from", "3") == ["3", "4"]
    assert cli.values("t", "--reader", "other", "--from", "earliest") == []


def test_damage_is_an_error_after_what_can_be_read(cli: Cli) -> None:
    cli("produce", "t", stdin=b"a:1\n")
    cli("produce", "t", stdin=b"b:2\n")
    (file,) = cli.data.glob("wal/default/t/*/0/wal.*.log")
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    result = cli("consume", "t", "--from", "1", code=4)
    assert "checksum is wrong" in result.err
    assert "`lastword wal repair`" in result.err


# ----------------------------------------------------------------------------------------- how it stops


def test_follow_prints_what_another_process_appends(cli: Cli) -> None:
    fill(cli, 2)
    follower = cli.spawn("consume", "t", "--follow", "--json", "--max", "5")
    with follower, lastword.open(cli.data) as log:
        topic = log.topic("t")
        assert follower.stdout is not None
        seen = [json.loads(follower.stdout.readline())["value"] for _ in range(2)]
        for value in ("a", "b"):
            topic.append("k", value)
            seen.append(json.loads(follower.stdout.readline())["value"])
        topic.seal()
        topic.append("k", "c")
        seen.append(json.loads(follower.stdout.readline())["value"])
        assert follower.wait(180) == 0
    assert seen == ["0", "1", "a", "b", "c"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_following_quietly(cli: Cli, number: signal.Signals, code: int) -> None:
    fill(cli, 1)
    follower = cli.spawn("consume", "t", "--follow")
    assert follower.stdout is not None
    assert follower.stdout.readline()
    follower.send_signal(number)
    out, err = follower.communicate(timeout=180)
    assert (follower.returncode, out, err) == (code, b"", b"")


def test_a_closed_pipe_ends_it_quietly(cli: Cli) -> None:
    fill(cli, 20_000)
    script = f"'{COMMAND}' consume t 2>err | head -1 >/dev/null; echo ${{PIPESTATUS[0]}}; cat err"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        env=cli.environment(),
        cwd=cli.data,
        timeout=180,
        check=True,
    )
    assert done.stdout == b"141\n"


def test_a_closed_pipe_ends_following_without_a_record_to_write(cli: Cli) -> None:
    fill(cli, 1)
    follower = cli.spawn("consume", "t", "--follow")
    assert follower.stdout is not None
    assert follower.stdout.readline()
    follower.stdout.close()
    assert follower.wait(180) == 141
    assert follower.stderr is not None
    assert follower.stderr.read() == b""
    follower.stderr.close()


def test_a_named_reader_stopped_by_a_closed_pipe_goes_on_behind_what_it_wrote(cli: Cli) -> None:
    fill(cli, 20_000)
    reader = cli.spawn("consume", "t", "--reader", "r", "--json")
    assert reader.stdout is not None
    first = [json.loads(reader.stdout.readline())["offset"] for _ in range(10)]
    reader.stdout.close()
    assert reader.wait(180) == 141
    assert reader.stderr is not None
    reader.stderr.close()
    rest = [each["offset"] for each in cli("consume", "t", "--reader", "r", "--json").lines]
    assert first == list(range(10))
    # What was printed into the pipe and committed is gone with the pipe; nothing else may be missing.
    assert rest == list(range(rest[0], 20_000))


def test_a_full_disk_behind_stdout_is_an_error(cli: Cli) -> None:
    fill(cli, 10)
    with Path("/dev/full").open("wb") as full:
        process = cli.spawn("consume", "t", stdout=full)
        _, err = process.communicate(timeout=180)
    assert (process.returncode, err) == (3, b"error: No space left on device\n")


def test_reading_needs_no_lock(cli: Cli) -> None:
    with lastword.open(cli.data) as log:
        log.topic("t").append("a", "1")
        assert cli.values("t") == ["1"]
        cli("topic", "describe", "t")
        cli("wal", "show")
        cli("config", "show", "--topic", "t")
        cli("retention", "run", "--dry-run")
