"""The command line of the simulation. It runs in the process that has loaded everything and started nothing."""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from lastword.testing.simulation.coverage import Coverage
from lastword.testing.simulation.fibers import real_monotonic_s
from lastword.testing.simulation.mutations import MUTATIONS
from lastword.testing.simulation.plan import Plan, plan_of, steered, warm_up_plan
from lastword.testing.simulation.running import Forks, Outcome, Run, outcome_of
from lastword.testing.simulation.shrinking import shrink

DEFECT_SEEDS = 400
"""The number of seeds that are tried before a defect counts as not found."""


def main(arguments: list[str]) -> int:
    """Run the command line, and return its exit code."""
    options = _parser().parse_args(arguments)
    gc.disable()
    warm = outcome_of(warm_up_plan())
    assert warm.is_good, warm
    gc.freeze()
    return _find_defects(options) if options.defects else _simulate(options)


def _simulate(options: argparse.Namespace) -> int:
    coverage = Coverage(options.coverage)
    forks = Forks(options.jobs)
    started_s = real_monotonic_s()
    total: Counter[str] = Counter()
    traces: list[str] = []
    for run, outcome in forks.run(_runs(options, coverage)):
        coverage.add(outcome.pairs)
        total.update(
            simulations=1, operations=outcome.operations, facts=outcome.checked, seconds=outcome.simulated_s
        )
        traces.append(f"{outcome.seed} {outcome.trace}")
        if options.twice and forks.one(run).trace != outcome.trace:
            total["differ"] += 1
            seed = run.plan.seed
            _say(options, {"seed": seed, "differs": True}, f"seed {seed}: two runs differ")
        if not outcome.is_good:
            total["failed"] += 1
            if options.shrink:
                run, outcome = shrink(run, outcome, forks.one)
            plan = run.plan.to_json()
            _say(options, {**asdict(outcome), "plan": plan}, _failure(plan, outcome, options))
            if options.until_found:
                break
    coverage.save()
    if options.coverage is not None and not options.json:
        sys.stdout.write(coverage.words() + "\n")
    took_s = real_monotonic_s() - started_s
    _say(
        options,
        {**total, "pairs": len(coverage.met), "took_s": round(took_s, 1), "trace": _digest(traces)},
        f"{total['simulations']} simulations in {took_s:.0f} s: {total['operations']:,} operations in "
        f"{total['seconds'] / 3600:.1f} simulated hours, {total['facts']:,} facts checked, {len(coverage.met):,} pairs of steps "
        f"met; {total['failed']} failed.",
    )
    return 1 if total["failed"] or total["differ"] else 0


def _digest(traces: list[str]) -> str:
    """Return a digest of the steps of all simulations. Every run of the same seeds has the same one."""
    return hashlib.sha256("\n".join(sorted(traces)).encode()).hexdigest()


def _find_defects(options: argparse.Namespace) -> int:
    """Put each defect into the product, and look for a seed that finds it: the noted one first, then the others."""
    forks = Forks(options.jobs)
    missing = list(MUTATIONS)
    for attempt in range(-1, DEFECT_SEEDS):
        runs = [
            Run(plan=plan_of(seed), mutation=name)
            for name in missing
            if (seed := MUTATIONS[name].seed if attempt < 0 else attempt) is not None
        ]
        for run, outcome in forks.run(runs):
            if outcome.is_good or run.mutation is None:
                continue
            missing.remove(run.mutation)
            seed, noted = run.plan.seed, MUTATIONS[run.mutation].seed
            rules = sorted({*outcome.rules, *(("problem",) if outcome.problems else ())})
            _say(
                options,
                {"mutation": run.mutation, "seed": seed, "noted": noted, "found": True, "rules": rules},
                f"{run.mutation}: seed {seed} finds it"
                f"{f' (the noted one, {noted}, does not)' if attempt >= 0 else ''}: {', '.join(rules)}",
            )
        if not missing:
            return 0
    for name in missing:
        _say(options, {"mutation": name, "found": False}, f"{name}: none of {DEFECT_SEEDS} seeds finds it")
    return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lastword.testing.simulation",
        description="Simulate a server with clients and faults, and check the history.",
        epilog="Examples: `… --seeds 0-299` runs 300 simulations; `… --seeds 17 --shrink` shrinks the plan of a failing one.",
    )
    parser.add_argument("--seeds", default="0-99", help="a seed, or a range (default: 0-99)")
    parser.add_argument("--plan", help="run the plan in this file, as --json prints it, instead of seeds")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="how many simulations run at the same time"
    )
    parser.add_argument("--twice", action="store_true", help="run each simulation twice, and compare")
    parser.add_argument("--shrink", action="store_true", help="shrink the plan of each failure")
    parser.add_argument("--until-found", action="store_true", help="stop at the first failure")
    parser.add_argument("--history", metavar="FILE", help="write the history of the last simulation")
    parser.add_argument(
        "--coverage",
        metavar="FILE",
        help="add the pairs of steps that have met to a file, and print those that have not",
    )
    parser.add_argument(
        "--steer", action="store_true", help="bring together the pairs of steps that have met least often"
    )
    parser.add_argument("--mutation", choices=sorted(MUTATIONS), help="put a defect into the product")
    parser.add_argument(
        "--defects",
        action="store_true",
        help="put each defect into the product, and check that the noted seed, or another one, finds it",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, a line for each failure and one at the end"
    )
    return parser


def _runs(options: argparse.Namespace, coverage: Coverage) -> Iterator[Run]:
    for plan in _plans(options, coverage):
        yield Run(plan=plan, mutation=options.mutation, history_file=options.history)


def _plans(options: argparse.Namespace, coverage: Coverage) -> Iterator[Plan]:
    if options.plan is not None:
        yield Plan.from_json(json.loads(Path(options.plan).read_text()))
        return
    first, _, last = options.seeds.partition("-")
    for seed in range(int(first), int(last or first) + 1):
        plan = plan_of(seed)
        # Built when the run begins, from all pairs that have met until then.
        yield steered(plan, coverage.met) if options.steer else plan


def _failure(plan: dict[str, object], outcome: Outcome, options: argparse.Namespace) -> str:
    lines = [f"seed {outcome.seed}:", *(f"  {each}" for each in outcome.problems), *outcome.stories]
    if options.shrink or options.steer:
        lines.append(f"plan: {json.dumps(plan)}")
    return "\n".join(lines)


def _say(options: argparse.Namespace, data: dict[str, object], text: str) -> None:
    sys.stdout.write((json.dumps(data) if options.json else text) + "\n")
    sys.stdout.flush()
