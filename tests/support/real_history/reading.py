"""Reads of the state, of the past, and of the positions: embedded, over HTTP, and on the command line."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.support.cli import COMMAND
from tests.support.real_history.embedded import Embedded
from tests.support.real_history.plan import TopicPlan
from tests.support.real_history.recording import RefusedError, Surroundings, UnclearError

from lastword.errors import CorruptError, LastwordError
from lastword.log.topic import Topic
from lastword.reading.timetravel import AsOf
from lastword.record_json import bytes_of
from lastword.testing.history import Point, SeenRecord
from lastword.testing.history.recorder import Pending

MOST: Final = 10_000


class Reader:
    """A client that reads in every way but Kafka's protocol."""

    def __init__(self, around: Surroundings, name: str) -> None:
        self._around = around
        self._name = name
        self._chance = around.chance(name)
        self._embedded = Embedded(around.place.data, around.clock)

    def run(self) -> None:
        """Read until the end."""
        acts = {
            self.look: 3,
            self.state: 3,
            self._state_over_http: 2,
            self._records_over_http: 2,
            self._travel_by_offset: 3,
            self._travel_by_time: 2,
            self._state_as_of: 2,
            self._state_by_command: 0.3,
        }
        while not self._around.ended.is_set():
            act = self._chance.choices(list(acts), list(acts.values()))[0]
            act(self._chance.choice(self._around.topics))
            self._around.pause(self._chance.choice([0.0, 0.1, 1.0]))
        self.close()

    def close(self) -> None:
        self._embedded.close()

    # -------------------------------------------------------------------------------------------- looks

    def look(self, topic: TopicPlan) -> None:
        """See the positions of each partition."""
        for partition in range(topic.partitions):
            with self._around.recorder.positions(topic.name, partition, process=self._name) as pending:

                def ask(partition: int = partition) -> Mapping[str, int]:
                    described = self._around.ask("GET", f"/v1/topics/{topic.name}")
                    found: Mapping[str, int] = described["partitions"][partition]
                    return found

                at = self._answer(pending, ask)
                if at is not None:
                    names = ("log_start", "first_dirty", "sealed_end", "log_end")
                    pending.returned(**{name: at[name] for name in names})

    # -------------------------------------------------------------------------------------------- states

    def state(self, topic: TopicPlan) -> None:
        """Read the state from the data folder."""
        with self._around.recorder.state_read(topic.name, process=self._name) as pending:
            state = self._answer(pending, lambda: self._in_folder(topic, lambda found: found.state()))
            if state is not None:
                pending.returned(_pairs(state))

    def _state_as_of(self, topic: TopicPlan) -> None:
        offset = self._some_offset(topic, 0)
        if offset is None:
            return
        point = Point(offsets=dict.fromkeys(range(topic.partitions), offset))
        with self._around.recorder.state_read(topic.name, as_of=point, process=self._name) as pending:
            as_of = AsOf(offset=offset)
            state = self._answer(
                pending, lambda: self._in_folder(topic, lambda found: found.state(as_of=as_of))
            )
            if state is not None:
                pending.returned(_pairs(state))

    def _state_over_http(self, topic: TopicPlan) -> None:
        with self._around.recorder.state_read(topic.name, process=self._name) as pending:
            path = f"/v1/topics/{topic.name}/records?state=true&max={MOST}"
            page = self._answer(pending, lambda: self._around.ask("GET", path))
            if page is not None and page["next"] is None:
                pending.returned(_state_of(page["records"]))

    def _state_by_command(self, topic: TopicPlan) -> None:
        with self._around.recorder.state_read(topic.name, process=self._name) as pending:
            done = run_command(self._around, "consume", topic.name, "--state", "--json")
            if done.returncode == 0:
                pending.returned(_state_of([json.loads(line) for line in done.stdout.splitlines()]))
            else:
                pending.refused(done.stderr)

    # ------------------------------------------------------------------------------------------- the past

    def _travel_by_offset(self, topic: TopicPlan) -> None:
        partition = self._chance.randrange(topic.partitions)
        offset = self._some_offset(topic, partition)
        if offset is not None:
            self._travel(topic, partition, AsOf(offset=offset), Point(offsets={partition: offset}))

    def _travel_by_time(self, topic: TopicPlan) -> None:
        time_ms = self._around.clock.now_ms() - self._chance.choice([0, 1_000, 10_000])
        partition = self._chance.randrange(topic.partitions)
        self._travel(topic, partition, AsOf(time_ms=time_ms), Point(time_ms=time_ms))

    def _travel(self, topic: TopicPlan, partition: int, as_of: AsOf, point: Point) -> None:
        def read(found: Topic) -> list[dict[str, Any]]:
            return [row for rows in found.read_as_of(as_of, partition=partition) for row in rows.to_pylist()]

        with self._around.recorder.time_travel(topic.name, partition, point, process=self._name) as pending:
            rows = self._answer(pending, lambda: self._in_folder(topic, read))
            if rows is not None:
                pending.returned([_seen_row(each) for each in rows])

    def _some_offset(self, topic: TopicPlan, partition: int) -> int | None:
        """Return an offset below the log end, if there is one."""
        try:
            with self._embedded.topic(topic.name) as found:
                end = found.extents()[partition].log_end
        except (LastwordError, OSError, KeyError) as error:
            self._check(error)
            return None
        return self._chance.randrange(end) if end else None

    # ------------------------------------------------------------------------------------- pages of records

    def _records_over_http(self, topic: TopicPlan) -> None:
        """Read some pages from the log start on, each as a consumer would."""
        partition = self._chance.randrange(topic.partitions)
        with self._around.recorder.positions(topic.name, partition, process=self._name) as pending:
            described = self._answer(pending, lambda: self._around.ask("GET", f"/v1/topics/{topic.name}"))
            if described is None:
                return
            at = described["partitions"][partition]["log_start"]
            pending.returned(log_start=at)
        session = f"{self._name} {next(self._around.numbers)}"
        most = self._chance.choice([50, 1_000, MOST])
        for _ in range(5):
            path = f"/v1/topics/{topic.name}/records?partition={partition}&from={at}&max={most}"
            recorder = self._around.recorder
            with recorder.fetch(topic.name, partition, at, session=session, process=self._name) as pending:
                page = self._answer(pending, lambda path=path: self._around.ask("GET", path))
                if page is None:
                    return
                following = page["next"][str(partition)]
                pending.returned([_seen_json(each) for each in page["records"]], following)
            if following == at:
                return
            at = following

    # --------------------------------------------------------------------------------------------- answers

    def _in_folder(self, topic: TopicPlan, read: Callable[[Topic], Any]) -> Any:
        with self._embedded.topic(topic.name) as found:
            return read(found)

    def _answer(self, pending: Pending, ask: Callable[[], Any]) -> Any:
        """Return the answer; None, and a note of how it ended, if there is none."""
        try:
            return ask()
        except (RefusedError, UnclearError) as error:
            pending.refused(error)
        except (LastwordError, OSError) as error:
            self._check(error)
            pending.refused(error)
        self._around.pause(0.2)
        return None

    def _check(self, error: Exception) -> None:
        if isinstance(error, CorruptError):
            self._around.problem(f"{self._name} could not read: {error!r}")


