"""The pages and docstrings that show the way are compared with the tree, so that they can't drift from it."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "lastword"
MODULES_AT_THE_TOP = 6


def layers() -> list[str]:
    """What the linter checks, from the top down."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    listed = next(each["layers"] for each in tool["contracts"] if each["type"] == "layers")
    return [name.strip().removeprefix("lastword.") for line in listed for name in line.split("|")]


def entries(folder: Path) -> set[str]:
    """The files and folders of a package, as its docstring names them."""
    files = {each.name for each in folder.glob("*.py") if each.name != "__init__.py"}
    return files | {f"{each.parent.name}/" for each in folder.glob("*/__init__.py")}


def packages() -> list[Path]:
    return sorted(each.parent for each in PACKAGE.rglob("*/__init__.py"))


def test_every_module_has_its_layer() -> None:
    assert {name.removesuffix(".py").removesuffix("/") for name in entries(PACKAGE)} == set(layers())


def test_few_modules_are_at_the_top() -> None:
    assert len([name for name in entries(PACKAGE) if name.endswith(".py")]) <= MODULES_AT_THE_TOP


def test_the_page_has_the_modules_in_the_order_of_the_layers() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    rows = re.findall(r"^\| `([a-z_]+(?:/|\.py))` \|", page, re.MULTILINE)
    assert [name.removesuffix(".py").removesuffix("/") for name in rows] == layers()
    assert set(rows) == entries(PACKAGE)


@pytest.mark.parametrize("folder", packages(), ids=lambda each: str(each.relative_to(PACKAGE)))
def test_a_package_says_what_is_in_each_file(folder: Path) -> None:
    words = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    named = re.findall(r"^([a-z_]+(?:\.py|/)) +\S", words, re.MULTILINE)
    assert sorted(named) == sorted(entries(folder))


def test_unit_tests_are_where_what_they_test_is() -> None:
    folders = {each.name for each in (ROOT / "tests" / "unit").iterdir() if (each / "__init__.py").exists()}
    assert folders <= {each.name for each in packages()}
