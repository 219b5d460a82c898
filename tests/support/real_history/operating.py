"""The operator: compaction and retention by hand, erasures, deleted records, settings, topics, backups.

A request whose outcome is unclear is made again until it is clear, as one operation. So a topic's lives are known, and
an erasure that a worker resumes after its client has given up is over when the operation is.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final

from tests.support.real_history.plan import KEYS, TopicPlan
from tests.support.real_history.reading import run_command
from tests.support.real_history.recording import RefusedError, Surroundings, UnclearError

from lastword.testing.history.recorder import Pending

CHANGES: Final = (
    ("min.cleanable.dirty.ratio", ("0", "0.5", "0.9")),
    ("delete.retention.ms", ("0", "2000", "100000")),
    ("min.compaction.lag.ms", ("0", "1000")),
    ("segment.bytes", ("3000", "1000000")),
    ("tiering.lag.ms", ("300", "10000")),
)


class Operator:
    """Operates the topics of a run."""

    def __init__(self, around: Surroundings, name: str) -> None:
        self._around = around
        self._name = name
        self._recorder = around.recorder
        self._chance = around.chance(name)
        self.backups: list[tuple[str, int, int]] = []
        """The id of each backup, and the numbers of the history before and after it was made."""

    def maintain(self) -> None:
        """Do until the end what the worker does by itself, and backups."""
        lasting, churned, _ = self._around.topics
        acts: dict[Callable[[], object], float] = {
            lambda: self.compact(self._chance.choice([lasting, lasting, churned])): 6,
            lambda: self._compact_by_command(lasting): 0.5,
            lambda: self._job("seal", self._chance.choice(self._around.topics)): 2,
            lambda: self._post("/v1/retention", {}): 2,
            lambda: self.back_up(): 1,
        }
        self._act(acts)

    def change(self) -> None:
        """Erase keys, delete records, and change topics until the end."""
        lasting, churned, passing = self._around.topics
        acts: dict[Callable[[], object], float] = {
            lambda: self.erase(lasting, self._chance.choice(KEYS)): 2,
            lambda: self._delete_records(self._chance.choice([lasting, passing, churned])): 1.5,
            lambda: self._alter(lasting): 1,
            lambda: self._recreate(churned): 2,
        }
        self._act(acts)

    def _act(self, acts: dict[Callable[[], object], float]) -> None:
        """Do each act once, in any order, and then on at random."""
        first = self._chance.sample(list(acts), len(acts))
        while not self._around.ended.is_set():
            act = first.pop() if first else self._chance.choices(list(acts), list(acts.values()))[0]
            act()
            self._around.pause(self._chance.choice([0.0, 0.5, 2.0, 4.0]))

    # ----------------------------------------------------------------------------------------- compaction

    def compact(self, topic: TopicPlan, *, force: bool | None = None) -> dict[str, object] | None:
        """Compact a topic, and return the report, or None if there is none."""
        body = {
            "seal": force is not None or self._chance.random() < 0.7,
            "force": self._chance.random() < 0.3 if force is None else force,
        }
        return self._post(f"/v1/topics/{topic.name}/compact", body)

    def _compact_by_command(self, topic: TopicPlan) -> None:
        run_command(self._around, "topic", "compact", topic.name)

    def _job(self, job: str, topic: TopicPlan) -> None:
        self._post(f"/v1/topics/{topic.name}/{job}", {})

    def _post(self, path: str, body: dict[str, object]) -> dict[str, object] | None:
        try:
            answer: dict[str, object] = self._around.ask("POST", path, json=body)
        except (RefusedError, UnclearError):
            return None
        return answer

    # -------------------------------------------------------------------------------------------- records

    def erase(self, topic: TopicPlan, key: str) -> None:
        """Erase a key, again and again until nothing of it is left."""
        data = base64.b64encode(key.encode()).decode()

        def is_done() -> bool:
            report = self._post(f"/v1/topics/{topic.name}/erase", {"keys_base64": [data]})
            return report is not None and report["erased"] is True

        with self._recorder.erase(topic.name, [key.encode()], process=self._name) as pending:
            if self._around.until_done(is_done, f"the erasure of {key}"):
                pending.ok()

    def _delete_records(self, topic: TopicPlan) -> None:
        partition = self._chance.randrange(topic.partitions)
        try:
            at = self._around.ask("GET", f"/v1/topics/{topic.name}")["partitions"][partition]
        except (RefusedError, UnclearError):
            return
        # Most of the time only a little, so that something is left.
        span = at["log_end"] - at["log_start"]
        before = at["log_start"] + int(span * self._chance.choice([0.05, 0.2, 1.0]) * self._chance.random())
        body = {"partition": partition, "before": before}
        with self._recorder.delete_records(topic.name, partition, before, process=self._name) as pending:
            self._once(pending, "POST", f"/v1/topics/{topic.name}/delete-records", body)

    def _once(self, pending: Pending, verb: str, path: str, body: dict[str, object]) -> None:
        try:
            self._around.ask(verb, path, json=body)
        except RefusedError as error:
            pending.refused(error)
        except UnclearError as error:
            pending.doubt(error)
        else:
            pending.ok()

    # --------------------------------------------------------------------------------------------- topics

    def create(self, topic: TopicPlan) -> None:
        """Create a topic that does not exist."""
        body = {"name": topic.name, "partitions": topic.partitions, "config": dict(topic.settings)}
        with self._recorder.topic_created(
            topic.name, topic.settings, partitions=topic.partitions, process=self._name
        ) as pending:
            self._until_sure(
                pending, "POST", "/v1/topics", body, "TopicExistsError", f"creating {topic.name}"
            )

    def _recreate(self, topic: TopicPlan) -> None:
        with self._recorder.topic_deleted(topic.name, process=self._name) as pending:
            self._until_sure(
                pending,
                "DELETE",
                f"/v1/topics/{topic.name}",
                None,
                "UnknownTopicError",
                f"deleting {topic.name}",
            )
        self._around.pause(self._chance.choice([0.0, 0.0, 0.5, 3.0]))
        self.create(topic)

    def _alter(self, topic: TopicPlan) -> None:
        key, values = self._chance.choice(CHANGES)
        change = {key: self._chance.choice(values)}
        with self._recorder.topic_settings(topic.name, change, process=self._name) as pending:
            self._until_sure(
                pending, "PATCH", f"/v1/topics/{topic.name}", {"set": change}, None, f"altering {topic.name}"
            )

    def _until_sure(
        self,
        pending: Pending,
        verb: str,
        path: str,
        body: dict[str, object] | None,
        done_already: str | None,
        what: str,
    ) -> None:
        """Ask until there is a clear answer. After an unclear one, `done_already` is the error of one that was done."""
        attempts = 0

        def is_clear() -> bool:
            nonlocal attempts
            attempts += 1
            try:
                self._around.ask(verb, path, **({} if body is None else {"json": body}))
            except UnclearError:
                return False
            except RefusedError as error:
                if error.error == done_already and attempts > 1:
                    pending.ok()
                else:
                    pending.refused(error)
                return True
            pending.ok()
            return True

        self._around.until_done(is_clear, what)

    # -------------------------------------------------------------------------------------------- backups

    def back_up(self) -> bool:
        """Make a backup, and return whether it has everything."""
        began = self._recorder.now()
        report = self._post("/v1/backup", {"to": str(self._around.place.elsewhere / "backups")})
        if report is None or report["problems"]:
            return False
        self.backups.append((str(report["backup"]), began, self._recorder.now()))
        return True
