"""The checker of histories against a model log: it finds nothing in legal histories, and each kind of illegal one."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.history_model import Model
from tests.support.history_mutations import MUTATIONS, mutated

from lastword.testing.history import check, tell

EXAMPLES = int(os.environ.get("LASTWORD_EXAMPLES", "1"))

SETTINGS = st.fixed_dictionaries(
    {
        "cleanup.policy": st.just("compact"),
        "delete.retention.ms": st.sampled_from(["0", "10000", "1000000"]),
        "compaction.strategy": st.sampled_from(["offset", "offset", "first", "timestamp"]),
        "min.compaction.lag.ms": st.sampled_from(["0", "5000"]),
        "wal.sync": st.sampled_from(["group", "group", "none"]),
    }
)


@settings(max_examples=150 * EXAMPLES)
@given(seed=st.integers(0, 1 << 32), config=SETTINGS, partitions=st.integers(1, 2), steps=st.integers(1, 60))
def test_a_legal_history_has_no_anomaly(
    seed: int, config: dict[str, str], partitions: int, steps: int
) -> None:
    model = Model(random.Random(seed), config, partitions=partitions)
    model.run(steps)
    report = check(model.history)
    assert report.ok, tell(report)


@pytest.mark.parametrize("seed", range(20))
def test_a_legal_history_is_not_legal_because_nothing_was_checked(seed: int) -> None:
    model = Model(random.Random(seed), {"cleanup.policy": "compact", "delete.retention.ms": "10000"})
    model.run(150)
    report = check(model.history)
    assert report.ok, tell(report)
    assert report.checked["durable"] > 20
    assert report.checked["last-word"] > 10


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_is_made_illegal_is_found_by_its_rule(name: str) -> None:
    """In histories without crashes and second lives, which would allow more."""
    rule, _ = MUTATIONS[name]
    applied = 0
    for seed in range(60):
        model = Model(
            random.Random(seed),
            {"cleanup.policy": "compact", "delete.retention.ms": "100000000"},
            partitions=1,
        )
        model.run_calmly(40)
        history = mutated(model.history, name, random.Random(seed))
        if history is None:
            continue
        assert check(model.history).ok
        report = check(history)
        assert rule in report.found, f"seed {seed}: {dict(report.found)}"
        assert tell(report)
        applied += 1
        if applied == 10:
            return
    assert applied
