"""Raw requests are answered as a real Kafka has answered them (tests/support/answers.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from tests.support.answers import QUESTIONS, Asker, recorded
from tests.support.broker import RunningBroker, running_broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("answers") / "data") as broker:
        yield broker


@pytest.fixture
def asker(broker: RunningBroker) -> Iterator[Asker]:
    asker = Asker(broker.address, refusing_null_keys={"null.key": "reject"})
    yield asker
    asker.close()


def test_every_question_is_recorded() -> None:
    assert list(recorded()) == list(QUESTIONS)


@pytest.mark.parametrize("question", QUESTIONS)
def test_answered_as_kafka_does(asker: Asker, question: str) -> None:
    assert json.loads(json.dumps(QUESTIONS[question](asker))) == recorded()[question]
