"""docs/connectors.md, held against the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from lastword.clock import SystemClock
from lastword.connect import Chunk, SourceRecord, metrics
from lastword.connect.config import ConnectConfig
from lastword.connect.destination import DestinationReads
from lastword.connect.groups import DestinationGroups
from lastword.connect.options import Given, Options
from lastword.connect.protocol import SHIPPED, Context, load

PAGE = (Path(__file__).parents[3] / "docs" / "connectors.md").read_text()
NEEDED = {
    "postgres-cdc": {"dsn": "host=x", "table": "t"},
    "file": {"path": "x"},
    "kafka": {"bootstrap": "x:1", "topics": "t"},
}


def context(topic: str = "t") -> Context:
    def nothing(*_: Any) -> Any: ...

    return Context(
        source="x",
        topic=topic,
        clock=SystemClock(),
        topics=DestinationReads(None),  # type: ignore[arg-type]
        groups=DestinationGroups(None, Path("x")),  # type: ignore[arg-type]
        wait=lambda _: False,
        report=nothing,
        needs_topic=nothing,
    )


def options(**given: str) -> Options:
    return Options("sources.x.config", "f:1", {key: Given(value, "f:2") for key, value in given.items()})


@pytest.mark.parametrize("name", SHIPPED)
def test_every_option_is_described(name: str) -> None:
    taken = options(**NEEDED[name])
    load(name, where="f:1")(taken, context())
    section = PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    table = section.partition("| option | default | |\n")[2].partition("\n\n")[0]
    described = {
        each for row in table.splitlines() for each in re.findall(r"`([a-z_.*]+)`", row.split("|")[1])
    }
    assert described - {"client.*"} == taken._known


def test_the_example_file_can_be_read(tmp_path: Path) -> None:
    text = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert text is not None
    (tmp_path / "f.yaml").write_text(text[1])
    config = ConnectConfig.load(tmp_path / "f.yaml")
    assert config.auto_create and set(config.sources) == {"users"}


def test_every_setting_of_the_file_is_described() -> None:
    from lastword.connect import config

    for key in config._SETTINGS:
        assert f"`{key}`" in PAGE


def test_every_metric_is_described() -> None:
    for each in (
        metrics.RECORDS,
        metrics.BYTES,
        metrics.ERRORS,
        metrics.RUNNING,
        metrics.LAST_APPEND,
        metrics.SLOT_LAG,
    ):
        name = next(iter(each.collect())).name
        assert f"`{name}" in PAGE


def test_the_connector_of_the_page_works() -> None:
    code = re.findall(r"```python\n(class Numbers.*?)```", PAGE, re.DOTALL)[0]
    names: dict[str, Any] = {"SourceRecord": SourceRecord, "Chunk": Chunk}
    exec(code, names)
    made = names["Numbers"](options(step="5"), context())
    chunks = made.read({"next": 10})
    assert [next(chunks).position, next(chunks).position] == [{"next": 15}, {"next": 20}]
    assert made.check() == []
