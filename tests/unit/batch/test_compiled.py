"""numba's cache of the compiled loops: damage costs time, and a change of a loop is never missed."""

from __future__ import annotations

import inspect
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lastword.batch.compiled import building, parsing
from lastword.compaction import keyset

MODULES = [
    pytest.param(building, ["measure", "write", "murmur2_all"], id="building"),
    pytest.param(parsing, ["walk", "check", "fill", "fill_headers"], id="parsing"),
    pytest.param(keyset, ["_absorb", "_fill_slots", "_contest", "_hash_rows"], id="keyset"),
]

HITS = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location(sys.argv[1], sys.argv[2])
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
print(*[name for name, each in vars(module).items() if hasattr(each, "stats") and each.stats.cache_hits])
"""


@pytest.mark.parametrize(("module", "functions"), MODULES)
def test_damaged_compiler_cache_is_passed_over(
    module: ModuleType, functions: list[str], tmp_path: Path
) -> None:
    # A copy with its cache: compiling everything for this test alone would take long.
    path = Path(str(module.__file__))
    source = Path(shutil.copy2(path, tmp_path))
    (tmp_path / "__pycache__").mkdir()
    for each in path.parent.glob(f"__pycache__/{path.stem}.*.nb?"):
        shutil.copy2(each, tmp_path / "__pycache__")
    (damaged,) = tmp_path.rglob(f"{path.stem}.{functions[0]}-*.nbi")
    damaged.write_bytes(damaged.read_bytes()[:20])
    child = subprocess.run(
        [sys.executable, "-c", HITS, module.__name__, source], check=True, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.split() == functions[1:]


@pytest.mark.parametrize(("module", "functions"), MODULES)
def test_compiled_functions_call_only_those_of_their_own_file(
    module: ModuleType, functions: list[str]
) -> None:
    """A function in numba's cache is valid while its own file is unchanged: another file's change would be missed."""
    compiled = {name: each for name, each in vars(module).items() if hasattr(each, "py_func")}
    assert set(functions) <= set(compiled)
    for each in compiled.values():
        called = inspect.getclosurevars(each.py_func).globals.values()
        assert {other.__module__ for other in called if hasattr(other, "py_func")} <= {module.__name__}
