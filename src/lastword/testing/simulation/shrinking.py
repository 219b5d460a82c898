"""Shrinks the plan of a failing simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from lastword.testing.simulation.plan import Plan, Script
from lastword.testing.simulation.running import Outcome, Run


def shrink(failed: Run, outcome: Outcome, simulate: Callable[[Run], Outcome]) -> tuple[Run, Outcome]:
    """Return a smaller run that fails in the same way, without the scripts and acts that it does not need."""
    smaller = True
    while smaller:
        smaller = False
        for plan in _smaller(failed.plan):
            candidate = replace(failed, plan=plan)
            found = simulate(candidate)
            if found.has_failed_like(outcome):
                failed, outcome, smaller = candidate, found, True
                break
    return failed, outcome


def _smaller(plan: Plan) -> Iterator[Plan]:
    scripts = plan.scripts
    for number in range(len(scripts)):
        yield plan.with_scripts(scripts[:number] + scripts[number + 1 :])
    for number, script in enumerate(scripts):
        for size in (len(script.acts) // 2, len(script.acts) // 4, 1):
            for at in range(0, len(script.acts) if size else 0, size or 1):
                acts = script.acts[:at] + script.acts[at + size :]
                if acts:
                    cut = Script(name=script.name, acts=acts)
                    yield plan.with_scripts((*scripts[:number], cut, *scripts[number + 1 :]))
