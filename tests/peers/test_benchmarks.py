"""What the benchmarks beside other systems rest on: states are compared, rows are kept, pictures are drawn from them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.kafka_systems import digest
from bench.kept import Kept
from bench.tables import Changelog
from peers.jars import UnreachableError, jars, python_with, version_of

ROOT = Path(__file__).resolve().parents[2]


def test_a_digest_tells_states_apart_but_not_their_order() -> None:
    state = {b"a": b"1", b"b": b"2"}
    assert digest(state.items()) == digest(reversed(state.items()))
    assert digest(state.items()) != digest({b"a": b"2", b"b": b"1"}.items())
    assert digest(state.items()) != digest({b"a": b"1"}.items())


def test_rows_that_are_measured_again_take_the_place_of_the_old_ones(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    first = Kept("kafka", path, quick=False, versions={})
    first.add(part="state", data="d", what="a", seconds=1.0)
    first.add(part="wire", data="d", what="a", seconds=2.0)
    second = Kept("kafka", path, quick=False, versions={})
    second.add(part="state", data="d", what="a", seconds=3.0)
    rows = json.loads(path.read_text())["rows"]
    assert [(row["part"], row["seconds"]) for row in rows] == [("state", 3.0), ("wire", 2.0)]
    Kept("kafka", path, quick=True, versions={}).add(part="wire", data="d", what="a", seconds=4.0)
    assert [row["seconds"] for row in json.loads(path.read_text())["rows"]] == [4.0]


@pytest.mark.parametrize(
    ("system", "profile", "spark"),
    [("delta", "delta", "spark"), ("iceberg", "iceberg", "spark"), ("paimon", "paimon", "spark35")],
)
def test_a_table_format_comes_to_the_state_of_the_changelog(
    tmp_path: Path, system: str, profile: str, spark: str
) -> None:
    try:
        python, folder = python_with(f"pyspark=={version_of(spark)}"), jars(profile)
    except UnreachableError as error:
        pytest.skip(str(error))
    log = Changelog(500, 2, 300)
    log.write(tmp_path / "in" / "warm-up")
    wanted = log.write(tmp_path / "in" / "changelog")
    (tmp_path / "out").mkdir()
    done = subprocess.run(
        [
            *(python, ROOT / "peers" / "table_worker.py", system, folder, tmp_path / "in", tmp_path / "out"),
            *("1", str(os.cpu_count())),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    row = json.loads(done.stdout)
    assert (row["keys"], row["digest"]) == wanted
    assert len(row["apply_s"]) == 3
    assert row["written_bytes"] >= row["live_bytes"] > 0


def test_pictures_and_tables_are_made_of_whatever_rows_are_there(tmp_path: Path) -> None:
    kept = Kept("tables", tmp_path / "tables.json", quick=False, versions={"spark": "4.0.0"})
    figures = {"first_s": 2.0, "read_s": 0.5, "written_mb": 9.0, "disk_mb": 8.0, "live_mb": 3.0, "spark": "4"}
    more = {"append_s": 0.1, "seal_s": 0.2, "compact_s": 0.3, "state_s": 0.1}
    kept.add(part="tables", data="d", what="Lastword", batch_s=1.0, **figures, **more)
    kept.add(part="tables", data="d", what="Delta Lake, MERGE", batch_s=4.0, **figures)
    command = [sys.executable, "-m", "bench.picture", "--results", str(tmp_path), "--images", str(tmp_path)]
    shown = subprocess.run(
        [*command, "--markdown"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    assert "| Delta Lake, MERGE | 4 | 2 | 4 | 0.5 | 4 | 1 | 9 | 8 | 3 |" in shown
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- tables figures: begin -->\nold\n<!-- tables figures: end -->\nafter\n")
    subprocess.run([*command, "--fill", str(page)], capture_output=True, check=True, cwd=ROOT)
    filled = page.read_text()
    assert filled.startswith("before\n") and filled.endswith("\nafter\n")
    assert "| Delta Lake, MERGE |" in filled and "old" not in filled
    assert "Delta Lake, MERGE" in (tmp_path / "bench-tables.svg").read_text()
    assert (tmp_path / "bench-tables.png").stat().st_size > 10_000
    assert not (tmp_path / "bench-kafka.svg").exists()
