"""`lastword config show`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.cli import Cli

SETTINGS = """\
retention.ms: 86400000
namespaces:
  db:
    cleanup.policy: compact
catalog:
  type: sql
  uri: postgresql+psycopg2://lastword:hunter2@db.example.com/lastword
"""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "data")


def test_it_works_before_there_is_a_log(cli: Cli) -> None:
    shown = {each["key"]: each for each in cli.json("config", "show")}
    assert shown["retention.ms"] == {
        "key": "retention.ms",
        "value": "604800000",
        "source": "default",
        "where": "",
    }
    assert not cli.data.exists()


def test_a_file_is_named_with_its_line_and_secrets_are_masked(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "broker.yaml"
    file.write_text(SETTINGS)
    out = cli("config", "show", "--config", str(file)).out
    assert f"broker {file}:1" in out
    assert "hunter2" not in out
    assert "lastword:***@db.example.com" in out


def test_the_file_in_the_data_folder_is_taken(cli: Cli) -> None:
    cli.data.mkdir()
    (cli.data / "lastword.yaml").write_text("namespaces:\n  db:\n    cleanup.policy: compact\n")
    cli("topic", "create", "db.users", "--config", "retention.ms=5")
    shown = {each["key"]: each for each in cli.json("config", "show", "--topic", "db.users")}
    assert (shown["cleanup.policy"]["value"], shown["cleanup.policy"]["source"]) == (
        "compact",
        "namespace db",
    )
    assert shown["cleanup.policy"]["where"].endswith("lastword.yaml:3")
    assert (shown["retention.ms"]["value"], shown["retention.ms"]["source"]) == ("5", "topic")


def test_a_wrong_file_stops_every_command(cli: Cli, tmp_path: Path) -> None:
    cli("topic", "create", "t")
    file = tmp_path / "broker.yaml"
    file.write_text("retention.ms: 7d\n")
    for command in (["config", "show"], ["topic", "list"], ["consume", "t"], ["retention", "run"]):
        assert (
            f"error: {file}:1: retention.ms is '7d'; allowed"
            in cli(*command, "--config", str(file), code=2).err
        )


def test_an_unknown_topic(cli: Cli) -> None:
    cli("topic", "create", "t")
    assert "no such topic" in cli("config", "show", "--topic", "nope", code=2).err