def run_command(
    around: Surroundings, *arguments: str, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command line on the data folder, or on another one."""
    done = subprocess.run(
        [COMMAND, *arguments, "--data", str(folder or around.place.data)],
        capture_output=True,
        text=True,
        env={**os.environ, "TERM": "dumb", **around.place.environment},
        check=False,
        timeout=600,
    )
    if "Traceback" in done.stderr:
        around.problem(f"`lastword {' '.join(arguments)}` failed with {done.stderr}")
    return done


def _pairs(table: Any) -> dict[bytes, bytes]:
    return dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))


def _state_of(records: list[dict[str, Any]]) -> dict[bytes, bytes]:
    state = {}
    for each in records:
        key, value = bytes_of(each, "key"), bytes_of(each, "value")
        assert key is not None and value is not None
        state[key] = value
    return state


def _seen_json(record: dict[str, Any]) -> SeenRecord:
    return SeenRecord(
        offset=record["offset"],
        key=bytes_of(record, "key"),
        value=bytes_of(record, "value"),
        timestamp_ms=record["timestamp"],
        headers=tuple((each["key"], bytes_of(each, "value")) for each in record["headers"]),
    )


def _seen_row(row: Mapping[str, Any]) -> SeenRecord:
    moment = row["timestamp"]
    timestamp_ms = moment if isinstance(moment, int) else round(moment.timestamp() * 1000)
    return SeenRecord(
        offset=row["offset"],
        key=row["key"],
        value=row["value"],
        timestamp_ms=timestamp_ms,
        headers=tuple((each["key"], each["value"]) for each in row["headers"] or ()),
    )
