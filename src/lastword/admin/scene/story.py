"""Alice, bob and carol: a story in steps, on a separate log, with a clock that can be moved.

Each step actually changes the log, and returns a picture or the frames of a run. Other actions are possible
between the steps and after them: append, compact, move the clock. The log is in a temporary folder, which is removed with the
story.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import lastword.log
from lastword.admin.scene.frames import perform, picture
from lastword.clock import Clock, SystemClock
from lastword.errors import InvalidError
from lastword.record import NewRecord
from lastword.record_json import Json

TOPIC = "lastword-story-e37b0c1e5f4a4b0f9d4f9a6c2d8e71b5"
"""No user's topic has this name. The metrics exclude it."""
SHOWN_AS = "users"
DELETE_RETENTION_MS = 60 * 60 * 1000

_CONFIG: dict[str, object] = {
    "compaction.service.factory": "lastword.compaction.inline:InlineCompactionServiceFactory",
    "wal.sync": "none",
}
_TOPIC_CONFIG: dict[str, object] = {
    "cleanup.policy": "compact",
    "delete.retention.ms": DELETE_RETENTION_MS,
    # So that the compaction has something to remove.
    "compaction.at.seal": False,
    "message.timestamp.after.max.ms": 2**53,
}


class MovableClock:
    """The machine's time, plus the sum of all moves."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.ahead_ms = 0

    def now_ms(self) -> int:
        return self._clock.now_ms() + self.ahead_ms

    def sleep_ms(self, duration_ms: float) -> None:
        self._clock.sleep_ms(duration_ms)

    def move(self, duration_ms: int) -> None:
        if duration_ms < 0:
            raise InvalidError(f"the clock can't be moved by {duration_ms} ms; it only goes forward")
        self.ahead_ms += duration_ms


@dataclass(frozen=True, slots=True)
class _Step:
    title: str
    text: str
    do: Callable[[Story], Json]


class Story:
    """A log with a topic that is displayed as `users`, and the steps of the story. Close it, or use a `with` statement."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = MovableClock(clock)
        self._folder = tempfile.TemporaryDirectory(prefix="lastword-story-")
        self.log = lastword.log.open(self._folder.name, config=_CONFIG, clock=self.clock)
        self.topic = self.log.create_topic(TOPIC, config=_TOPIC_CONFIG)
        self._told = 0

    def close(self) -> None:
        self.log.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # --------------------------------------------------------------------------------------------- the steps

    @property
    def steps(self) -> list[dict[str, str]]:
        """The titles and texts of all steps."""
        return [{"title": each.title, "text": each.text} for each in _STEPS]

    @property
    def told(self) -> int:
        """The number of steps done."""
        return self._told

    def advance(self) -> Json:
        """Do the next step. Return its number, title and text, and either `picture` or `run` (its frames)."""
        if self._told == len(_STEPS):
            raise InvalidError(f"the story has ended after {len(_STEPS)} steps")
        step = _STEPS[self._told]
        done = step.do(self)
        self._told += 1
        return {"step": self._told, "steps": len(_STEPS), "title": step.title, "text": step.text, **done}

    # --------------------------------------------------------------------------------------------- the actions

    def picture(self) -> Json:
        return {"picture": _shown(picture(self.log, TOPIC)), "clock_ahead_ms": self.clock.ahead_ms}

    def produce(self, *records: tuple[str | None, str | None]) -> Json:
        """Append records, given as keys and values. A value of None deletes the key."""
        self.topic.append_many(
            NewRecord(
                key=None if key is None else key.encode(), value=None if value is None else value.encode()
            )
            for key, value in records
        )
        return self.picture()

    def seal(self) -> Json:
        self.topic.seal()
        return self.picture()

    def compact(self) -> Json:
        """Actually seal and compact. `run` has the frames."""
        run = perform(self.log, TOPIC)
        pictures = {each: _shown(run[each]) for each in ("before", "after")}
        return {"run": {**_shown(run), **pictures}, "clock_ahead_ms": self.clock.ahead_ms}

    def move_clock(self, duration_ms: int) -> Json:
        self.clock.move(duration_ms)
        return self.picture()


def _shown(told: Json) -> Json:
    return {**told, "topic": SHOWN_AS}


_STEPS: tuple[_Step, ...] = (
    _Step(
        "Three users",
        "A producer writes where alice, bob and carol live. Each record goes to the end of the log.",
        lambda story: story.produce(("alice", "Oslo"), ("bob", "Rome"), ("carol", "Lima")),
    ),
    _Step(
        "Sealed",
        "The WAL file is full or old enough: it is sealed, and becomes a segment of the table.",
        lambda story: story.seal(),
    ),
    _Step(
        "They move",
        "alice moves, then bob, then alice again. The log grows, but a consumer still knows three cities.",
        lambda story: story.produce(("alice", "Bergen"), ("bob", "Milan"), ("alice", "Paris")),
    ),
    _Step(
        "carol leaves",
        "A record without a value, a tombstone, deletes carol. Readers must see it, so it is a record like any other.",
        lambda story: story.produce(("carol", None)),
    ),
    _Step(
        "The first pass",
        "Compaction keeps the last word on each key. The tombstone stays: this run gives it its deadline.",
        lambda story: story.compact(),
    ),
    _Step(
        "An hour later",
        "delete.retention.ms is over: readers have had time to see that carol is gone.",
        lambda story: story.move_clock(DELETE_RETENTION_MS),
    ),
    _Step(
        "The second pass",
        "Now the tombstone goes too. Nothing in the log mentions carol any more, and the state is unchanged.",
        lambda story: story.compact(),
    ),
)
