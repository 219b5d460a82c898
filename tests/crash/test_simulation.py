"""Simulated servers keep what they promise, and defects that are put into them are found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lastword.testing.simulation.mutations import MUTATIONS
from lastword.testing.simulation.plan import Plan, plan_of

SEEDS = 300
MANY_SEEDS = 10_000


def simulate(*options: str, timeout_s: float = 1_800) -> tuple[int, list[dict[str, Any]]]:
    """Run simulations; the exit code, and what was printed."""
    command = [sys.executable, "-m", "lastword.testing.simulation", "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def shown(lines: list[dict[str, Any]]) -> str:
    """Failures as a person wants to read them."""
    return "\n".join(
        f"seed {each['seed']}\n" + "\n".join([*each["problems"], *each["stories"]])
        for each in lines
        if "seed" in each
    )


@pytest.mark.timeout(2_000)
def test_what_clients_see_is_what_was_promised() -> None:
    code, lines = simulate("--seeds", f"0-{SEEDS - 1}", "--jobs", "2")
    assert code == 0, shown(lines)
    assert lines[-1]["simulations"] == SEEDS
    assert lines[-1]["facts"] > 100 * SEEDS


def test_a_seed_replays_exactly() -> None:
    # In two processes: addresses, the ids of threads and the speed of the machine are different.
    first, second = (simulate("--seeds", "120-127", "--jobs", jobs)[1][-1] for jobs in ("1", "4"))
    assert first["simulations"] == 8
    assert first["trace"] == second["trace"]


@pytest.mark.soak
def test_many_seeds_replay_exactly() -> None:
    code, lines = simulate("--seeds", "0-299", "--twice")
    assert code == 0, lines


def test_a_plan_survives_a_file(tmp_path: Path) -> None:
    plan = plan_of(7)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan.to_json()))
    assert Plan.from_json(json.loads(path.read_text())) == plan
    code, lines = simulate("--plan", str(path))
    assert (code, lines[-1]["simulations"]) == (0, 1)


@pytest.mark.timeout(2_000)
def test_every_defect_is_found() -> None:
    assert all(each.seed is not None for each in MUTATIONS.values())
    _, lines = simulate("--defects", "--jobs", "2")
    assert sorted(each["mutation"] for each in lines if each["found"]) == sorted(MUTATIONS)


def test_a_failure_becomes_a_short_story() -> None:
    code, lines = simulate("--mutation", "oldest-wins", "--seeds", "0-99", "--until-found", "--shrink")
    assert code == 1
    plan = Plan.from_json(lines[0]["plan"])
    whole = plan_of(plan.seed)
    assert sum(len(each.acts) for each in plan.scripts) < sum(len(each.acts) for each in whole.scripts) / 2
    assert lines[0]["stories"]


@pytest.mark.soak
@pytest.mark.timeout(8 * 3600)
def test_ten_thousand_seeds() -> None:
    code, lines = simulate("--seeds", f"{SEEDS}-{SEEDS + MANY_SEEDS - 1}", timeout_s=8 * 3600)
    assert code == 0, shown(lines)
