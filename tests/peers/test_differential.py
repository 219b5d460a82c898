"""The same changelogs through the same client to Kafka and to Lastword: after compaction the same records are left.

Lastword runs as its users run it: `lastword serve` at default settings, with its worker and Spark. What is compared is
the first read after each compaction, by offsets and not by asking where the log begins, so that nothing makes the broker
look at the table before it. Where the two differ by design is in test_documented_differences.py.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from confluent_kafka.admin import OffsetSpec
from peers.client import alter_all, create_all
from peers.kafka import KafkaPeer
from tests.peers.comparison import Comparison, Partition
from tests.peers.traffic import Place, Seen, delete, offsets, read, send
from tests.peers.workload import Workload, workload
from tests.support.cli import Cli
from tests.support.server import Server
from tests.support.waiting import wait_until

FIRST, _, LAST = os.environ.get("LASTWORD_SEEDS", "200").rpartition("-")
SEEDS = range(int(FIRST), int(LAST) + 1) if FIRST else range(int(LAST))
ROUNDS = 3
ONE_BY_ONE = 10
"""In each round one topic of so many is compacted alone and read at once; all others are compacted by one command."""

LOADING = {"cleanup.policy": "delete", "retention.ms": "-1"}
"""Under `delete`, Kafka's cleaner does not come while records are sent: it makes one pass a round, as we do."""


