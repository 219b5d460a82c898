"""`lastword produce`: every form of input, and what a wrong line does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from tests.support.cli import Cli, Terminal
from tests.support.waiting import wait_until


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    made = Cli(tmp_path / "data")
    made("topic", "create", "t", "--partitions", "2")
    return made


def records(cli: Cli) -> list[tuple[str | None, str | None]]:
    return [(each["key"], each["value"]) for each in cli("consume", "t", "--json").lines]


# ---------------------------------------------------------------------------------------------- formats


def test_key_and_value_are_split_at_the_first_separator(cli: Cli) -> None:
    cli("produce", "t", "--partition", "0", stdin=b"a:1\nb:x:y\n:no key text\nc:\n")
    assert records(cli) == [("a", "1"), ("b", "x:y"), ("", "no key text"), ("c", "")]


def test_the_last_line_needs_no_end(cli: Cli) -> None:
    cli("produce", "t", stdin=b"a:1")
    assert records(cli) == [("a", "1")]


@pytest.mark.parametrize(("option", "line"), [("=>", b"a=>1:2\n"), ("\\t", b"a\t1:2\n"), ("\t", b"a\t1:2\n")])
def test_another_separator(cli: Cli, option: str, line: bytes) -> None:
    cli("produce", "t", "--separator", option, stdin=line)
    assert records(cli) == [("a", "1:2")]


def test_a_tombstone_is_asked_for(cli: Cli) -> None:
    cli("produce", "t", "--partition", "0", stdin=b"a:NULL\n")
    cli("produce", "t", "--partition", "0", "--null-value", "NULL", stdin=b"a:NULL\na:NULL \n")
    cli("produce", "t", "--partition", "0", "--null-value", "", stdin=b"a:\n")
    assert records(cli) == [("a", "NULL"), ("a", None), ("a", "NULL "), ("a", None)]


def test_values_alone(cli: Cli) -> None:
    cli("produce", "t", "--no-key", "--partition", "0", stdin=b"a:1\n\nb\n")
    assert records(cli) == [(None, "a:1"), (None, ""), (None, "b")]


def test_bytes_that_are_not_text_arrive_as_they_are(cli: Cli) -> None:
    cli("produce", "t", stdin=b"\xff:\x00\xfe\r\n")
    (record,) = cli("consume", "t", "--json").lines
    assert (record["key_base64"], record["value_base64"]) == ("/w==", "AP4N")


def test_json_lines(cli: Cli) -> None:
    lines = [
        {"key": "a", "value": "1", "headers": {"h": "x"}, "timestamp": 1000, "partition": 1},
        {"key": "a", "value": None, "timestamp": "1970-01-01T00:00:02Z", "partition": 1},
        {"key_base64": "/w==", "value_base64": "/g==", "partition": 1},
        {
            "value": "no key",
            "headers": [{"key": "h", "value": "x"}, {"key": "h", "value_base64": "/w=="}],
            "partition": 1,
        },
    ]
    text = "\n\n".join(json.dumps(each) for each in lines)
    cli("produce", "t", "--jsonl", stdin=text.encode())
    found = cli("consume", "t", "--json").lines
    assert [each["partition"] for each in found] == [1, 1, 1, 1]
    assert [each["timestamp"] for each in found[:2]] == [1000, 2000]
    assert (found[1]["key"], found[1]["value"]) == ("a", None)
    assert (found[2]["key_base64"], found[2]["value_base64"]) == ("/w==", "/g==")
    assert found[0]["headers"] == [{"key": "h", "value": "x"}]
    assert found[3]["headers"] == [{"key": "h", "value": "x"}, {"key": "h", "value_base64": "/w=="}]


def test_what_consume_prints_produce_takes_back(cli: Cli) -> None:
    cli("topic", "create", "copy", "--partitions", "2")
    cli("produce", "t", "--null-value", "NULL", stdin=b"a:1\nb:NULL\n\xff:\xfe\nc:\n")
    cli("produce", "t", "--jsonl", stdin=b'{"value": "x", "timestamp": -1, "headers": {"h": null}}\n')
    original = cli("consume", "t", "--json").out
    cli("produce", "copy", "--jsonl", stdin=original.encode())
    assert cli("consume", "copy", "--json").out == original


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "is not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"key": "a"}', 'a tombstone says "value": null'),
        ('{"key": "a", "value": {"city": "Oslo"}}', '"value" must be text or null; is an object'),
        ('{"key": 7, "value": "x"}', '"key" must be text or null; is a number'),
        ('{"key": "a", "key_base64": "YQ==", "value": "x"}', 'has both "key" and "key_base64"'),
        ('{"value_base64": "%%%"}', "is not base64"),
        ('{"value": "x", "valeu": "y"}', "unknown field 'valeu'; allowed: key,"),
        ('{"value": "x", "timestamp": "soon"}', "'soon' is not a time"),
        ('{"value": "x", "timestamp": true}', '"timestamp" is true or false'),
        ('{"value": "x", "partition": "0"}', '"partition" is text'),
        ('{"value": "x", "partition": 9}', "no partition 9"),
        ('{"value": "x", "headers": ["h"]}', '"headers" has "h"; allowed'),
        ('{"value": "x", "headers": 1}', '"headers" is a number; allowed'),
        ('{"value": "\\ud800"}', "surrogate"),
    ],
)
def test_a_wrong_json_line_says_what_is_allowed(cli: Cli, line: str, message: str) -> None:
    result = cli("produce", "t", "--jsonl", code=2, stdin=f'{{"value": "good"}}\n{line}\n'.encode())
    assert "error: standard input:2: " in result.err
    assert message in result.err
    assert records(cli) == [(None, "good")]


@pytest.mark.parametrize("name", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression(cli: Cli, name: str) -> None:
    cli("produce", "t", "--compression", name, stdin=b"a:" + b"x" * 5000 + b"\n")
    assert records(cli) == [("a", "x" * 5000)]


def test_options_that_contradict_each_other(cli: Cli) -> None:
    for options in (["--no-key"], ["--separator", ";"], ["--null-value", "x"]):
        assert "--jsonl defines the whole record" in cli("produce", "t", "--jsonl", *options, code=2).err
    assert "must not be empty" in cli("produce", "t", "--separator", "", code=2).err
    assert "--batch-records" in cli("produce", "t", "--batch-records", "0", code=2).err


# ------------------------------------------------------------------------------------------ wrong lines


def test_a_file_with_a_wrong_line_appends_nothing(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "in.txt"
    file.write_text("a:1\nb:2\nnothing to split\nc:3\n")
    error = cli("produce", "t", "--file", str(file), "--batch-records", "1", code=2).err
    assert error.startswith(f"error: {file}:3: there is no ':' between key and value; allowed: KEY:VALUE")
    assert error.endswith("Nothing was appended.\n")
    assert records(cli) == []


def test_a_file_with_a_line_that_the_topic_refuses_appends_nothing(cli: Cli, tmp_path: Path) -> None:
    cli("topic", "alter", "t", "--config", "max.message.bytes=200")
    file = tmp_path / "in.txt"
    file.write_text("a:1\nb:2\nc:" + "x" * 300 + "\nd:4\n")
    error = cli("produce", "t", "--file", str(file), "--batch-records", "1", code=2).err
    assert f"{file}:3: " in error
    assert "max.message.bytes" in error
    assert records(cli) == []


def test_a_good_file_is_appended_whole(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "in.txt"
    file.write_text("".join(f"k{index}:{index}\n" for index in range(1000)))
    summary = cli.json("produce", "t", "--file", str(file), "--batch-records", "7")
    assert summary["records"] == 1000
    assert sum(each["records"] for each in summary["partitions"]) == 1000
    assert sorted(int(value or "") for _, value in records(cli)) == list(range(1000))


def test_a_wrong_line_on_stdin_stops_there(cli: Cli) -> None:
    result = cli("produce", "t", "--partition", "0", code=2, stdin=b"a:1\nb:2\nwrong\nc:3\n")
    assert result.err.startswith("error: standard input:3: ")
    assert "The lines before it were appended (2 records); it and the rest were not." in result.err
    assert records(cli) == [("a", "1"), ("b", "2")]


def test_a_line_that_the_topic_refuses_on_stdin_stops_there(cli: Cli) -> None:
    cli("topic", "alter", "t", "--config", "max.message.bytes=200")
    lines = b"a:1\nb:2\nc:" + b"x" * 300 + b"\nd:4\n"
    result = cli("produce", "t", "--partition", "0", code=2, stdin=lines)
    assert "standard input:3: " in result.err
    assert records(cli) == [("a", "1"), ("b", "2")]


def test_small_batches_where_the_topic_allows_no_larger_ones(cli: Cli) -> None:
    cli("topic", "alter", "t", "--config", "max.message.bytes=200")
    cli("produce", "t", "--partition", "0", stdin=b"a:" + b"x" * 30 + b"\n" + b"b:1\n" * 500)
    assert len(records(cli)) == 501


def test_a_file_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    assert "can't be read: No such file" in cli("produce", "t", "--file", str(tmp_path / "x"), code=2).err
    assert "is a folder" in cli("produce", "t", "--file", str(tmp_path), code=2).err


def test_a_fifo_is_read_as_a_stream(cli: Cli, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["sh", "-c", f"printf 'a:1\\nwrong\\n' > {fifo}"]):
        assert "1 record)" in cli("produce", "t", "--file", str(fifo), code=2).err
    assert records(cli) == [("a", "1")]


# -------------------------------------------------------------------------------------------- as it comes


def test_the_summary(cli: Cli) -> None:
    out = cli("produce", "t", "--partition", "1", stdin=b"a:1\nb:22\n").out
    assert out.splitlines() == [
        "Appended 2 records (5 B) to t.",
        "partition  first offset  last offset  records",
        "        1             0            1        2",
    ]
    assert cli("produce", "t").out == "Appended 0 records (0 B) to t.\n"


def test_a_slow_pipe_is_appended_line_by_line(cli: Cli) -> None:
    process = cli.spawn("produce", "t", "--partition", "0", stdin=subprocess.PIPE)
    assert process.stdin is not None
    for number in range(3):
        process.stdin.write(f"a:{number}\n".encode())
        process.stdin.flush()
        wait_until(lambda seen=number + 1: len(records(cli)) == seen)
    out, _ = process.communicate()
    assert (process.returncode, out.splitlines()[0]) == (0, b"Appended 3 records (6 B) to t.")


def test_typed_lines_are_appended_at_once_and_a_wrong_one_is_no_end(cli: Cli) -> None:
    terminal = Terminal(cli, "produce", "t", "--partition", "0")
    terminal.type("a:1\n")
    wait_until(lambda: len(records(cli)) == 1)
    terminal.type("wrong\n")
    terminal.expect("error: standard input:2: there is no ':'")
    terminal.type("b:2\n")
    wait_until(lambda: len(records(cli)) == 2)
    terminal.type("\x04")
    assert terminal.end() == 0
    assert "Appended 2 records" in terminal.shown


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_in_order(cli: Cli, number: signal.Signals, code: int) -> None:
    process = cli.spawn("produce", "t", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"a:1\n")
    process.stdin.flush()
    wait_until(lambda: len(records(cli)) == 1)
    process.send_signal(number)
    _, err = process.communicate(timeout=180)
    assert (process.returncode, err) == (code, b"")
    described = cli.json("topic", "describe", "t")
    # A WAL that was not closed in order would get a new leader epoch when the next command opens it.
    cli("produce", "t", stdin=b"b:2\n")
    after = cli.json("topic", "describe", "t")
    assert [each["leader_epoch"] for each in after["partitions"]] == [
        each["leader_epoch"] for each in described["partitions"]
    ]
