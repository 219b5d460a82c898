"""The file of sources: what it says, and what its errors name."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastword.connect.config import ConnectConfig
from lastword.errors import InvalidConfigError

WHOLE = """\
sources:
  users:
    connector: postgres-cdc
    topic: db.users
    config:
      table: users
      primary_key: id
settings:
  topic:
    auto_create: true
    default_config:
      cleanup.policy: compact
"""


def load(tmp_path: Path, text: str) -> ConnectConfig:
    path = tmp_path / "f.yaml"
    path.write_text(text)
    return ConnectConfig.load(path)


def test_the_whole_file(tmp_path: Path) -> None:
    config = load(tmp_path, WHOLE)
    source = config.sources["users"]
    assert (source.connector, source.topic) == ("postgres-cdc", "db.users")
    assert {key: given.value for key, given in source.given.items()} == {
        "table": "users",
        "primary_key": "id",
    }
    assert config.auto_create and config.default_config == {"cleanup.policy": "compact"}
    assert source.options.given["table"].where.endswith("f.yaml:6")


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        ("connector: postgres-cdc", "conector: x", r"f\.yaml:3: sources\.users has the unknown key 'conector'; did you mean 'connector'\?"),
        ("    connector: postgres-cdc\n", "", r"f\.yaml:2: sources\.users\.connector is missing; allowed: postgres-cdc"),
        ("topic: db.users", "topic: []", r"f\.yaml:4: sources\.users\.topic must be a non-empty string"),
        ("auto_create: true", "auto_create: maybe", r"f\.yaml:10: settings\.topic\.auto_create is 'maybe'; allowed: `true` or `false`"),
        ("auto_create", "autocreate", r"f\.yaml:10: unknown setting 'settings\.topic\.autocreate'; did you mean"),
        ("cleanup.policy: compact", "cleanup.policy: all", r"f\.yaml:12: settings\.topic\.default_config: cleanup\.policy"),
        ("cleanup.policy", "cleanup.polcy", r"f\.yaml:12: .*did you mean 'cleanup\.policy'"),
        ("  users:", "  'a b':", r"f\.yaml:2: 'a b' is not a valid source name"),
        ("settings:\n  topic:", "settings:\n  retry:\n    first_ms: 10\n    max_ms: 5\n  topic:", "is above"),
        ("settings:\n  topic:", "settings:\n  retry:\n    max_ms: soon\n  topic:", r"max_ms is 'soon'; allowed: a whole number"),
    ],
)  # fmt: skip
def test_errors_name_the_place_the_value_and_what_is_allowed(
    tmp_path: Path, before: str, after: str, error: str
) -> None:
    assert before in WHOLE
    with pytest.raises(InvalidConfigError, match=error):
        load(tmp_path, WHOLE.replace(before, after, 1))


def test_a_file_without_sources_is_an_error(tmp_path: Path) -> None:
    for text in ("", "settings:\n  topic:\n    auto_create: true\n"):
        with pytest.raises(InvalidConfigError, match="there are no sources"):
            load(tmp_path, text)


def test_options_are_taken_checked_and_none_is_left_over(tmp_path: Path) -> None:
    options = load(tmp_path, WHOLE).sources["users"].options
    assert options.text("table") == "users" and options.number("size", 5) == 5
    with pytest.raises(
        InvalidConfigError, match=r"f\.yaml:7: sources\.users\.config\.primary_key is not an option"
    ):
        options.finish()
    with pytest.raises(
        InvalidConfigError, match=r"sources\.users\.config\.dsn is missing; it is the database"
    ):
        options.required("dsn", "the database")
    with pytest.raises(InvalidConfigError, match=r"f\.yaml:6: .*\.table is 'users'; allowed: a whole number"):
        options.number("table", 1)
    with pytest.raises(InvalidConfigError, match="allowed: `a` or `b`"):
        options.choice("table", "a", ("a", "b"))
