"""docs/kafka.md names the APIs and versions that are served. `python -m tests.unit.broker.test_docs` writes its table."""

from __future__ import annotations

import re
from pathlib import Path

from lastword.broker.wire import APIS

PAGE = Path(__file__).parents[3] / "docs" / "kafka.md"
_TABLE = re.compile(r"(?<=\| API \| versions \|\n\|---\|---\|\n)(?:\|.*\n)*|TABLE\n")


def table() -> str:
    rows = sorted((api.name, api) for api in APIS.values())
    return "".join(f"| {name} | {_versions(api)} |\n" for name, api in rows)


def _versions(api: object) -> str:
    low, high = api.min_version, api.max_version  # type: ignore[attr-defined]
    return str(low) if low == high else f"{low}-{high}"


def test_the_page_has_the_table() -> None:
    assert table() in PAGE.read_text()


if __name__ == "__main__":
    PAGE.write_text(_TABLE.sub(lambda _: table(), PAGE.read_text(), count=1))
