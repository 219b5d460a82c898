"""A real Kafka answers what is recorded of it, to the same requests that Lastword is asked.

`python -m tests.peers.test_answers` records it anew.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from peers.kafka import KafkaPeer
from tests.support.answers import QUESTIONS, RECORDED, Asker, recorded


@pytest.mark.parametrize("question", QUESTIONS)
def test_kafka_answers_what_is_recorded(kafka: KafkaPeer, question: str) -> None:
    asker = Asker(kafka.address)
    try:
        assert QUESTIONS[question](asker) == recorded()[question]
    finally:
        asker.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, KafkaPeer(Path(folder) / "kafka", heap="512m") as kafka:
        asker = Asker(kafka.address)
        answers = {name: question(asker) for name, question in QUESTIONS.items()}
        asker.close()
    RECORDED.write_text(json.dumps(answers, indent=1) + "\n")


if __name__ == "__main__":
    main()
