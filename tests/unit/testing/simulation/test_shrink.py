"""A failing plan becomes as small as it can be."""

from __future__ import annotations

from lastword.testing.simulation.plan import Plan, plan_of, steered
from lastword.testing.simulation.running import Outcome, Run
from lastword.testing.simulation.shrinking import shrink


def _acts(plan: Plan) -> list[str]:
    return [act.do for script in plan.scripts for act in script.acts]


def test_only_what_a_failure_needs_is_left() -> None:
    plan = next(each for each in map(plan_of, range(100)) if {"erase", "state"} <= set(_acts(each)))

    def run(tried: Run) -> Outcome:
        fails = {"erase", "state"} <= set(_acts(tried.plan))
        return Outcome(
            seed=tried.plan.seed, rules=("erased",) if fails else (), stories=("…",) if fails else ()
        )

    whole = Run(plan=plan, mutation="unerased")
    smallest, outcome = shrink(whole, run(whole), run)
    assert smallest.mutation == "unerased"
    assert sorted(_acts(smallest.plan)) == ["erase", "state"]
    assert outcome.rules == ("erased",)


def test_another_failure_is_not_taken_for_it() -> None:
    plan = plan_of(3)

    def run(tried: Run) -> Outcome:
        is_whole = tried.plan == plan
        return Outcome(seed=3, rules=("durable",) if is_whole else ("gaps",), stories=("…",))

    assert shrink(Run(plan=plan), run(Run(plan=plan)), run)[0].plan == plan


def test_a_seed_has_one_plan() -> None:
    assert plan_of(11) == plan_of(11)
    assert plan_of(11) != plan_of(12)


def test_pairs_that_never_met_are_preferred() -> None:
    plan = plan_of(5)
    held = [
        act.args for script in steered(plan, {}).scripts if script.name == "meeting" for act in script.acts
    ]
    met = {(each["step"], each["until"]): 9 for each in held}
    again = [
        act.args for script in steered(plan, met).scripts if script.name == "meeting" for act in script.acts
    ]
    assert held and not {frozenset((each["step"], each["until"])) for each in again} & set(
        map(frozenset, met)
    )
