"""docs/testing.md lists the defects that simulations must find. `python -m tests.unit.testing.simulation.test_docs` writes it."""

from __future__ import annotations

import re
from pathlib import Path

from lastword.testing.simulation.mutations import MUTATIONS, SEEDS

PAGE = Path(__file__).parents[4] / "docs" / "testing.md"
HEAD = "| defect | effect | found by seed |\n|---|---|---|\n"


def table() -> str:
    rows = [
        f"| `{name}` | {each.words} | {'not yet' if each.seed is None else each.seed} |\n"
        for name, each in MUTATIONS.items()
    ]
    return HEAD + "".join(rows)


def test_the_page_lists_every_defect() -> None:
    assert table() in PAGE.read_text()


def test_a_seed_belongs_to_a_defect() -> None:
    assert set(SEEDS) <= set(MUTATIONS)


def write() -> None:
    page = PAGE.read_text()
    old = re.search(re.escape(HEAD) + r"(?:\|.*\n)+|^MUTATIONS\n", page, re.MULTILINE)
    assert old is not None
    PAGE.write_text(page.replace(old[0], table()))


if __name__ == "__main__":
    write()
