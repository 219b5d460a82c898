"""What holds for every command: exit codes, one line an error, shared options, a quick start."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.cli import COMMAND, Cli

import lastword
from lastword import errors
from lastword.cli import main
from lastword.cli.options import Session


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    made = Cli(tmp_path / "data")
    made("topic", "create", "t")
    return made


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidError("x"), 2),
        (errors.UnknownTopicError("x"), 2),
        (errors.UnavailableError("x"), 3),
        (errors.LockedError("x"), 3),
        (errors.CorruptError("x", path="p"), 4),
        (errors.ClosedError("x"), 1),
        (errors.LastwordError("x"), 1),
        (PermissionError(13, "Permission denied", "/data"), 3),
        (KeyError("x"), 70),
        (RecursionError("x"), 70),
        (KeyboardInterrupt(), 130),
        (BrokenPipeError(), 141),
    ],
)
def test_an_error_has_the_exit_code_of_its_branch(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    def fail(self: Session) -> None:
        raise error

    monkeypatch.setattr(Session, "read", fail)
    result = cli("topic", "list", code=code)
    assert result.out == ""
    assert len(result.err.splitlines()) == (0 if code > 128 else 1)


def test_an_unexpected_error_names_its_type_and_the_way_to_the_traceback(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Session) -> None:
        raise ZeroDivisionError("by\nzero")

    monkeypatch.setattr(Session, "read", fail)
    assert cli("topic", "list", code=70).err == (
        "error: unexpected ZeroDivisionError: by zero (a bug; LASTWORD_DEBUG=1 shows the traceback)\n"
    )
    assert cli("topic", "list", "--json", code=70).error["type"] == "ZeroDivisionError"


def test_the_real_command_has_no_traceback_unless_asked(cli: Cli) -> None:
    plain = cli.real("topic", "describe", "nope")
    assert (plain.code, plain.out) == (2, "")
    assert plain.err.startswith("error: ")
    assert len(plain.err.splitlines()) == 1
    debugged = cli.real("topic", "describe", "nope", LASTWORD_DEBUG="1")
    assert debugged.code == 2
    assert "Traceback" in debugged.err


def test_json_errors_go_to_stderr_as_json(cli: Cli) -> None:
    result = cli("topic", "describe", "nope", "--json", code=2)
    assert result.out == ""
    assert result.error["type"] == "UnknownTopicError"
    assert "nope" in result.error["message"]
    assert cli("topic", "describe", "--json", "--nope", code=2).error["type"] == "UsageError"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["topic", "creat"], "Did you mean 'create'? See `lastword topic --help`."),
        (["nope"], "No such command 'nope'"),
        (["topic", "create"], "Missing argument 'NAME'. See `lastword topic create --help`."),
        (["topic", "create", "a", "b"], "unexpected extra argument"),
        (["topic", "list", "--nope"], "No such option: --nope"),
        (["consume", "t", "--max", "x"], "--max"),
        (["produce", "t", "--compression", "brotli"], "brotli"),
        (["topic", "delete-records", "t", "--partition", "0"], "--before"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_2(cli: Cli, arguments: list[str], message: str) -> None:
    result = cli(*arguments, code=2)
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert message in result.err
    assert len(result.err.splitlines()) == 1


def test_a_second_writer_is_told_who_the_first_one_is(cli: Cli) -> None:
    with lastword.open(cli.data):
        for arguments in (["topic", "create", "u"], ["produce", "t"], ["topic", "delete", "t", "--yes"]):
            assert "is its writer" in cli(*arguments, code=3).err


def test_shared_options_may_stand_anywhere_and_the_last_one_counts(tmp_path: Path, cli: Cli) -> None:
    here, nowhere = str(cli.data), str(tmp_path / "nowhere")
    for arguments in (
        ["--data", here, "--json", "topic", "list"],
        ["topic", "--data", here, "--json", "list"],
        ["topic", "list", "--json", "--data", here],
        ["--data", nowhere, "topic", "list", "--data", here, "--json"],
    ):
        done = Cli(tmp_path / "unused").real(*arguments)
        assert [each["name"] for each in json.loads(done.out)] == ["t"], done


def test_the_data_folder_comes_from_the_environment_and_else_lies_here(tmp_path: Path, cli: Cli) -> None:
    assert "t  " in cli.real("topic", "list").out
    environment = {key: value for key, value in cli.environment().items() if key != "LASTWORD_DATA"}
    subprocess.run(
        [sys.executable, "-c", "from lastword.cli.main import main; main()", "topic", "create", "x"],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
    )
    assert (tmp_path / "lastword-data" / "FORMAT").exists()


def test_no_command_prints_the_help(cli: Cli) -> None:
    for arguments in ([], ["topic"], ["wal"], ["config"], ["retention"]):
        result = cli.real(*arguments)
        assert (result.code, result.err) == (0, "")
        assert result.out.startswith("Usage: lastword")


def test_the_version(cli: Cli) -> None:
    assert cli.real("--version").out == cli.real("version").out == f"lastword {main._version()}\n"
    assert cli.json("version")["version"] == main._version()


def test_help_imports_neither_arrow_nor_iceberg() -> None:
    script = (
        "import sys; from lastword.cli.main import run; run(sys.argv[1:]); "
        "print(*sorted({'pyarrow', 'pyiceberg', 'numpy', 'sqlalchemy', 'rich'} & set(sys.modules)), file=sys.stderr)"
    )
    for arguments in (["--help"], ["topic", "create", "--help"], ["consume", "--help"], ["--version"]):
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
        )
        assert done.stderr == "\n"


def test_every_public_name_can_be_imported() -> None:
    for name in lastword.__all__:
        assert getattr(lastword, name) is not None
    assert set(lastword.__all__) <= set(dir(lastword))
    with pytest.raises(AttributeError, match="has no attribute 'nope'"):
        _ = lastword.nope  # type: ignore[attr-defined]


def test_a_topic_made_by_a_later_version_is_refused(cli: Cli) -> None:
    (cli.data / "FORMAT").write_text("99\n")
    assert "data format '99'" in cli("topic", "list", code=2).err


def test_debug_logging_goes_to_stderr(cli: Cli) -> None:
    result = cli("topic", "list", "-vv", "--json")
    assert [each["name"] for each in result.json] == ["t"]


def test_output_that_can_not_be_written_is_an_error_also_of_a_command_that_finds_something(cli: Cli) -> None:
    with Path("/dev/full").open("wb") as full:
        done = cli.spawn("status", "--json", stdout=full)
        _, told = done.communicate(timeout=180)
    assert done.returncode == 3
    assert b"No space left on device" in told


def test_a_command_without_stderr_ends_as_it_should(cli: Cli) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{COMMAND} topic list --json 2>&-"],
        env=cli.environment(),
        stdout=subprocess.PIPE,
        check=False,
    )
    assert (done.returncode, done.stdout[:1]) == (0, b"[")
