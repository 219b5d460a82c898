"""Jobs over all topics, beside the deletion of some of them, and beside one whose table can't be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.clock import ManualClock
from tests.support.logs import fill, open_log, values

from lastword import metrics
from lastword.admin.views import Overview
from lastword.errors import CorruptError
from lastword.log import Log
from lastword.operations import describing, topics, wal
from lastword.segments.model import Snapshot

INLINE = {"compaction.service.factory": "lastword.compaction.inline:InlineCompactionServiceFactory"}

JOBS: dict[str, Callable[[Log], object]] = {
    "topics": lambda log: log.topics(include_internal=True),
    "list": topics.list_topics,
    "measure": lambda log: log.measure(),
    "retention": lambda log: log.run_retention(),
    "compact": lambda log: log.compact(seal=True, asked_for=True),
    "plan": lambda log: log.plan_compaction(asked_for=True),
    "wal": lambda log: wal.show_wal(log, None),
    "seal": lambda log: run_job(log, "seal"),
    "overview": lambda log: overview(log),
}


def run_job(log: Log, name: str) -> str | None:
    worker = log.worker()
    job = worker.status.jobs[name]
    worker._run_job(name, job)
    return job.last_error


def overview(log: Log) -> list[dict[str, object]]:
    view = Overview(log)
    view.begin()
    assert view._refreshing is not None
    view._refreshing.join()
    found: list[dict[str, object]] = view.current()["topics"]
    return found


def delete_after_listing(log: Log, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Delete a topic right after somebody has listed the names of all of them, once."""
    names = log._catalog.list
    left = [name]

    def listed() -> list[str]:
        found = names()
        if left:
            log.delete_topic(left.pop())
        return found

    monkeypatch.setattr(log._catalog, "list", listed)


def damage(log: Log, name: str) -> Path:
    """Overwrite a part of the metadata file of a topic's table, in a log that is then opened anew."""
    path = Path(log.topic(name).table._table.metadata_location.removeprefix("file://"))  # type: ignore[attr-defined]
    log.close()
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 20] = b"\0" * 20
    path.write_bytes(content)
    return path


class TestATopicThatGoesMeanwhile:
    @pytest.mark.parametrize("job", JOBS)
    def test_is_skipped(
        self, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, job: str
    ) -> None:
        with open_log(tmp_path / "d", clock, INLINE) as log:
            for name in ("a", "b", "c"):
                topic = log.create_topic(name, config={"cleanup.policy": "compact"})
                fill(topic, 0, 2)
                topic.seal()
            with monkeypatch.context() as patched:
                delete_after_listing(log, "b", patched)
                found = JOBS[job](log)
            if job == "retention":
                assert found.problems == ()  # type: ignore[attr-defined]
            if job == "compact":
                assert (found.failed_topics, found.problems) == ((), ())  # type: ignore[attr-defined]
                assert {each.topic for each in found.partitions} == {"a", "c"}  # type: ignore[attr-defined]
            if job == "seal":
                assert found is None
            assert log.topics() == ["a", "c"]

    def test_is_skipped_also_when_it_goes_in_the_midst_of_a_job(self, log: Log) -> None:
        for name in ("a", "b", "c"):
            fill(log.create_topic(name), 0, 1)

        def act(name: str) -> int:
            topic = log.topic(name)
            if name == "b":
                log.delete_topic("b")
            topic.append("k", "v")
            return topic.seal().records

        visited = log.visit(act)
        assert (dict(visited.found), dict(visited.problems)) == ({"a": 2, "c": 2}, {})

    def test_one_that_fails_and_is_there_is_a_problem(self, log: Log) -> None:
        for name in ("a", "b"):
            log.create_topic(name)

        def act(name: str) -> None:
            if name == "a":
                raise CorruptError("damaged", path="somewhere")
            raise FileNotFoundError(2, "No such file or directory", "wal.0.log")

        problems = log.visit(act).problems
        assert {name: str(error) for name, error in problems.items()} == {
            "a": "damaged",
            "b": "wal.0.log: No such file or directory",
        }


