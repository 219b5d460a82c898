"""Strategies: one for each name that the settings allow."""

from __future__ import annotations

import pickle

import pytest

from lastword.compaction.strategy import STRATEGIES, strategy_of
from lastword.config import BrokerConfig
from lastword.config.keys import TOPIC_SETTINGS
from lastword.config.values import Choice

OWN: dict[str, dict[str, str]] = {
    "header": {"compaction.strategy.header": "v", "compaction.strategy.header.format": "long"}
}


def test_the_settings_allow_what_there_is() -> None:
    (setting,) = [each for each in TOPIC_SETTINGS if each.key == "compaction.strategy"]
    assert isinstance(setting.kind, Choice) and setting.kind.options == tuple(STRATEGIES)


@pytest.mark.parametrize("name", STRATEGIES)
def test_each_says_all_that_others_ask_it(name: str) -> None:
    settings = BrokerConfig.load(None).resolve("t", {"compaction.strategy": name, **OWN.get(name, {})})
    strategy = strategy_of(settings)
    assert strategy.wins and strategy.beats
    assert bool(strategy.columns) == strategy.is_versioned
    # Tasks on other machines are given it.
    assert pickle.loads(pickle.dumps(strategy)) == strategy
