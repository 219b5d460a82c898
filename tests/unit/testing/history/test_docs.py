"""docs/testing.md has the rules as they are, and its first example runs."""

from __future__ import annotations

import re
from pathlib import Path

from lastword.testing.history import RULES

PAGE = (Path(__file__).parents[4] / "docs" / "testing.md").read_text()


def test_the_page_lists_the_rules() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| ([^|]*) \|$", PAGE, re.MULTILINE)
    assert rows == [(rule.name, rule.promise) for rule in RULES.values()]


def test_the_first_example_runs() -> None:
    lines = PAGE.split("    from lastword.testing.history", 1)[1].split("\nA test may run", 1)[0]
    code = "from lastword.testing.history" + lines.replace("\n    ", "\n")
    names: dict[str, object] = {}
    exec(code, names)
    assert names["report"].ok  # type: ignore[attr-defined]


def test_the_other_example_is_python() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    compile(code, "docs/testing.md", "exec")
