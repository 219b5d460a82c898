"""Real servers with real clients, killed, paused and deprived of disk, store and time, judged by the history checker.

A seed chooses everything (tests/support/real_history/plan.py). `LASTWORD_SEEDS=40` runs more of them, and
`LASTWORD_SEEDS=17-17` one. A seed that fails prints its stories, and its history stays in its folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final

import httpx
import pyarrow.fs as pafs
import pytest
from tests.support.postgres import Cluster
from tests.support.real_history.clock import ServerClock, can_move
from tests.support.real_history.plan import DIMENSIONS, FORCED, Place, plan_of
from tests.support.real_history.proxy import proxy_before
from tests.support.real_history.run import Outcome, carry_out
from tests.support.s3 import S3Server

from lastword.testing.history import Recorder

SECONDS: Final = 70.0
SHORT_SECONDS: Final = 8.0
SHORT_SEED: Final = 1
IMPORTANT: Final = (
    *("durable", "gaps", "tombstones", "refused", "immutable", "last-word", "full-read", "fixed-past"),
    *("no-return", "erased", "positions", "group-offsets", "next-life"),
)
"""Rules that must have checked something over all seeds: all that there are."""

DEFECTS: Final = (
    "wrong-offset",
    "short-seal",
    "oldest-wins",
    "undeleted-records",
    "forgetful-groups",
    "shared-wal",
)


def seeds() -> range:
    """Return the seeds that were asked for."""
    first, dash, last = os.environ.get("LASTWORD_SEEDS", str(len(FORCED))).partition("-")
    return range(int(first), int(last) + 1) if dash else range(int(first))


class Fixtures:
    """The servers that a place may need, started when the first one does."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request

    def cluster(self) -> Cluster:
        found: Cluster = self._request.getfixturevalue("one_cluster")
        return found

    def s3(self) -> S3Server:
        found: S3Server = self._request.getfixturevalue("one_s3_server")
        return found


@pytest.fixture
def supplies(request: pytest.FixtureRequest) -> Fixtures:
    return Fixtures(request)


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    """What the seeds of this session have shown."""
    return []


def test_the_first_seeds_have_everything() -> None:
    found = frozenset().union(*(plan_of(seed, SECONDS).dimensions for seed in range(len(FORCED))))
    assert found >= DIMENSIONS, sorted(DIMENSIONS - found)


def test_a_plan_follows_from_its_seed() -> None:
    assert plan_of(17, SECONDS) == plan_of(17, SECONDS)
    assert plan_of(17, SECONDS) != plan_of(18, SECONDS)


WATCH = """
import os, sys, time
for line in sys.stdin:
    began = time.monotonic()
    time.sleep(0.01)
    open("written", "w").close()
    print(time.time(), os.stat("written").st_mtime, os.stat("old").st_mtime, time.monotonic() - began < 60, flush=True)
"""


@pytest.mark.skipif(not can_move(), reason="there is no C compiler (scripts/ensure-cc installs one)")
def test_the_clock_of_a_process_is_moved(tmp_path: Path) -> None:
    """Its files get the new time, those before the step keep theirs, and it sleeps as long as before."""
    clock, recorder = ServerClock(), Recorder()
    environment = {**os.environ, **clock.environment(tmp_path)}
    (tmp_path / "old").touch()
    old_s = (tmp_path / "old").stat().st_mtime
    with subprocess.Popen(
        [sys.executable, "-c", WATCH],
        env=environment,
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        ahead_s = 0
        for step_s in (0, 3600, -7200, 30 * 86_400):
            if step_s:
                clock.step(step_s, recorder, "users")
            ahead_s += step_s
            process.stdin.write("\n")
            process.stdin.flush()
            now_s, written_s, before_s, was_quick = process.stdout.readline().split()
            assert abs(float(now_s) - time.time() - ahead_s) < 60
            assert abs(float(written_s) - float(now_s)) < 60
            assert (float(before_s), was_quick) == (pytest.approx(old_s), "True")
            assert abs(clock.now_ms() / 1000 - float(now_s)) < 60
        process.stdin.close()
    assert len(recorder.history()) == 2 * 3


def test_a_store_fails_before_and_after_it_has_done_something(one_s3_server: S3Server) -> None:
    direct = one_s3_server.new_bucket()
    with proxy_before(direct, seed=1) as (proxy, reached):

        def put(name: str) -> None:
            url = f"{reached.endpoint}/{reached.bucket}/{name}"
            httpx.put(url, content=b"content" * 1000, timeout=60).raise_for_status()

        def stored() -> list[str]:
            found = direct.file_system().get_file_info(pafs.FileSelector(direct.bucket))
            return sorted(each.base_name for each in found)

        put("one")
        proxy.trouble(fail=1.0)
        for name in ("two", "three", "four"):
            with pytest.raises(httpx.HTTPError):
                put(name)
        assert stored() == ["one"]
        proxy.trouble(drop=1.0)
        with pytest.raises(httpx.HTTPError):
            put("five")
        proxy.trouble()
        put("six")
        assert stored() == ["five", "one", "six"]
        with reached.file_system().open_input_stream(f"{reached.bucket}/six") as stream:
            assert stream.read() == b"content" * 1000
        proxy.trouble()
    assert (proxy.counts["failed"], proxy.counts["dropped"]) == (3, 1)


def test_clients_see_what_was_promised_whoever_is_killed(tmp_path: Path, supplies: Fixtures) -> None:
    """The short form: no Java, no store, no disk of its own."""
    outcome = carry_out(plan_of(SHORT_SEED, SHORT_SECONDS, Place()), tmp_path, supplies)
    print(outcome.summary())
    assert outcome.is_good, outcome.told()
    assert outcome.counts["kill broker"] + outcome.counts["kill worker"] > 0
    checked = outcome.report.checked
    assert not [each for each in ("durable", "last-word", "immutable", "refused") if not checked[each]]


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_of_the_server_is_found(defect: str, tmp_path: Path, supplies: Fixtures) -> None:
    """What finds nothing proves nothing. One run of three must come across it."""
    for seed in range(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        outcome = carry_out(plan_of(seed, 20, Place(defect=defect)), folder, supplies)
        if outcome.report.found:
            return
    pytest.fail(outcome.told())


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("seed", seeds())
def test_a_seed(seed: int, tmp_path: Path, supplies: Fixtures, outcomes: list[Outcome]) -> None:
    outcome = carry_out(plan_of(seed, SECONDS), tmp_path, supplies)
    outcomes.append(outcome)
    print(f"\n{outcome.summary()}")
    assert outcome.is_good, outcome.told()


@pytest.mark.soak
def test_every_rule_has_checked_something(outcomes: list[Outcome]) -> None:
    if len(outcomes) < len(FORCED):
        pytest.skip("this needs a run of all of the first seeds")
    checked: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for each in outcomes:
        checked.update(each.report.checked)
        counts.update(each.counts)
    assert not [rule for rule in IMPORTANT if not checked[rule]], checked
    wrong = {
        name
        for name in DIMENSIONS
        if name.startswith(("kill", "pause", "fill", "fail", "slow", "step", "restart"))
    }
    assert not [name for name in wrong if not counts[name]], counts
    assert counts["rebalances"] > 2 * len(outcomes)
    assert counts["restores"] > 0