@pytest.mark.timeout(7200)
def test_the_same_records_are_left(
    kafka: KafkaPeer, ours: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    started_s = time.monotonic()
    both = SideBySide(kafka, ours)
    both.create()
    for number in range(ROUNDS):
        both.send(number)
        both.compare_before(number)
        found = both.compact_ours(number)
        both.clean_kafka(number)
        both.compare(number, found)
        with capsys.disabled():
            took_s = time.monotonic() - started_s
            print(f"\n{len(SEEDS)} seeds, round {number}, {took_s:.0f} s: {both.comparison.tally}")
    tally = both.comparison.tally
    assert tally.superseded > tally.sent // 3
    assert len(SEEDS) < 50 or (tally.expired and tally.held and tally.deleted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a round has left here, as a client sees it."""

    starts: Mapping[Place, int]
    """Where the first read began."""
    first: Mapping[Place, list[Seen]]
    again: Mapping[Place, list[Seen]]
    """Read once more, from the log start on."""
    asked: list[dict[Place, OffsetSpec]]
    answers: list[dict[Place, int]]


class SideBySide:
    def __init__(self, kafka: KafkaPeer, ours: Server) -> None:
        self._kafka = kafka
        self._ours = ours
        now_ms = int(time.time() * 1000)
        self._works = [workload(seed, ROUNDS, now_ms) for seed in SEEDS]
        self._places = {
            (work.topic, each): Partition() for work in self._works for each in range(work.partitions)
        }
        self._known_runs: dict[str, set[str]] = {work.topic: set() for work in self._works}
        self._ahead: set[str] = set()
        """Topics that the worker has compacted of its own accord as well: it removes expired tombstones of an idle
        partition, and Kafka does so in its next pass."""
        self.comparison = Comparison(self._places)

    def create(self) -> None:
        create_all(
            self._kafka.address,
            {each.topic: (each.partitions, LOADING | each.config) for each in self._works},
        )
        create_all(
            self._ours.kafka,
            {
                each.topic: (
                    each.partitions,
                    each.config
                    | {"cleanup.policy": each.policy, "compaction.at.seal": str(each.at_seal).lower()},
                )
                for each in self._works
            },
        )

    def send(self, number: int) -> None:
        if number:
            alter_all(self._kafka.address, {each.topic: LOADING for each in self._works})
        for address in (self._kafka.address, self._ours.kafka):
            send(address, self._works, number)
            delete(address, self._works, number)
        for work in self._works:
            for partition in range(work.partitions):
                self._places[work.topic, partition].grow(work.rounds[number], partition)

    # ---------------------------------------------------------------------------------------------- Lastword

    def compact_ours(self, number: int) -> Found:
        address = self._ours.kafka
        alter_all(address, {each.topic: each.rounds[number].config for each in self._works})
        starts = self._random_starts(number)
        first: dict[Place, list[Seen]] = {}
        cli = Cli(self._ours.data)
        # Tombstones that expire at once would be removed by the second command.
        alone = [each for each in self._works[number::ONE_BY_ONE] if not each.rounds[number].expires_at_once]
        for work in alone:
            cli("topic", "compact", work.topic)
            first |= read(address, [work], starts)
        others = [each for each in self._works if each not in alone]
        with self._ours.client() as client:
            for work in others:
                sealed = client.post(f"/v1/topics/{work.topic}/seal", json={}).raise_for_status().json()
                assert not sealed["problems"]
        cli("compact", "--all")
        first |= read(address, others, starts)
        asked = self._questions(number)
        again = read(address, self._works, self._log_starts())
        answers = [offsets(address, each) for each in asked]
        # Asked last: a run that ends later has changed nothing of this.
        runs = self._new_runs()
        for topic, new in runs.items():
            self._known_runs[topic] |= new
        self._ahead = {topic for topic, new in runs.items() if len(new) > 1}
        self.comparison.tally.topics_ahead += len(self._ahead)
        return Found(starts=starts, first=first, again=again, asked=asked, answers=answers)

    def _new_runs(self) -> dict[str, set[str]]:
        """The runs of each topic that are not known yet, those that the worker made of its own accord among them."""
        found = {}
        with self._ours.client() as client:
            for topic, known in self._known_runs.items():
                history = client.get(f"/v1/topics/{topic}/history").raise_for_status().json()
                runs = [each for each in history["snapshots"] if each["operation"] == "compact"]
                found[topic] = {each["details"]["job"] for each in runs} - known
        return found

    def _log_starts(self) -> dict[Place, int]:
        return {place: at.log_start for place, at in self._places.items()}

    def _random_starts(self, seed: int) -> dict[Place, int]:
        """At the beginning, or anywhere, also in a gap."""
        rng = random.Random(seed)
        return {
            place: rng.choice([at.log_start, rng.randrange(at.log_start, at.end)])
            for place, at in self._places.items()
        }

    def _questions(self, number: int) -> list[dict[Place, OffsetSpec]]:
        """Where does each partition begin and end, and which offset has a time?"""
        rng = random.Random(number)
        specs = (OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.max_timestamp())
        asked = [dict.fromkeys(self._places, spec) for spec in specs]
        for _ in range(3):
            by_time = {}
            for work in self._works:
                changes = work.rounds[rng.randrange(number + 1)].changes
                time_ms = rng.choice(changes).timestamp_ms + rng.choice([-1, 0, 0, 1])
                for partition in range(work.partitions):
                    # After DeleteRecords, Kafka may find none.
                    if self._places[work.topic, partition].log_start == 0:
                        by_time[work.topic, partition] = OffsetSpec.for_timestamp(time_ms)
            asked.append(by_time)
        return asked

    # ------------------------------------------------------------------------------------------------- Kafka

    def clean_kafka(self, number: int) -> None:
        """Have Kafka's cleaner make one pass over each partition, and wait for it."""

        def cleaning(work: Workload) -> dict[str, str]:
            settings = {"cleanup.policy": work.policy, "min.cleanable.dirty.ratio": "0"}
            return {**work.config, **settings, **work.rounds[number].config}

        def waiting() -> dict[Place, int]:
            ends = {(each.topic, each.partition): each.dirty_end for each in self._kafka.cleaner_passes()}
            return {
                place: at.clean_end
                for place, at in self._places.items()
                if max(ends.get(place, 0), at.log_start) < at.clean_end
            }

        alter_all(self._kafka.address, {each.topic: cleaning(each) for each in self._works})
        wait_until(lambda: not waiting(), lambda: f"Kafka's cleaner did not come to {waiting()}")
        passes = Counter((each.topic, each.partition) for each in self._kafka.cleaner_passes())
        for place, at in self._places.items():
            # A second pass would remove tombstones.
            assert not at.expires_at_once or passes[place] == at.passes, f"{place}: {passes[place]} passes"

    # -------------------------------------------------------------------------------------------- comparison

    def compare_before(self, number: int) -> None:
        """Compare what was compacted and what has been sent since, as it is read from both together.

        Where sealing compacts, some of what was sent may be gone here already.
        """
        starts = self._random_starts(ROUNDS + number)
        found = read(self._ours.kafka, self._works, starts)
        runs = self._new_runs()
        unchanged = [
            each
            for each in self._works
            if not each.at_seal and not runs[each.topic] and each.topic not in self._ahead
        ]
        wanted = read(self._kafka.address, unchanged, starts)
        problems = [
            f"{place} from {starts[place]} on, before round {number}:\n{wrong}"
            for place, records in wanted.items()
            if (wrong := self.comparison.compare(place, found[place], records, start=starts[place]))
        ]
        assert not problems, "\n".join(problems[:20])

    def compare(self, number: int, found: Found) -> None:
        log_starts = self._log_starts()
        wanted = read(self._kafka.address, self._works, log_starts)
        problems = []
        for place in self._places:
            for records, start in (
                (found.first[place], found.starts[place]),
                (found.again[place], log_starts[place]),
            ):
                wrong = self.comparison.compare(
                    place,
                    records,
                    wanted[place],
                    start=start,
                    may_lack_tombstones=place[0] in self._ahead,
                )
                if wrong:
                    problems.append(f"{place} from {start} on, round {number}:\n{wrong}")
            self.comparison.count(place, wanted[place])
        assert not problems, "\n".join(problems[:20])
        for asked, answers in zip(found.asked, found.answers, strict=True):
            theirs = offsets(self._kafka.address, asked)
            wrong_answers = {
                place: (answer, theirs[place])
                for place, answer in answers.items()
                if answer != theirs[place] and place[0] not in self._ahead
            }
            assert not wrong_answers, f"round {number}, here and in Kafka: {wrong_answers}"
