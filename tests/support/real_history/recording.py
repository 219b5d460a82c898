"""What all clients of a run share: the recorder, values that no two records have, and when to end."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
from confluent_kafka import KafkaException
from tests.support.real_history.clock import ServerClock
from tests.support.real_history.embedded import Embedded
from tests.support.real_history.place import PlaceAtHand
from tests.support.real_history.plan import KEYS, Plan, TopicPlan
from tests.support.real_history.served import Served

from lastword.testing.history import ProducedRecord, Recorder

HTTP_S: Final = 120.0
QUIET: Final = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 300}
"""For clients of librdkafka that live through restarts."""


class UnclearError(Exception):
    """The server said nothing, or nothing from which one can tell whether it did something."""


class RefusedError(Exception):
    """The server said that it did nothing."""

    def __init__(self, status: int, error: str, detail: str) -> None:
        super().__init__(f"{error}: {detail}")
        self.status = status
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all clients share."""

    plan: Plan
    place: PlaceAtHand
    served: Served
    recorder: Recorder
    oracle: Embedded
    """Tells first dirty offsets, which Kafka's protocol does not."""
    ended: threading.Event
    """Set when clients are to come to an end."""
    at_peace: threading.Event
    """Set when nothing goes wrong any more."""
    problems: list[str] = field(default_factory=list)
    """What no server should do, and no rule of the checker is about."""
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def clock(self) -> ServerClock:
        return self.place.clock

    @property
    def topics(self) -> tuple[TopicPlan, ...]:
        return self.plan.topics

    def chance(self, name: str) -> random.Random:
        """Return the random numbers of one client."""
        return random.Random(f"{self.plan.seed} {name}")

    def pause(self, seconds: float) -> None:
        """Wait, but not beyond the end."""
        self.ended.wait(seconds)

    def problem(self, what: str) -> None:
        self.problems.append(what)

    def ask(self, verb: str, path: str, **options: Any) -> Any:
        """Ask the admin API. Raise RefusedError or UnclearError if it does not carry the request out."""
        try:
            answer = httpx.request(verb, f"{self.served.url}{path}", timeout=HTTP_S, **options)
        except httpx.HTTPError as error:
            raise UnclearError(repr(error)) from error
        if answer.is_success:
            return answer.json()
        try:
            said = answer.json()
        except ValueError:
            said = {}
        error, detail = said.get("error", "no problem document"), said.get("detail", answer.text)
        if error in ("LastwordError", "CorruptError", "no problem document"):
            self.problem(f"{verb} {path} was answered with {answer.status_code} {error}: {detail}")
        if answer.is_client_error:
            raise RefusedError(answer.status_code, error, detail)
        raise UnclearError(f"{error}: {detail}")

    def until_done(self, act: Callable[[], bool], what: str) -> bool:
        """Do something again and again until it is done. Return False, and note a problem, if it never is.

        While things go wrong there is no limit. At peace a minute or two must do.
        """
        left_s: float | None = None
        while not act():
            if self.at_peace.is_set():
                left_s = time.monotonic() + 180 if left_s is None else left_s
                if time.monotonic() > left_s:
                    self.problem(f"{what} was not done, though nothing went wrong any more")
                    return False
            time.sleep(0.3)
        return True


def partition_of(key: str, topic: TopicPlan) -> int:
    return KEYS.index(key) % topic.partitions


class Words:
    """Makes records with values that no other record has."""

    def __init__(self, around: Surroundings, chance: random.Random) -> None:
        self._around = around
        self._chance = chance

    def record(self, topic: TopicPlan, key: str, *, tombstones: float = 0.1) -> ProducedRecord:
        """Return a new record of a key, a tombstone with this probability."""
        chance = self._chance
        number = next(self._around.numbers)
        value = (
            None
            if chance.random() < tombstones
            else f"v{number}".encode() + b"." * chance.choice([0, 0, 200])
        )
        headers: list[tuple[str, bytes | None]] = []
        if topic.settings.get("compaction.strategy") == "header":
            if topic.settings["compaction.strategy.header.missing"] == "reject" or chance.random() < 0.9:
                headers.append(("version", self._version(topic)))
        elif chance.random() < 0.1:
            headers += [("n", b"%d" % number), ("n", None)]
        return ProducedRecord(
            key=key.encode(),
            value=value,
            timestamp_ms=self._around.clock.now_ms() - chance.choice([0, 0, 0, 1, 1_000]),
            headers=tuple(headers),
        )

    def _version(self, topic: TopicPlan) -> bytes:
        version = self._chance.randrange(-5, 200)
        if topic.settings["compaction.strategy.header.format"] == "text":
            return b"%d" % version
        return version.to_bytes(8, "big", signed=True)


def code_of(error: KafkaException) -> int:
    code: int = error.args[0].code()
    return code
