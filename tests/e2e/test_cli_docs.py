"""docs/cli.md, held against the code. `python -m` this file rewrites its reference."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import Cli
from typer.main import get_command

from lastword.cli.main import app

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
REFERENCE = re.compile(r"(<!-- begin reference:[^\n]*-->\n)(.*?)(<!-- end reference -->)", re.DOTALL)
SHARED = ("--data", "--json", "--verbose")


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that can be run, with its full name."""
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        if hasattr(command, "commands"):
            for sub_name, sub_command in command.commands.items():
                yield f"{name} {sub_name}", sub_command
        else:
            yield name, command


COMMANDS = dict(commands())


def examples(command: Any) -> list[str]:
    lines = command.epilog.splitlines()
    return [line.strip() for line in lines[lines.index("Examples:") + 1 :]]


def options(command: Any) -> list[Any]:
    return [param for param in command.params if param.opts[0].startswith("-")]


def is_shared(param: Any) -> bool:
    return any(each in SHARED for each in param.opts) or (
        param.opts == ["--config"] and param.metavar == "FILE"
    )


def row(param: Any) -> str:
    names = ", ".join(f"`{each}`" for each in param.opts)
    value = f" {param.metavar}" if param.metavar else ""
    default = ""
    if param.default not in (None, False) and param.show_default:
        default = f" Default: `{getattr(param.default, 'value', param.default)}`."
    help_text = " ".join(param.help.split()).replace("|", "\\|")
    choices = (
        " " + ", ".join(f"`{each.value}`" for each in type(param.default)) + "."
        if hasattr(param.default, "value")
        else ""
    )
    return f"| {names}{value} | {help_text}{choices}{default} |"


def reference() -> str:
    parts = [
        "Every command takes these, too:",
        "",
        "| option | |",
        "|---|---|",
        *(row(param) for param in options(COMMANDS["topic list"]) if is_shared(param)),
        "",
    ]
    for name, command in COMMANDS.items():
        arguments = "".join(
            f" {param.metavar}" for param in command.params if not param.opts[0].startswith("-")
        )
        parts += [f"### lastword {name}{arguments}", "", " ".join(command.help.split()), ""]
        own = [param for param in options(command) if not is_shared(param)]
        if own:
            parts += ["| option | |", "|---|---|", *map(row, own), ""]
        parts += ["```text", *examples(command), "```", ""]
    return "\n".join(parts)


def test_the_reference_is_that_of_the_code() -> None:
    found = REFERENCE.search(PAGE.read_text())
    assert found is not None
    assert found[2] == reference()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_is_on_the_page_and_has_help(name: str) -> None:
    page = PAGE.read_text()
    assert f"### lastword {name}" in page
    for param in options(COMMANDS[name]):
        assert param.help, param.opts
        for each in param.opts:
            assert f"`{each}`" in page


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_ends_with_examples_of_that_command(cli_help: dict[str, str], name: str) -> None:
    found = cli_help[name]
    shown = examples(COMMANDS[name])
    assert shown
    for example in shown:
        assert f"lastword {name}" in example
        assert example in found


@pytest.fixture(scope="module")
def cli_help(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    cli = Cli(tmp_path_factory.mktemp("help"))
    return {name: cli(*name.split(), "--help").out for name in COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_80_columns_but_for_examples(cli_help: dict[str, str], name: str) -> None:
    text = cli_help[name].partition("Examples:")[0]
    assert [line for line in text.splitlines() if len(line) > 80] == []


def test_the_tasks_of_the_page_work_one_after_the_other(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 8
    cli = Cli(tmp_path / "data")
    cli.data.mkdir()
    (cli.data / "lastword.yaml").write_text(
        "compaction.service.factory: lastword.compaction.inline:InlineCompactionServiceFactory\n"
    )
    for line in "".join(blocks).splitlines():
        output = b""
        for part in line.split(" | "):
            name, *arguments = shlex.split(part)
            if arguments[:1] == ["worker"]:
                # Not in this process, whose priority it would lower.
                assert cli.real(*arguments).code == 0
            elif name == "lastword":
                output = cli(*arguments, stdin=output).out.encode()
            else:
                output = subprocess.run(["bash", "-c", part], capture_output=True, check=True).stdout


if __name__ == "__main__":
    PAGE.write_text(REFERENCE.sub(lambda found: found[1] + reference() + found[3], PAGE.read_text()))
