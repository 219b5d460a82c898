"""Processes of Lastword don't load pandas, and code of users that they load can use it all the same."""

from __future__ import annotations

import subprocess
import sys

import pytest

FIND_NULLS = """
import pandas
column = pyarrow.array(pandas.Series([1.0, float("nan")]))
print(column.null_count)
"""


def _run(*lines: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], check=True, capture_output=True, text=True, timeout=180
    )
    return done.stdout.strip()


WITHOUT = "from lastword import loading; loading.load_arrow_without_pandas()"


def test_arrow_does_without_pandas() -> None:
    assert (
        _run(WITHOUT, "import sys, pyarrow.dataset; pyarrow.array([1]); print('pandas' in sys.modules)")
        == "False"
    )


@pytest.mark.parametrize(
    "before", ["import pyarrow", f"{WITHOUT}; loading.let_arrow_use_pandas(); import pyarrow"]
)
def test_arrow_knows_a_series_where_users_code_is_loaded(before: str) -> None:
    assert _run(before, FIND_NULLS) == "1"


def test_a_table_becomes_a_data_frame_all_the_same() -> None:
    assert _run(WITHOUT, "import pyarrow; print(len(pyarrow.table({'a': [1]}).to_pandas()))") == "1"


def test_commands_do_without_pandas(tmp_path: object) -> None:
    command = f"main.run(['topic', 'create', 'users', '--data', {str(tmp_path)!r}])"
    code = ["from lastword.cli import main", command, "import sys; print('pandas' in sys.modules)"]
    assert _run(*code).endswith("False")
