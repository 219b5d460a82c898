"""docs/architecture.md, the docstrings of packages and the folders of tests/unit match the source tree."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "lastword"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
MODULES_AT_THE_TOP = 6


def layers() -> list[str]:
    """Return the layers that the linter checks, from the top down."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    listed = next(each["layers"] for each in tool["contracts"] if each["type"] == "layers")
    return [name.strip().removeprefix("lastword.") for line in listed for name in line.split("|")]


def entries(folder: Path) -> set[str]:
    """Return the files and folders of a package, in the form in which its docstring names them."""
    files = {each.name for each in folder.glob("*.py") if each.name != "__init__.py"}
    return files | {f"{each.parent.name}/" for each in folder.glob("*/__init__.py")}


def packages() -> list[Path]:
    return sorted(each.parent for each in PACKAGE.rglob("*/__init__.py"))


def test_every_module_has_its_layer() -> None:
    assert {name.removesuffix(".py").removesuffix("/") for name in entries(PACKAGE)} == set(layers())


def test_few_modules_are_at_the_top() -> None:
    assert len([name for name in entries(PACKAGE) if name.endswith(".py")]) <= MODULES_AT_THE_TOP


def test_the_page_has_the_modules_in_the_order_of_the_layers() -> None:
    rows = re.findall(r"^\| `([a-z_]+(?:/|\.py))` \|", PAGE, re.MULTILINE)
    assert [name.removesuffix(".py").removesuffix("/") for name in rows] == layers()
    assert set(rows) == entries(PACKAGE)


def test_every_file_that_the_page_names_exists_in_the_folder_that_it_names() -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", PAGE)) - {"__init__.py"}
    assert len(named) > 50
    assert not {each for each in named if not (PACKAGE / each).is_file()}


@pytest.mark.parametrize("folder", packages(), ids=lambda each: str(each.relative_to(PACKAGE)))
def test_a_package_says_what_is_in_each_file(folder: Path) -> None:
    words = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    named = re.findall(r"^([a-z_]+(?:\.py|/)) +\S", words, re.MULTILINE)
    assert sorted(named) == sorted(entries(folder))


def test_folders_of_unit_tests_mirror_those_of_the_package() -> None:
    unit = ROOT / "tests" / "unit"
    tested = {each.relative_to(unit) for each in unit.rglob("[a-z]*") if each.is_dir()}
    folders = {each.relative_to(PACKAGE) for each in packages()}
    assert tested <= folders
    # tests/e2e/test_cli_*.py run the command line as a command.
    assert {each for each in folders if len(each.parts) == 1} - tested == {Path("cli")}