def test_partitions_that_are_added_during_retention(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = log.create_topic("t", config={"retention.bytes": 1, "retention.ms": -1})
    fill(topic, 0, 1)
    topic.seal()
    wals = topic.local_wals

    def grown(snapshot: Snapshot) -> object:
        monkeypatch.undo()
        before = wals(snapshot)
        log.alter_topic("t", partitions=3)
        return before

    monkeypatch.setattr(topic, "local_wals", grown)
    assert log.run_retention(steps=["retention"]).problems == ()


def test_partitions_that_are_added_during_a_look(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = log.create_topic("t")
    fill(topic, 0, 1)
    look = topic.table.snapshot

    def grown(snapshot_id: int | None = None) -> object:
        monkeypatch.undo()
        before = look(snapshot_id)
        log.alter_topic("t", partitions=3)
        return before

    monkeypatch.setattr(topic.table, "snapshot", grown)
    assert list(topic.extents()) == [0]
    assert list(topic.extents()) == [0, 1, 2]


class TestATableThatCanNotBeRead:
    @pytest.fixture
    def damaged(self, tmp_path: Path, clock: ManualClock) -> Path:
        log = open_log(tmp_path / "d", clock, INLINE)
        for name in ("bad", "good"):
            topic = log.create_topic(name, config={"cleanup.policy": "compact"})
            fill(topic, 0, 2)
            topic.seal()
        damage(log, "bad")
        return tmp_path / "d"

    def test_the_others_are_sealed_compacted_measured_and_retained(
        self, damaged: Path, clock: ManualClock
    ) -> None:
        with open_log(damaged, clock, INLINE) as log:
            good = log.topic("good")
            fill(good, 2, 3)
            clock.move(400_000)
            for job in ("seal", "compact", "retention", "expire", "collect", "delete", "measure"):
                run_job(log, job)
            at = good.describe().partitions[0]
            assert (at.sealed_end, at.first_dirty) == (3, 3)
            assert "good" in metrics.exposition()
            assert "is damaged" in str(run_job(log, "seal"))
            assert [name for name, _ in log.run_retention().problems] == ["bad"]
            assert [name for name, _ in log.compact().failed_topics] == ["bad"]

    def test_it_is_shown_as_what_it_is(self, damaged: Path, clock: ManualClock) -> None:
        with open_log(damaged, clock, INLINE) as log:
            log.topic("good")
            listed = {each["name"]: each for each in topics.list_topics(log)}
            assert (listed["good"]["state"], listed["good"]["problem"]) == ("ready", None)
            assert listed["bad"]["state"] == "unreadable"
            assert "is damaged" in listed["bad"]["problem"]
            described = describing.describe_topic(log, "bad")
            assert (described["state"], described["id"]) == ("unreadable", listed["bad"]["id"])
            assert "is damaged" in described["problem"]
            # Whoever reads one of them finds the same in the other.
            assert listed["bad"].keys() == listed["good"].keys()
            assert described.keys() == describing.describe_topic(log, "good").keys()
            rows = {str(each["name"]): each for each in overview(log)}
            assert (rows["bad"]["state"], rows["good"]["state"]) == ("unreadable", "ready")
            assert "is damaged" in str(rows["bad"]["problems"])
            assert [(each["topic"], bool(each["problem"])) for each in wal.show_wal(log, None)] == [
                ("bad", True),
                ("good", False),
            ]

    def test_it_can_be_deleted(self, damaged: Path, clock: ManualClock) -> None:
        with open_log(damaged, clock, INLINE) as log:
            topic_id = log.place("bad").topic_id.hex
            topics.delete_topic(log, "bad")
            assert log.topics() == ["good"]
            assert [path for path in log.path.rglob("*") if topic_id in str(path)] == []
            assert values(log.topic("good").read()) == [0, 1]
            fill(log.create_topic("bad"), 7, 8)
            assert values(log.topic("bad").read()) == [7]

    def test_others_can_be_created_and_deleted_beside_it(self, damaged: Path, clock: ManualClock) -> None:
        with open_log(damaged, clock, INLINE) as log:
            log.create_topic("new")
            topics.delete_topic(log, "good")
            assert log.topics() == ["bad", "new"]

    def test_an_erasure_of_it_waits_and_others_go_on(self, damaged: Path, clock: ManualClock) -> None:
        with open_log(damaged, clock, INLINE) as log:
            from lastword.folder import intents

            topic_id = log.place("bad").topic_id.hex
            wanted = intents.Wanted(keys=(b"k0",), ends=(1,))
            intents.add_intent(log.path, intents.Intent(topic="bad", topic_id=topic_id, wanted=(wanted,)))
            run_job(log, "compact")
            assert [each.stem for each in intents.list_intents(log.path)] == [topic_id]
            assert log.topic("good").describe().partitions[0].first_dirty == 2
