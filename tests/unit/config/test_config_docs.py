"""docs/configuration.md and the example file, held against the code. `python -m` this file rewrites the tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lastword.config import BrokerConfig
from lastword.config.keys import BROKER_SETTINGS, TOPIC_SETTINGS, Setting
from lastword.errors import InvalidConfigError

DOCS = Path(__file__).parents[3] / "docs"
PAGE = DOCS / "configuration.md"
EXAMPLE = DOCS / "lastword.example.yaml"
TABLES = {"topic settings": TOPIC_SETTINGS, "broker settings": BROKER_SETTINGS}

FENCED_YAML = re.compile(r"^```yaml\n(.*?)^```\n(?:\n```text\n(.*?)\n```\n)?", re.DOTALL | re.MULTILINE)
BLOCKS = [(match[1], match[2]) for match in FENCED_YAML.finditer(PAGE.read_text())]


def table_pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- begin {name}:[^\n]*-->\n)(.*?)(<!-- end {name} -->)", re.DOTALL)


def default_cell(setting: Setting) -> str:
    if setting.default is None:
        return setting.unset
    no_limit = " (no limit)" if setting.kind.parse(setting.default) is None else ""
    return f"`{setting.default}`{no_limit}"


def render(settings: tuple[Setting, ...]) -> str:
    lines = ["| key | default | allowed | meaning |", "|---|---|---|---|"]
    for setting in settings:
        cells = (f"`{setting.key}`", default_cell(setting), setting.kind.allowed, setting.meaning)
        assert not any("|" in cell for cell in cells), setting.key
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("name", TABLES)
def test_table_is_that_of_the_code(name: str) -> None:
    found = table_pattern(name).search(PAGE.read_text())
    assert found is not None
    assert found[2] == render(TABLES[name])


@pytest.mark.parametrize(("text", "error"), BLOCKS)
def test_every_example_of_the_page_does_what_it_says(
    text: str, error: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("lastword.yaml")
    file.write_text(text)
    if error is None:
        BrokerConfig.load(file)
        return
    with pytest.raises(InvalidConfigError) as caught:
        BrokerConfig.load(file)
    assert str(caught.value) == error


def test_the_page_has_examples_of_both_kinds() -> None:
    assert sum(error is None for _, error in BLOCKS) >= 4
    assert sum(error is not None for _, error in BLOCKS) >= 3


def resolution_rows() -> list[list[str]]:
    section = PAGE.read_text().partition("### An example")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split("|") for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in row] for row in rows]


@pytest.mark.parametrize("row", resolution_rows(), ids=lambda row: row[0])
def test_worked_example(row: list[str], tmp_path: Path) -> None:
    file = tmp_path / "lastword.yaml"
    file.write_text(BLOCKS[0][0])
    topic, own_cell, *expected = row
    own = dict(pair.split("=") for pair in re.findall(r"`([^`]*)`", own_cell))
    effective = {setting.key: setting for setting in BrokerConfig.load(file).explain(topic.strip("`"), own)}
    shown = [
        f"`{effective[key].value}` ({effective[key].source})" for key in ("cleanup.policy", "retention.ms")
    ]
    assert shown == expected


def test_worked_example_has_each_level() -> None:
    text = str(resolution_rows())
    for level in ("(topic)", "(namespace db)", "(broker)", "(default)"):
        assert level in text


def test_example_file_has_every_broker_setting_at_its_default() -> None:
    shown = {setting.key: setting for setting in BrokerConfig.load(EXAMPLE).explain()}
    for setting in BROKER_SETTINGS:
        if setting.default is not None:
            assert (shown[setting.key].source, shown[setting.key].value) == ("broker", setting.default)


def test_commented_part_of_the_example_file_loads_too(tmp_path: Path) -> None:
    text = EXAMPLE.read_text()
    start = text.index("# warehouse:")
    file = tmp_path / "lastword.yaml"
    file.write_text(text[:start] + re.sub(r"(?m)^# ", "", text[start:]))
    config = BrokerConfig.load(file)
    assert config.warehouse == "s3://bucket/lastword"
    assert set(config.catalog) == {"type", "uri", "s3.endpoint"}
    assert config.spark == {"spark.master": "local[1]", "spark.driver.memory": "2g"}


def rewrite_tables() -> None:
    page = PAGE.read_text()
    for name, settings in TABLES.items():
        body = render(settings)
        page = table_pattern(name).sub(lambda found, body=body: found[1] + body + found[3], page)
    PAGE.write_text(page)


if __name__ == "__main__":
    rewrite_tables()
